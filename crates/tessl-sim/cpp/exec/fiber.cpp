#include "fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#if !defined(__x86_64__) || !defined(__linux__)
#error "the fiber switch is written for x86-64 Linux"
#endif

// The floating-point control words are not saved: kernels do not change them.
asm(R"(
.text
.globl tessl_sim_switch
.hidden tessl_sim_switch
.type tessl_sim_switch, @function
tessl_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tessl_sim_switch, . - tessl_sim_switch
)");

// float -> bf16, to nearest even, NaN kept. clang calls it and libgcc before 13 lacks it; weak, so that a runtime
// library that has it wins.
extern "C" __attribute__((weak)) __bf16 __truncsfbf2(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  uint16_t upper = f != f ? uint16_t((bits >> 16) | 0x40) : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  __bf16 result;
  memcpy(&result, &upper, 2);
  return result;
}

namespace emu {

// Stacks that no launch holds. A launch takes up to 1024 of them and may run for microseconds, so mapping them each time
// would cost more than the kernels do.
static thread_local struct FreeStacks {
  std::vector<char*> stacks;
  ~FreeStacks() {
    for (char* stack : stacks) munmap(stack, STACK_BYTES);
  }
} free_stacks;

char* stack_new() {
  if (!free_stacks.stacks.empty()) {
    char* stack = free_stacks.stacks.back();
    free_stacks.stacks.pop_back();
    return stack;
  }
  void* p = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) abort();
  // The lowest page is a guard: a kernel that needs more stack stops here instead of writing over its neighbour.
  mprotect(p, 4096, PROT_NONE);
  return static_cast<char*>(p);
}

void stack_free(char* stack) { free_stacks.stacks.push_back(stack); }

void* stack_prepare(char* stack, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + STACK_BYTES - 64);
  *--top = nullptr;  // return address of `entry`, which never returns; keeps the ABI's alignment
  *--top = reinterpret_cast<void*>(entry);
  top -= 6;  // the registers that the switch pops
  return top;
}

}  // namespace emu
