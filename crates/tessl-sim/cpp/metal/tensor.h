// tensor, extents and execution scopes, as far as matmul2d needs them. Rank 2; index 0 is the fastest dimension.
#pragma once
#pragma clang system_header

namespace metal {

inline constexpr size_t dynamic_extent = size_t(-1);

template <class I, size_t... E>
struct extents {
  static constexpr int rank = sizeof...(E);
  I v[rank];

  extents() = default;
  template <class... A>
  extents(A... a) : v{I(a)...} {
    static_assert(sizeof...(A) == rank);
  }
  static constexpr size_t static_extent(int i) {
    constexpr size_t s[] = {E...};
    return s[i];
  }
  I extent(int i) const { return v[i]; }
};

namespace emu_detail {
template <class I, size_t R>
struct Dynamic;
template <class I>
struct Dynamic<I, 1> {
  typedef extents<I, dynamic_extent> type;
};
template <class I>
struct Dynamic<I, 2> {
  typedef extents<I, dynamic_extent, dynamic_extent> type;
};
}  // namespace emu_detail
template <class I, size_t R>
using dextents = typename emu_detail::Dynamic<I, R>::type;

struct tensor_handle {};
struct tensor_inline {};
struct tensor_offset {};

template <class T, class E, class K = tensor_handle>
struct tensor {
  typedef T element_type;
  T* p;
  E e;
  long stride[2];

  tensor(T* data, E size) : p(data), e(size), stride{1, long(size.extent(0))} {}
  tensor(T* data, E size, array<int, 2> s) : p(data), e(size), stride{s[0], s[1]} {}

  int get_extent(int i) const { return int(e.extent(i)); }
  const E& extents() const { return e; }

  tensor slice(int x, int y) const {
    tensor t = *this;
    t.p = p + x * stride[0] + y * stride[1];
    t.e.v[0] = e.v[0] > x ? e.v[0] - x : 0;
    t.e.v[1] = e.v[1] > y ? e.v[1] - y : 0;
    return t;
  }
  template <size_t W, size_t H>
  tensor slice(int x, int y) const {
    tensor t = slice(x, y);
    if (W != dynamic_extent) {
      emu::check(t.e.v[0] >= int(W), "static slice out of range");
      t.e.v[0] = W;
    }
    if (H != dynamic_extent) {
      emu::check(t.e.v[1] >= int(H), "static slice out of range");
      t.e.v[1] = H;
    }
    return t;
  }
  template <size_t W, size_t H>
  tensor static_slice(int x, int y) const {
    return slice<W, H>(x, y);
  }
};

struct execution_thread {
  static constexpr int lanes = 1;
};
struct execution_simdgroup {
  static constexpr int lanes = 32;
};
template <int N>
struct execution_simdgroups {
  static constexpr int lanes = 32 * N;
};

}  // namespace metal
