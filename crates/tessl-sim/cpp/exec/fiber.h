// Context switch between the stacks of one operating-system thread (x86-64 System V).
#pragma once
#include <stddef.h>

namespace emu {

constexpr size_t STACK_BYTES = 128 << 10;

char* stack_new();
void stack_free(char* stack);
// A stack pointer that starts `entry` when it is switched to.
void* stack_prepare(char* stack, void (*entry)());

}  // namespace emu

// Saves the callee-saved registers and the stack pointer to *save, then continues at `to`.
extern "C" void tessl_sim_switch(void** save, void* to) __attribute__((visibility("hidden")));
