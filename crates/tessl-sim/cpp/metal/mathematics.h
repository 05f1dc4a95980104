// Scalar and vector mathematics. fast:: is the same as precise:: here; its larger error shows on the device only.
#pragma once
#pragma clang system_header

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

namespace metal {

// As in MSL, a NaN operand loses against a number: kernels that must keep NaN compare themselves.
template <class T>
inline T min(T a, T b) {
  return __builtin_elementwise_min(a, b);
}
template <class T>
inline T max(T a, T b) {
  return __builtin_elementwise_max(a, b);
}
template <class T>
inline T clamp(T v, T lo, T hi) {
  return min(max(v, lo), hi);
}
template <class T>
inline T abs(T v) {
  return __builtin_elementwise_abs(v);
}
template <class T>
inline T select(T a, T b, bool c) {
  return c ? b : a;
}

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float copysign(float a, float b) { return __builtin_copysignf(a, b); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline uint clz(uint x) { return x ? uint(__builtin_clz(x)) : 32; }

#define EMU_FUNCTION(name) \
  inline float name(float x) { return __builtin_##name##f(x); }
EMU_FUNCTION(floor)
EMU_FUNCTION(ceil)
EMU_FUNCTION(rint)
EMU_FUNCTION(round)
EMU_FUNCTION(trunc)

namespace precise {
EMU_FUNCTION(sqrt)
EMU_FUNCTION(exp)
EMU_FUNCTION(exp2)
EMU_FUNCTION(log)
EMU_FUNCTION(log2)
EMU_FUNCTION(sin)
EMU_FUNCTION(cos)
EMU_FUNCTION(tanh)
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float pow(float x, float y) { return __builtin_powf(x, y); }
}  // namespace precise
namespace fast {
using namespace precise;
}
// A bare name takes the mode of the library, so a kernel says precise:: or fast:: and these are not defined here.

}  // namespace metal
