// What the Metal stand-in (cpp/metal) needs from the executor: one fiber per GPU thread, one threadgroup at a time per
// operating-system thread. Nothing here is global to the process except the registry of kernels and constant names.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace emu {

// The operations that make the 32 lanes of a simdgroup meet. Lanes that meet in different ones are divergent.
enum class Op : uint32_t {
  barrier = 1,
  sum,
  max,
  min,
  shuffle_xor,
  shuffle,
  shuffle_down,
  matrix_load,
  matrix_store,
  matrix_multiply,
  scope,
};

constexpr size_t SLOT = 64;  // bytes of one lane in an exchange

// Waits for all threads of the threadgroup.
void threadgroup_barrier(int line);
// Waits for all 32 lanes and returns their 32 slots of SLOT bytes; valid until the next exchange but one.
const unsigned char* exchange(const void* value, size_t bytes, Op op, int line);
// The same array for every thread of the group; all threads allocate in the same order.
void* threadgroup_memory(size_t bytes, size_t align);

unsigned lane();
int group_threads();
// Whether a simdgroup_store takes effect before the lanes meet (backward schedule) or after.
bool store_first();
// Lane of a cooperative scope of 1, 32 or more threads, and a rendezvous of that scope.
unsigned scope_lane(int lanes);
void scope_sync(int lanes, int line = __builtin_LINE());

// Ends the launch with an error. Does not return to the kernel.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline void check(bool ok, const char* what) {
  if (!ok) fail("%s", what);
}

// Function constants have a number per name; the values belong to a launch.
int constant_id(const char* name);
double constant_value(int id);

template <class T>
struct FnConst {
  int id;
  explicit FnConst(const char* name) : id(constant_id(name)) {}
  operator T() const { return static_cast<T>(constant_value(id)); }
};

struct Ids {
  uint32_t group[3], in_group[3], lane, simdgroup;
};

// Calls a kernel with its parameters taken from an array of pointers.
typedef void (*Trampoline)(void* const* args, const Ids& ids);

// Constructed once per kernel; bit i of `writes` says that parameter i points to writable memory.
struct Register {
  Register(const char* name, Trampoline call, int nargs, uint32_t writes);
};

}  // namespace emu
