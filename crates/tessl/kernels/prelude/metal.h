// The kernel vocabulary for Apple's Metal compiler. The simulator builds with this file too: its <metal_stdlib>
// defines TESSL_HOST and with it the few macros that differ on the host.
//
// A kernel source is the concatenation metal.h (or cuda.h), args.h, pack.h, rows.h, activation.h, turn.h, weights.h,
// on Metal epilogue.h, kernel text; no #include.
//
//   KERNEL(name, threads, params...)   a kernel whose threadgroups are one-dimensional and hold at most `threads`
//   KERNEL_RESIDENT                    ", n" where a file promises n threadgroups a multiprocessor to NVRTC; unused here
//   IN(T, p, i)                        buffer i, read only, shares no byte with any OUT of the launch
//   IN_ALIASED(T, p, i)                buffer i, read only here, may be the memory of an OUT (in-place operations)
//   OUT(T, p, i)                       buffer i, written (and possibly read)
//   SCRATCH(T, p, i)                   buffer i, exchanged between threadgroups of one launch; pairs with FENCE_*
//   ARGS(S, p, i)                      the argument block, after the last buffer
//   STATUS(i)                          optional, the last parameter; takes the two indices i and i + 1 after ARGS
//   STATUS_PARAMS, STATUS_PASS         parameters and arguments of a DEVFN that uses FAULT
//   TG(T, a, n)                        an array shared by the threadgroup; only in the body of a KERNEL
//   FCONST(T, NAME, i)                 a constant fixed when the pipeline is made
//   DEVFN                              a function called by kernels
//   gpu_tg gpu_tid gpu_lane gpu_sg     group in grid, thread in group, lane in simdgroup, simdgroup in group
//   vcast<V>(v)                        element-wise conversion of a scalar or vector
//   FAULT(kind, index, value)          report the first fault of a status block; the caller skips its store
//   GRID_RELEASE, GRID_WAIT            dependent launch on CUDA; nothing here
//   FENCE_REL, FENCE_ACQ               publish / observe device memory around a counter of arrived threadgroups
#pragma once
#include <metal_stdlib>
using namespace metal;

#define KERNEL(name, threads, ...)                                                             \
  [[max_total_threads_per_threadgroup(threads)]] kernel void name(                             \
      __VA_ARGS__, uint3 gpu_tg [[threadgroup_position_in_grid]],                              \
      uint3 gpu_tid [[thread_position_in_threadgroup]], uint gpu_lane [[thread_index_in_simdgroup]], \
      uint gpu_sg [[simdgroup_index_in_threadgroup]])

#define IN(T, name, i) device const T* name [[buffer(i)]]
#define IN_ALIASED(T, name, i) device const T* name [[buffer(i)]]
#define OUT(T, name, i) device T* name [[buffer(i)]]
#define ARGS(T, name, i) constant T& name [[buffer(i)]]
#define STATUS(i) device atomic_uint* gpu_status [[buffer(i)]], constant uint& gpu_seq [[buffer(i + 1)]]
#define STATUS_PARAMS device atomic_uint *gpu_status, uint gpu_seq
#define STATUS_PASS gpu_status, gpu_seq

#ifndef TESSL_HOST
#define SCRATCH(T, name, i) coherent(device) device T* name [[buffer(i)]]
#define TG(T, name, n) threadgroup T name[n]
#define FCONST(T, name, i) constant T name [[function_constant(i)]]
template <typename V, typename U>
inline V vcast(U u) {
  return V(u);
}
#endif

#define DEVFN inline

#define GRID_RELEASE
#define GRID_WAIT
#define FENCE_REL atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device)
#define FENCE_ACQ atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device)

// Status block, eight 32-bit words: state (0 clean, 1 faulted), kind, low half of the command sequence, 0, then index
// and value as 64-bit numbers. The exchange lets one thread of all launches that share the block write the rest; the
// host reads after completion. A weak exchange may fail although the word is 0, hence the loop.
DEVFN void gpu_fault(device atomic_uint* status, uint seq, uint kind, ulong index, ulong value) {
  uint seen = 0;
  while (!atomic_compare_exchange_weak_explicit(status, &seen, 1u, memory_order_relaxed, memory_order_relaxed)) {
    if (seen != 0) return;
  }
  device uint* words = (device uint*)status;
  words[1] = kind;
  words[2] = seq;
  words[4] = uint(index);
  words[5] = uint(index >> 32);
  words[6] = uint(value);
  words[7] = uint(value >> 32);
}
#define FAULT(kind, index, value) gpu_fault(gpu_status, gpu_seq, kind, ulong(index), ulong(value))
