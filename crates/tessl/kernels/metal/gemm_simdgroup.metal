// gemm (portable):  C[b, i, j] = act(alpha * sum_k A[b, i, k] B[b, k, j] + beta * C[b, i, j] + bias)
//
// Layout      A and B by any strides, C row-major (see GemmArgs). A zero batch stride broadcasts.
// Grid        one-dimensional; linear id -> (batch, tile_m, tile_n), tile_n fastest. The plan keeps the count of
//             threadgroups and each of m, n, k below 2^31.
// Threads     four simdgroups, 2 x 2 over the tile; each owns 32 x 32 of C as 4 x 4 matrices of 8 x 8.
// Accumulate  f32, k in ascending steps of 8. f32 inputs multiply as f32, so integer patterns are exact.
// Tail        rows, columns and depth beyond the operands are filled with zero in threadgroup memory; C is stored
//             element by element inside its bounds. k = 0 gives act(beta * C + bias).
// Epilogue    t = alpha * acc; t += beta * C if beta != 0 (C is not read otherwise); t += bias; act; one rounding.
// Why         runs on every Apple GPU of family 7 and up, and takes each layout and alignment.
//
// bias is f32 when BIAS_F32, else C's type; it is not touched when p.bias is 0.
FCONST(bool, BIAS_F32, 0);

// AUDIT: kernel=gemm_simd_* TILE_M=64 TILE_N=64 TILE_K=16 THREADS=128
constant constexpr uint TILE_M = 64;
constant constexpr uint TILE_N = 64;
constant constexpr uint TILE_K = 16;
constant constexpr uint THREADS = 128;
// Region of one simdgroup, and the same in 8 x 8 matrices.
constant constexpr uint REGION = 32;
constant constexpr uint BLOCKS = REGION / 8;
// Rows of the staged tiles are 16 bytes longer than needed, so that the rows of one 8 x 8 load fall in different banks.
// Threadgroup memory of the largest case, f32: 5 KiB of A, 4.25 KiB of B and 4 KiB of strips.
constant constexpr uint A_PITCH_16 = TILE_K + 8, A_PITCH_32 = TILE_K + 4;
constant constexpr uint B_PITCH_16 = TILE_N + 8, B_PITCH_32 = TILE_N + 4;
constant constexpr uint STRIP = 8 * REGION;

// Copies a rows x cols corner of `src` into a TR x TC tile and fills the rest with zero. Consecutive threads walk the
// dimension with the smaller stride, so that their reads are contiguous in each layout.
template <typename T, uint TR, uint TC>
DEVFN void stage(threadgroup T* dst, uint pitch, const device T* src, ulong rs, ulong cs, uint rows, uint cols,
                 uint tid) {
  const bool by_row = cs <= rs;
  for (uint i = tid; i < TR * TC; i += THREADS) {
    const uint r = by_row ? i / TC : i % TR;
    const uint c = by_row ? i % TC : i / TR;
    const bool inside = r < rows && c < cols;
    dst[r * pitch + c] = inside ? src[r * rs + c * cs] : T(0.0f);
  }
}

template <typename T, typename O>
DEVFN void gemm_tile(const device T* a, const device T* b, device O* c, const device float* bias, constant GemmArgs& p,
                     threadgroup T* a_tile, threadgroup T* b_tile, threadgroup float* strips, uint id, uint tid,
                     uint lane, uint sg) {
  constexpr uint A_PITCH = sizeof(T) == 2 ? A_PITCH_16 : A_PITCH_32;
  constexpr uint B_PITCH = sizeof(T) == 2 ? B_PITCH_16 : B_PITCH_32;
  const uint tiles = p.tiles_m * p.tiles_n;
  const uint batch = id / tiles;
  const uint m0 = id % tiles / p.tiles_n * TILE_M;
  const uint n0 = id % p.tiles_n * TILE_N;
  const uint rows = min(TILE_M, p.m - m0);
  const uint cols = min(TILE_N, p.n - n0);
  a += batch * p.a_bs + m0 * p.a_rs;
  b += batch * p.b_bs + n0 * p.b_cs;
  c += batch * p.c_bs + m0 * p.c_rs + n0;

  // The region of this simdgroup inside the tile.
  const uint r0 = sg / 2 * REGION;
  const uint c0 = sg % 2 * REGION;

  simdgroup_matrix<float, 8, 8> acc[BLOCKS][BLOCKS];
  for (uint i = 0; i < BLOCKS; i++)
    for (uint j = 0; j < BLOCKS; j++) acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  for (uint left = p.k; left > 0; left -= min(left, TILE_K)) {
    const uint depth = min(left, TILE_K);
    stage<T, TILE_M, TILE_K>(a_tile, A_PITCH, a, p.a_rs, p.a_cs, rows, depth, tid);
    stage<T, TILE_K, TILE_N>(b_tile, B_PITCH, b, p.b_rs, p.b_cs, depth, cols, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint kk = 0; kk < TILE_K; kk += 8) {
      simdgroup_matrix<T, 8, 8> fa[BLOCKS], fb[BLOCKS];
      for (uint i = 0; i < BLOCKS; i++) {
        simdgroup_load(fa[i], a_tile + (r0 + 8 * i) * A_PITCH + kk, A_PITCH);
        simdgroup_load(fb[i], b_tile + kk * B_PITCH + c0 + 8 * i, B_PITCH);
      }
      for (uint i = 0; i < BLOCKS; i++)
        for (uint j = 0; j < BLOCKS; j++) simdgroup_multiply_accumulate(acc[i][j], fa[i], fb[j], acc[i][j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    a += TILE_K * p.a_cs;
    b += TILE_K * p.b_rs;
  }

  // Eight rows of the region at a time through the simdgroup's own strip, then lane = column: contiguous stores, and
  // nothing depends on how a simdgroup_matrix is laid out over the lanes.
  threadgroup float* strip = strips + sg * STRIP;
  for (uint i = 0; i < BLOCKS; i++) {
    for (uint j = 0; j < BLOCKS; j++) simdgroup_store(acc[i][j], strip + 8 * j, REGION);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const uint col = c0 + lane;
    for (uint r = 0; r < 8; r++) {
      const uint row = r0 + 8 * i + r;
      if (row < rows && col < cols)
        finish(strip[r * REGION + lane], c, row * p.c_rs + col, bias, BIAS_F32, m0 + row, n0 + col, p);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

KERNEL(gemm_simd_f32_f32, 128, IN(float, a, 0), IN(float, b, 1), OUT(float, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(float, a_tile, TILE_M * A_PITCH_32);
  TG(float, b_tile, TILE_K * B_PITCH_32);
  TG(float, strips, 4 * STRIP);
  gemm_tile<float, float>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(gemm_simd_f32_bf16, 128, IN(float, a, 0), IN(float, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(float, a_tile, TILE_M * A_PITCH_32);
  TG(float, b_tile, TILE_K * B_PITCH_32);
  TG(float, strips, 4 * STRIP);
  gemm_tile<float, bfloat>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(gemm_simd_f32_f16, 128, IN(float, a, 0), IN(float, b, 1), OUT(half, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(float, a_tile, TILE_M * A_PITCH_32);
  TG(float, b_tile, TILE_K * B_PITCH_32);
  TG(float, strips, 4 * STRIP);
  gemm_tile<float, half>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(gemm_simd_bf16_f32, 128, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(float, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(bfloat, a_tile, TILE_M * A_PITCH_16);
  TG(bfloat, b_tile, TILE_K * B_PITCH_16);
  TG(float, strips, 4 * STRIP);
  gemm_tile<bfloat, float>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(gemm_simd_bf16_bf16, 128, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(bfloat, a_tile, TILE_M * A_PITCH_16);
  TG(bfloat, b_tile, TILE_K * B_PITCH_16);
  TG(float, strips, 4 * STRIP);
  gemm_tile<bfloat, bfloat>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(gemm_simd_bf16_f16, 128, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(half, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(bfloat, a_tile, TILE_M * A_PITCH_16);
  TG(bfloat, b_tile, TILE_K * B_PITCH_16);
  TG(float, strips, 4 * STRIP);
  gemm_tile<bfloat, half>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(gemm_simd_f16_f32, 128, IN(half, a, 0), IN(half, b, 1), OUT(float, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(half, a_tile, TILE_M * A_PITCH_16);
  TG(half, b_tile, TILE_K * B_PITCH_16);
  TG(float, strips, 4 * STRIP);
  gemm_tile<half, float>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(gemm_simd_f16_bf16, 128, IN(half, a, 0), IN(half, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(half, a_tile, TILE_M * A_PITCH_16);
  TG(half, b_tile, TILE_K * B_PITCH_16);
  TG(float, strips, 4 * STRIP);
  gemm_tile<half, bfloat>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(gemm_simd_f16_f16, 128, IN(half, a, 0), IN(half, b, 1), OUT(half, c, 2), IN(float, bias, 3),
       ARGS(GemmArgs, p, 4)) {
  TG(half, a_tile, TILE_M * A_PITCH_16);
  TG(half, b_tile, TILE_K * B_PITCH_16);
  TG(float, strips, 4 * STRIP);
  gemm_tile<half, half>(a, b, c, bias, p, a_tile, b_tile, strips, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
