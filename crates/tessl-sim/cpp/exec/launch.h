// The C interface that Rust calls, for the kernels linked in and for modules loaded with dlopen.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define TESSL_SIM_EXPORT extern "C" __attribute__((visibility("default")))

struct tessl_sim_constant {
  const char* name;
  double value;
};

struct tessl_sim_launch_desc {
  const char* kernel;
  const tessl_sim_constant* constants;
  size_t constant_count;
  uint32_t grid[3];
  uint32_t threads;
  void* const* args;
  size_t arg_count;
  uint32_t seed;
};

// 0, or -1 with a message in `error`.
TESSL_SIM_EXPORT int tessl_sim_launch(const tessl_sim_launch_desc* launch, char* error, size_t error_bytes);

// Kernel `index` in order of names; false beyond the last. `name` lives as long as the library.
TESSL_SIM_EXPORT bool tessl_sim_kernel(size_t index, const char** name, uint32_t* nargs, uint32_t* writes);
