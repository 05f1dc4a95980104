// Address spaces, scalar and vector types, and the two prelude macros that differ on the host.
#pragma once
#pragma clang system_header
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tuple>
#include <type_traits>
#include <utility>

#define kernel
#define thread
#ifdef EMU_FLAT  // AddressSanitizer does not look at accesses outside address space 0
#define device
#define constant const
#define threadgroup
#else
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#endif

typedef _Float16 half;
typedef __bf16 bfloat;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#define EMU_VECTORS(T)                                  \
  typedef T T##2 __attribute__((ext_vector_type(2)));   \
  typedef T T##3 __attribute__((ext_vector_type(3)));   \
  typedef T T##4 __attribute__((ext_vector_type(4)));
EMU_VECTORS(half)
EMU_VECTORS(bfloat)
EMU_VECTORS(float)
EMU_VECTORS(char)
EMU_VECTORS(uchar)
EMU_VECTORS(short)
EMU_VECTORS(ushort)
EMU_VECTORS(int)
EMU_VECTORS(uint)
EMU_VECTORS(long)
EMU_VECTORS(ulong)
EMU_VECTORS(bool)
static_assert(sizeof(float3) == 16 && sizeof(half4) == 8 && sizeof(bfloat4) == 8 && alignof(uint4) == 16, "MSL layout");

#define SCRATCH(T, name, i) device T* name [[buffer(i)]]
#define FCONST(T, name, i) static emu::FnConst<T> name(#name)
#define TG(T, name, n)             \
  threadgroup T(&name)[n] =        \
      *(threadgroup T(*)[n])(uintptr_t)emu::threadgroup_memory(sizeof(T) * (n), alignof(T))

namespace emu {

template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((ext_vector_type(N)));
};

template <class V>
struct Element {
  typedef V type;
  static constexpr int count = 1;
};
template <class T, int N>
struct Element<T __attribute__((ext_vector_type(N)))> {
  typedef T type;
  static constexpr int count = N;
};

template <class T, class V>
inline void append(T*& p, V v) {
  if constexpr (Element<V>::count == 1) {
    *p++ = static_cast<T>(v);
  } else {
    for (int i = 0; i < Element<V>::count; i++) *p++ = static_cast<T>(v[i]);
  }
}

// The MSL vector constructor: splat, convert or concatenate.
template <class V, class... A>
inline V make(A... a) {
  typedef typename Element<V>::type T;
  constexpr int N = Element<V>::count;
  constexpr int given = (Element<A>::count + ... + 0);
  static_assert(given == N || (sizeof...(A) == 1 && given == 1), "vector constructor: wrong number of components");
  T parts[N > given ? N : given];
  T* p = parts;
  (append<T>(p, a), ...);
  V v;
  for (int i = 0; i < N; i++) v[i] = parts[given == 1 ? 0 : i];
  return v;
}

}  // namespace emu

// clang rejects functional casts between ext_vector types, so constructor calls become calls of emu::make.
#define EMU_CONSTRUCTOR(V) emu::make<V>
#define float2(...) EMU_CONSTRUCTOR(float2)(__VA_ARGS__)
#define float3(...) EMU_CONSTRUCTOR(float3)(__VA_ARGS__)
#define float4(...) EMU_CONSTRUCTOR(float4)(__VA_ARGS__)
#define half2(...) EMU_CONSTRUCTOR(half2)(__VA_ARGS__)
#define half4(...) EMU_CONSTRUCTOR(half4)(__VA_ARGS__)
#define bfloat2(...) EMU_CONSTRUCTOR(bfloat2)(__VA_ARGS__)
#define bfloat4(...) EMU_CONSTRUCTOR(bfloat4)(__VA_ARGS__)
#define char4(...) EMU_CONSTRUCTOR(char4)(__VA_ARGS__)
#define uchar4(...) EMU_CONSTRUCTOR(uchar4)(__VA_ARGS__)
#define short2(...) EMU_CONSTRUCTOR(short2)(__VA_ARGS__)
#define short4(...) EMU_CONSTRUCTOR(short4)(__VA_ARGS__)
#define ushort4(...) EMU_CONSTRUCTOR(ushort4)(__VA_ARGS__)
#define int2(...) EMU_CONSTRUCTOR(int2)(__VA_ARGS__)
#define int4(...) EMU_CONSTRUCTOR(int4)(__VA_ARGS__)
#define uint2(...) EMU_CONSTRUCTOR(uint2)(__VA_ARGS__)
#define uint3(...) EMU_CONSTRUCTOR(uint3)(__VA_ARGS__)
#define uint4(...) EMU_CONSTRUCTOR(uint4)(__VA_ARGS__)

namespace metal {

template <class T, int N>
using vec = typename emu::VectorOf<T, N>::type;

// The form of conversion that all three compilers accept inside templates.
template <class V, class U>
inline V vcast(U u) {
  return emu::make<V>(u);
}

template <class T, class U>
inline T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type keeps the size");
  return __builtin_bit_cast(T, u);
}

template <class T, size_t N>
struct array {
  T v[N];
  T& operator[](size_t i) { return v[i]; }
  constexpr const T& operator[](size_t i) const { return v[i]; }
};

enum class mem_flags : unsigned { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(unsigned(a) | unsigned(b)); }

}  // namespace metal
