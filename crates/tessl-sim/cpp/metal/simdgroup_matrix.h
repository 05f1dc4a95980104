// simdgroup_matrix 8x8: two elements a lane, in the layout that public kernels rely on. Ours must not rely on any.
#pragma once
#pragma clang system_header

namespace metal {

template <class T, int R, int C>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "only 8x8 exists");
  vec<T, 2> e;

  simdgroup_matrix() { e = emu::make<vec<T, 2>>(T(0.0f / 0.0f)); }
  explicit simdgroup_matrix(T diagonal) {
    int r, c;
    place(r, c);
    e[0] = r == c ? diagonal : T(0);
    e[1] = r == c + 1 ? diagonal : T(0);
  }
  vec<T, 2>& thread_elements() { return e; }

  // Row and first column of this lane.
  static void place(int& r, int& c) {
    const int lane = int(emu::lane()), quad = lane / 4;
    r = (quad & 4) + (lane / 2) % 4;
    c = (quad & 2) * 2 + (lane % 2) * 2;
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int R, int C>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, R, C> m;
  m.e = emu::make<vec<T, 2>>(v);
  return m;
}

// A load or store orders nothing between lanes; that the lanes meet is only a check for divergence. A store therefore
// happens before the meeting under one schedule and after it under others: a missing barrier on either side shows.
#define EMU_MATRIX_ACCESS(AS)                                                                                         \
  template <class T>                                                                                                  \
  inline AS T* emu_element(AS T* s, int row, int col, ulong pitch, ulong2 origin, bool transpose) {                   \
    return transpose ? s + (origin.y + col) * pitch + origin.x + row : s + (origin.y + row) * pitch + origin.x + col; \
  }                                                                                                                   \
  template <class T>                                                                                                  \
  inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const AS T* s, ulong pitch = 8,                            \
                             ulong2 origin = ulong2{0, 0}, bool transpose = false, int line = __builtin_LINE()) {     \
    char nothing = 0;                                                                                                 \
    emu::exchange(&nothing, 1, emu::Op::matrix_load, line);                                                           \
    int r, c;                                                                                                         \
    d.place(r, c);                                                                                                    \
    for (int i = 0; i < 2; i++) d.e[i] = *emu_element(s, r, c + i, pitch, origin, transpose);                         \
  }                                                                                                                   \
  template <class T>                                                                                                  \
  inline void simdgroup_store(simdgroup_matrix<T, 8, 8> d, AS T* s, ulong pitch = 8, ulong2 origin = ulong2{0, 0},    \
                              bool transpose = false, int line = __builtin_LINE()) {                                  \
    char nothing = 0;                                                                                                 \
    if (!emu::store_first()) emu::exchange(&nothing, 1, emu::Op::matrix_store, line);                                 \
    int r, c;                                                                                                         \
    d.place(r, c);                                                                                                    \
    for (int i = 0; i < 2; i++) *emu_element(s, r, c + i, pitch, origin, transpose) = d.e[i];                         \
    if (emu::store_first()) emu::exchange(&nothing, 1, emu::Op::matrix_store, line);                                  \
  }
EMU_MATRIX_ACCESS(device)
#ifndef EMU_FLAT
EMU_MATRIX_ACCESS(threadgroup)
#endif

// d = a b + c, products and sums in float, k ascending.
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c,
                                          int line = __builtin_LINE()) {
  struct Pair {
    A a[2];
    B b[2];
  } mine = {{a.e[0], a.e[1]}, {b.e[0], b.e[1]}};
  static_assert(sizeof(mine) <= emu::SLOT);
  const unsigned char* slots = emu::exchange(&mine, sizeof mine, emu::Op::matrix_multiply, line);
  int row, col;
  d.place(row, col);
  float sum[2] = {float(c.e[0]), float(c.e[1])};
  for (int k = 0; k < 8; k++) {
    // The lanes that hold (row, k) of a and (k, col) of b.
    const int lane_a = (row / 4) * 16 + (k / 4) * 8 + (row % 4) * 2 + (k / 2) % 2;
    const int lane_b = (k / 4) * 16 + (col / 4) * 8 + (k % 4) * 2 + (col / 2) % 2;
    Pair pa, pb;
    memcpy(&pa, slots + emu::SLOT * lane_a, sizeof pa);
    memcpy(&pb, slots + emu::SLOT * lane_b, sizeof pb);
    sum[0] += float(pa.a[k % 2]) * float(pb.b[0]);
    sum[1] += float(pa.a[k % 2]) * float(pb.b[1]);
  }
  d.e[0] = D(sum[0]);
  d.e[1] = D(sum[1]);
}

template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                               int line = __builtin_LINE()) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)), line);
}

}  // namespace metal
