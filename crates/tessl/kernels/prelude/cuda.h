// The kernel vocabulary for NVRTC; metal.h lists it. Nothing is included: no CUDA toolkit has to be installed, so half
// and bfloat are our own 16-bit types with conversions only. Shared kernels compute in float and never in half.
//
// Options of the builder: -std=c++17 -default-device -arch=.., -DFC_<NAME>=value for every FCONST, -DGPU_PDL for
// kernels that are launched as dependents. -default-device because the Metal word `device` is an empty macro here and
// __device__ expands to an attribute of that name. Never -use_fast_math: sqrtf and division must stay IEEE.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;
static_assert(sizeof(ulong) == 8 && sizeof(uint) == 4 && sizeof(ushort) == 2, "MSL widths");

#define device
#define constant const
#define threadgroup
#define thread

// OUT carries no __restrict__: it would forbid in-place use, and loads through IN are free to move without it.
#define KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads KERNEL_RESIDENT) name(__VA_ARGS__)
#define KERNEL_RESIDENT
#define IN(T, name, i) const T* __restrict__ name
#define IN_ALIASED(T, name, i) const T* name
#define OUT(T, name, i) T* name
#define SCRATCH(T, name, i) T* name
#define ARGS(T, name, i) const __grid_constant__ T name
#define STATUS(i) STATUS_PARAMS
#define STATUS_PARAMS atomic_uint *gpu_status, uint gpu_seq
#define STATUS_PASS gpu_status, gpu_seq
#define TG(T, name, n) __shared__ __align__(16) T name[n]
#define FCONST(T, name, i) static constexpr T name = T(FC_##name)
#define DEVFN static __forceinline__
#define GPU_MEMBER __forceinline__

#define gpu_tg blockIdx
#define gpu_tid threadIdx
#define gpu_lane (threadIdx.x & 31u)
#define gpu_sg (threadIdx.x >> 5)

// Dependent launch: nothing that a predecessor writes is read, and nothing written, before GRID_WAIT.
#ifdef GPU_PDL
#define GRID_RELEASE asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define GRID_WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define GRID_RELEASE
#define GRID_WAIT
#endif
#define FENCE_REL __threadfence()
#define FENCE_ACQ __threadfence()

// --- 16-bit floating point -------------------------------------------------------------------------------------------

// IEEE binary16. Both conversions are exact or round to nearest even; NaN stays NaN, too large becomes infinity.
struct half {
  ushort bits;
  half() = default;
  GPU_MEMBER explicit half(float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f)); }
  GPU_MEMBER operator float() const {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
  }
};

// bfloat16: the upper half of a float.
struct bfloat {
  ushort bits;
  bfloat() = default;
  GPU_MEMBER explicit bfloat(float f) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(f)); }
  GPU_MEMBER operator float() const { return __uint_as_float(uint(bits) << 16); }
};
static_assert(sizeof(half) == 2 && sizeof(bfloat) == 2, "storage layout");

// --- vectors ---------------------------------------------------------------------------------------------------------

// Only x y z w and whole-vector arithmetic; no swizzles. Conversions take the source by value: through a reference
// NVRTC splits one 8-byte load into four 2-byte loads.
template <class T, int N>
struct vec;

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  GPU_MEMBER vec(T a, T b) : x(a), y(b) {}
  GPU_MEMBER explicit vec(T a) : x(a), y(a) {}
  template <class U>
  GPU_MEMBER explicit vec(vec<U, 2> o) : x(T(o.x)), y(T(o.y)) {}
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  GPU_MEMBER vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  GPU_MEMBER explicit vec(T a) : x(a), y(a), z(a), w(a) {}
  template <class U>
  GPU_MEMBER explicit vec(vec<U, 4> o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
};

#define GPU_VECTOR_OPERATOR(op)                                                  \
  template <class T>                                                             \
  DEVFN vec<T, 4> operator op(vec<T, 4> a, vec<T, 4> b) {                        \
    return vec<T, 4>(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w);            \
  }                                                                              \
  template <class T>                                                             \
  DEVFN vec<T, 4> operator op(vec<T, 4> a, T b) {                                \
    return a op vec<T, 4>(b);                                                    \
  }                                                                              \
  template <class T>                                                             \
  DEVFN vec<T, 2> operator op(vec<T, 2> a, vec<T, 2> b) {                        \
    return vec<T, 2>(a.x op b.x, a.y op b.y);                                    \
  }
GPU_VECTOR_OPERATOR(+)
GPU_VECTOR_OPERATOR(-)
GPU_VECTOR_OPERATOR(*)
GPU_VECTOR_OPERATOR(/)

// CUDA predeclares most of these names with other members, hence macros and not typedefs.
#define half2 vec<half, 2>
#define half4 vec<half, 4>
#define bfloat2 vec<bfloat, 2>
#define bfloat4 vec<bfloat, 4>
#define float2 vec<float, 2>
#define float4 vec<float, 4>
#define int2 vec<int, 2>
#define int4 vec<int, 4>
#define uint2 vec<uint, 2>
#define uint4 vec<uint, 4>

template <class V, class U>
DEVFN V vcast(U u) {
  return V(u);
}

template <class T, class U>
DEVFN T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type keeps the size");
  T t;
  memcpy(&t, &u, sizeof(T));
  return t;
}

// --- synchronisation and simdgroup functions; call them in uniform flow only -----------------------------------------

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
DEVFN void threadgroup_barrier(mem_flags) { __syncthreads(); }
DEVFN void simdgroup_barrier(mem_flags) { __syncwarp(); }

template <class T>
DEVFN T simd_shuffle_xor(T v, ushort mask) {
  return __shfl_xor_sync(~0u, v, mask);
}
template <class T>
DEVFN T simd_shuffle_down(T v, ushort delta) {
  return __shfl_down_sync(~0u, v, delta);
}
template <class T>
DEVFN T simd_shuffle(T v, ushort from) {
  return __shfl_sync(~0u, v, from);
}
template <class T>
DEVFN T simd_broadcast(T v, ushort from) {
  return __shfl_sync(~0u, v, from);
}
// The order of additions, 16 8 4 2 1, is part of the result; the simulator adds in the same order.
template <class T>
DEVFN T simd_sum(T v) {
  for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(~0u, v, m);
  return v;
}
// max and min ignore NaN or not as the comparison falls, on every device: treat NaN before calling.
template <class T>
DEVFN T simd_max(T v) {
  for (int m = 16; m; m >>= 1) {
    T o = __shfl_xor_sync(~0u, v, m);
    v = v > o ? v : o;
  }
  return v;
}
template <class T>
DEVFN T simd_min(T v) {
  for (int m = 16; m; m >>= 1) {
    T o = __shfl_xor_sync(~0u, v, m);
    v = v < o ? v : o;
  }
  return v;
}

// --- mathematics -----------------------------------------------------------------------------------------------------

// Bounds of the CUDA programming guide: exp 1 ulp, log 1 ulp, sin, cos and rsqrt 2 ulp, sqrt and division correctly
// rounded.
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

namespace precise {
DEVFN float exp(float x) { return ::expf(x); }
DEVFN float exp2(float x) { return ::exp2f(x); }
DEVFN float log(float x) { return ::logf(x); }
DEVFN float log2(float x) { return ::log2f(x); }
DEVFN float sin(float x) { return ::sinf(x); }
DEVFN float cos(float x) { return ::cosf(x); }
DEVFN float sqrt(float x) { return ::sqrtf(x); }
DEVFN float rsqrt(float x) { return ::rsqrtf(x); }
DEVFN float pow(float x, float y) { return ::powf(x, y); }
}  // namespace precise
namespace fast {
DEVFN float exp(float x) { return __expf(x); }
}  // namespace fast

// --- atomics and status ----------------------------------------------------------------------------------------------

// Relaxed, as far as shared kernels use them; FENCE_REL and FENCE_ACQ order other memory around them.
typedef uint atomic_uint;
typedef int atomic_int;
enum memory_order { memory_order_relaxed };

template <class T>
DEVFN T atomic_load_explicit(T* p, memory_order) {
  return *(volatile T*)p;
}
template <class T>
DEVFN void atomic_store_explicit(T* p, T v, memory_order) {
  *(volatile T*)p = v;
}
template <class T>
DEVFN T atomic_fetch_add_explicit(T* p, T v, memory_order) {
  return atomicAdd(p, v);
}
template <class T>
DEVFN T atomic_fetch_or_explicit(T* p, T v, memory_order) {
  return atomicOr(p, v);
}
template <class T>
DEVFN T atomic_exchange_explicit(T* p, T v, memory_order) {
  return atomicExch(p, v);
}
template <class T>
DEVFN bool atomic_compare_exchange_weak_explicit(T* p, T* expected, T v, memory_order, memory_order) {
  const T seen = atomicCAS(p, *expected, v);
  const bool same = seen == *expected;
  *expected = seen;
  return same;
}

// See metal.h for the layout of the block.
DEVFN void gpu_fault(atomic_uint* status, uint seq, uint kind, ulong index, ulong value) {
  if (atomicCAS(status, 0u, 1u) != 0u) return;
  status[1] = kind;
  status[2] = seq;
  status[4] = uint(index);
  status[5] = uint(index >> 32);
  status[6] = uint(value);
  status[7] = uint(value >> 32);
}
#define FAULT(kind, index, value) gpu_fault(gpu_status, gpu_seq, kind, ulong(index), ulong(value))
