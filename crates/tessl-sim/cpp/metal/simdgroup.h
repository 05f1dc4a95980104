// Barriers and simdgroup functions; each is a rendezvous that names its line, so that divergence is an error.
#pragma once
#pragma clang system_header

namespace metal {

inline void threadgroup_barrier(mem_flags, int line = __builtin_LINE()) { emu::threadgroup_barrier(line); }

inline void simdgroup_barrier(mem_flags, int line = __builtin_LINE()) {
  char nothing = 0;
  emu::exchange(&nothing, 1, emu::Op::barrier, line);
}

// Combines by the tree 16 8 4 2 1, the order of the CUDA prelude.
template <class T, class F>
inline T emu_reduce(T v, emu::Op op, int line, F combine) {
  const unsigned char* slots = emu::exchange(&v, sizeof(T), op, line);
  T t[32];
  for (int i = 0; i < 32; i++) memcpy(&t[i], slots + emu::SLOT * i, sizeof(T));
  for (int s = 16; s; s >>= 1)
    for (int i = 0; i < s; i++) t[i] = combine(t[i], t[i + s]);
  return t[0];
}
template <class T>
inline T simd_sum(T v, int line = __builtin_LINE()) {
  return emu_reduce(v, emu::Op::sum, line, [](T a, T b) { return T(a + b); });
}
template <class T>
inline T simd_max(T v, int line = __builtin_LINE()) {
  return emu_reduce(v, emu::Op::max, line, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
inline T simd_min(T v, int line = __builtin_LINE()) {
  return emu_reduce(v, emu::Op::min, line, [](T a, T b) { return a < b ? a : b; });
}

template <class T>
inline T emu_from(T v, uint source, emu::Op op, int line) {
  T r;
  memcpy(&r, emu::exchange(&v, sizeof(T), op, line) + emu::SLOT * (source & 31), sizeof(T));
  return r;
}
template <class T>
inline T simd_shuffle_xor(T v, ushort mask, int line = __builtin_LINE()) {
  return emu_from(v, emu::lane() ^ mask, emu::Op::shuffle_xor, line);
}
template <class T>
inline T simd_shuffle(T v, ushort from, int line = __builtin_LINE()) {
  return emu_from(v, from, emu::Op::shuffle, line);
}
template <class T>
inline T simd_broadcast(T v, ushort from, int line = __builtin_LINE()) {
  return emu_from(v, from, emu::Op::shuffle, line);
}
template <class T>
inline T simd_shuffle_down(T v, ushort delta, int line = __builtin_LINE()) {
  const uint from = emu::lane() + delta;
  return emu_from(v, from < 32 ? from : emu::lane(), emu::Op::shuffle_down, line);
}

}  // namespace metal
