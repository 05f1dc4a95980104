// A stand-in for Metal Performance Primitives: matmul2d with operands in memory and a cooperative destination.
#pragma once
#pragma clang system_header
#include <metal_stdlib>

namespace mpp {
namespace tensor_ops {
using namespace metal;

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;

  constexpr matmul2d_descriptor(int m_, int n_, int k_ = int(dynamic_extent), bool left = false, bool right = false,
                                bool relaxed = false, mode mode_ = mode::multiply)
      : m(m_), n(n_), k(k_), transpose_left(left), transpose_right(right), relaxed_precision(relaxed),
        matmul_mode(mode_) {}
};

// Elements are dealt out round-robin with a rotation, and each lane has one element that is never valid, so that code
// which forgets is_valid_element or assumes a layout fails here.
template <class T, int M, int N, int L>
struct cooperative_tensor {
  static constexpr int capacity = (M * N + L - 1) / L + 1;
  T v[capacity];

  cooperative_tensor() {
    for (T& x : v) {
      if constexpr (std::is_integral_v<T>) {
        x = T(0x5a5a5a5a);
      } else {
        x = T(0.0f / 0.0f);
      }
    }
  }
  static constexpr ushort get_capacity() { return capacity; }
  static int flat(int i) { return i * L + (int(emu::scope_lane(L)) * 5 + i * 3) % L; }
  bool is_valid_element(ushort i) const { return i < capacity - 1 && flat(i) < M * N; }
  bool get_mask(ushort i) const { return is_valid_element(i); }
  T& operator[](ushort i) {
    emu::check(i < capacity, "cooperative tensor index");
    return v[i];
  }
  // [0] is the column, [1] the row.
  array<int, 2> get_multidimensional_index(ushort i) const {
    emu::check(is_valid_element(i), "get_multidimensional_index of an invalid element");
    const int f = flat(i);
    return {{f % N, f / N}};
  }

  struct iterator {
    cooperative_tensor* t;
    ushort i;
    T& operator*() { return t->v[i]; }
    void skip() {
      while (i < capacity && !t->is_valid_element(i)) ++i;
    }
    iterator& operator++() {
      ++i;
      skip();
      return *this;
    }
    bool operator!=(const iterator& o) const { return i != o.i; }
    array<int, 2> get_multidimensional_index() const { return t->get_multidimensional_index(i); }
  };
  iterator begin() {
    iterator it{this, 0};
    it.skip();
    return it;
  }
  iterator end() { return {this, capacity}; }

  template <class Tensor>
  static bool inside(Tensor& t, array<int, 2> x) {
    return x[0] < t.get_extent(0) && x[1] < t.get_extent(1);
  }
  template <class Tensor>
  void store(Tensor& t) const {
    emu::scope_sync(L);
    for (int i = 0; i < capacity; i++) {
      if (!is_valid_element(i)) continue;
      const auto x = get_multidimensional_index(i);
      if (inside(t, x)) t.p[x[0] * t.stride[0] + x[1] * t.stride[1]] = v[i];
    }
  }
  template <class Tensor>
  void load(Tensor& t) {
    emu::scope_sync(L);
    for (int i = 0; i < capacity; i++) {
      if (!is_valid_element(i)) continue;
      const auto x = get_multidimensional_index(i);
      v[i] = inside(t, x) ? T(t.p[x[0] * t.stride[0] + x[1] * t.stride[1]]) : T(0);
    }
  }
};

template <matmul2d_descriptor D, class S>
struct matmul2d {
  template <class A, class B, class T>
  cooperative_tensor<T, D.m, D.n, S::lanes> get_destination_cooperative_tensor() const {
    return {};
  }

  // One element; rows, columns and depth beyond the operands count as zero. Integers are summed as integers.
  template <class T, class A, class B>
  static T dot(A& a, B& b, int r, int c) {
    typedef std::conditional_t<std::is_integral_v<T>, T, float> Sum;
    const int row_dim = D.transpose_left ? 0 : 1, col_dim = D.transpose_right ? 1 : 0;
    if (r >= a.get_extent(row_dim) || c >= b.get_extent(col_dim)) return T(0);
    const int depth_a = a.get_extent(1 - row_dim), depth_b = b.get_extent(1 - col_dim);
    int k = D.k == int(dynamic_extent) ? depth_a : D.k;
    k = k < depth_a ? k : depth_a;
    k = k < depth_b ? k : depth_b;
    auto pa = a.p + r * a.stride[row_dim];
    auto pb = b.p + c * b.stride[col_dim];
    Sum sum = 0;
    for (int i = 0; i < k; i++) sum += Sum(pa[i * a.stride[1 - row_dim]]) * Sum(pb[i * b.stride[1 - col_dim]]);
    return T(sum);
  }

  // Operands are lvalues, as in Apple's header.
  template <class A, class B, class T, int M, int N, int L>
  void run(A& a, B& b, cooperative_tensor<T, M, N, L>& c) const {
    emu::check(L == 1 || L == 32 || L == emu::group_threads(),
               "execution_simdgroups<N>: N differs from the threadgroup");
    emu::scope_sync(L);
    for (int i = 0; i < c.capacity; i++) {
      if (!c.is_valid_element(i)) continue;
      const auto x = c.get_multidimensional_index(i);
      const T product = dot<T>(a, b, x[1], x[0]);
      c.v[i] = D.matmul_mode == matmul2d_descriptor::mode::multiply ? product : T(c.v[i] + product);
    }
    emu::scope_sync(L);
  }
};

}  // namespace tensor_ops
}  // namespace mpp
