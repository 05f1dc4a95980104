// gemm (matrix units):  C[b, i, j] = act(alpha * sum_k A[b, i, k] B[b, k, j] + beta * C[b, i, j] + bias)
//
// Layout      A and B with one unit stride each (TRANS_A, TRANS_B: along m, along k), C row-major (see GemmArgs).
// Grid        one-dimensional; linear id -> batch, then panels of eight rows of tiles, walked down each column of tiles, so
//             that neighbours share operands in the last-level cache.
// Threads     four simdgroups work on one tile together.
// Accumulate  f32 in a cooperative tensor, k in steps of TILE_K. f32 inputs multiply as f32 unless RELAXED.
// Tail        operands are tensors that end where the matrix does: reads beyond count as zero. C is stored element by element
//             inside its bounds. k = 0 gives act(beta * C + bias).
// Epilogue    in registers; one rounding. bias is f32 when BIAS_F32, else C's type.
// Why         MPP matmul2d is the only way to the matrix units of M5 and later.
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;

FCONST(bool, BIAS_F32, 0);
FCONST(bool, TRANS_A, 1);
FCONST(bool, TRANS_B, 2);
FCONST(bool, RELAXED, 3);

// AUDIT: kernel=gemm_mpp_* TILE_M=64 TILE_N=64 TILE_K=256 THREADS=128
constant constexpr uint TILE_M = 64;
constant constexpr uint TILE_N = 64;
constant constexpr uint TILE_K = 256;
constant constexpr uint THREADS = 128;
constant constexpr uint PANEL = 8;
// Tensors index with int: up to this stride, a step of TILE_K and a tile of rows stay below 2^31 elements.
constant constexpr ulong MAX_STRIDE = 1 << 22;

typedef dextents<int, 2> Extents;

// The numbers of one tile.
struct Tile {
  uint m0, n0, rows, cols;
};

template <typename T, typename O, bool TA, bool TB, bool LOOSE>
DEVFN void multiply(device T* a, device T* b, device O* c, const device float* bias, constant GemmArgs& p, Tile t) {
  constexpr auto shape = matmul2d_descriptor(int(TILE_M), int(TILE_N), static_cast<int>(dynamic_extent), TA, TB, LOOSE,
                                             matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<shape, execution_simdgroups<THREADS / 32>> op;
  typedef tensor<device T, Extents, tensor_inline> Operand;
  const int stride_a = int(TA ? p.a_cs : p.a_rs), stride_b = int(TB ? p.b_cs : p.b_rs);
  const int rows = int(t.rows), cols = int(t.cols);
  auto acc = op.template get_destination_cooperative_tensor<Operand, Operand, float>();
#pragma clang loop unroll(full)
  for (ushort i = 0; i < acc.get_capacity(); ++i) acc[i] = 0.0f;

  for (uint left = p.k; left > 0; left -= min(left, TILE_K)) {
    const int depth = int(min(left, TILE_K));
    Operand ta(a, TA ? Extents(rows, depth) : Extents(depth, rows), array<int, 2>{1, stride_a});
    Operand tb(b, TB ? Extents(depth, cols) : Extents(cols, depth), array<int, 2>{1, stride_b});
    op.run(ta, tb, acc);
    a += TILE_K * p.a_cs;
    b += TILE_K * p.b_rs;
    // Keeps the simdgroups at the same place of the operands.
    threadgroup_barrier(mem_flags::mem_none);
  }

#pragma clang loop unroll(full)
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    if (!acc.is_valid_element(i)) continue;
    const auto at = acc.get_multidimensional_index(i);
    const uint col = uint(at[0]), row = uint(at[1]);
    if (row < t.rows && col < t.cols) finish(acc[i], c, row * p.c_rs + col, bias, BIAS_F32, t.m0 + row, t.n0 + col, p);
  }
}

// Strides that matmul2d does not take: one element a thread at a time.
template <typename T, typename O>
DEVFN void multiply_plain(const device T* a, const device T* b, device O* c, const device float* bias,
                          constant GemmArgs& p, Tile t, uint tid) {
  for (uint i = tid; i < t.rows * t.cols; i += THREADS) {
    const uint row = i / t.cols, col = i % t.cols;
    float sum = 0.0f;
    for (ulong k = 0; k < p.k; k++) sum += float(a[row * p.a_rs + k * p.a_cs]) * float(b[k * p.b_rs + col * p.b_cs]);
    finish(sum, c, row * p.c_rs + col, bias, BIAS_F32, t.m0 + row, t.n0 + col, p);
  }
}

template <typename T, typename O, bool LOOSE>
DEVFN void multiply_layout(device T* a, device T* b, device O* c, const device float* bias, constant GemmArgs& p,
                           Tile t) {
  if (TRANS_A) {
    if (TRANS_B) multiply<T, O, true, true, LOOSE>(a, b, c, bias, p, t);
    else multiply<T, O, true, false, LOOSE>(a, b, c, bias, p, t);
  } else {
    if (TRANS_B) multiply<T, O, false, true, LOOSE>(a, b, c, bias, p, t);
    else multiply<T, O, false, false, LOOSE>(a, b, c, bias, p, t);
  }
}

template <typename T, typename O>
DEVFN void gemm_tile(const device T* a, const device T* b, device O* c, const device float* bias, constant GemmArgs& p,
                     uint id, uint tid) {
  const uint tiles = p.tiles_m * p.tiles_n;
  const ulong batch = id / tiles;
  const uint in_batch = id % tiles;
  const uint first = in_batch / (PANEL * p.tiles_n) * PANEL;
  const uint height = min(PANEL, p.tiles_m - first);
  const uint in_panel = in_batch - first * p.tiles_n;
  Tile t;
  t.m0 = (first + in_panel % height) * TILE_M;
  t.n0 = in_panel / height * TILE_N;
  t.rows = min(TILE_M, p.m - t.m0);
  t.cols = min(TILE_N, p.n - t.n0);
  a += batch * p.a_bs + t.m0 * p.a_rs;
  b += batch * p.b_bs + t.n0 * p.b_cs;
  c += batch * p.c_bs + t.m0 * p.c_rs + t.n0;

  const ulong unit_a = TRANS_A ? p.a_rs : p.a_cs, unit_b = TRANS_B ? p.b_rs : p.b_cs;
  const ulong lead_a = TRANS_A ? p.a_cs : p.a_rs, lead_b = TRANS_B ? p.b_cs : p.b_rs;
  const bool fits = unit_a == 1 && unit_b == 1 && lead_a - 1 < MAX_STRIDE && lead_b - 1 < MAX_STRIDE;
  if (!fits) {
    multiply_plain(a, b, c, bias, p, t, tid);
  } else if constexpr (sizeof(T) == 4) {
    if (RELAXED) multiply_layout<T, O, true>((device T*)a, (device T*)b, c, bias, p, t);
    else multiply_layout<T, O, false>((device T*)a, (device T*)b, c, bias, p, t);
  } else {
    multiply_layout<T, O, false>((device T*)a, (device T*)b, c, bias, p, t);
  }
}

KERNEL(gemm_mpp_f32_f32, 128, IN(float, a, 0), IN(float, b, 1), OUT(float, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_mpp_f32_bf16, 128, IN(float, a, 0), IN(float, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_mpp_f32_f16, 128, IN(float, a, 0), IN(float, b, 1), OUT(half, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_mpp_bf16_f32, 128, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(float, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_mpp_bf16_bf16, 128, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_mpp_bf16_f16, 128, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(half, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_mpp_f16_f32, 128, IN(half, a, 0), IN(half, b, 1), OUT(float, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_mpp_f16_bf16, 128, IN(half, a, 0), IN(half, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_mpp_f16_f16, 128, IN(half, a, 0), IN(half, b, 1), OUT(half, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  gemm_tile(a, b, c, bias, p, gpu_tg.x, gpu_tid.x);
}
