// gemm (whole formula):  t = alpha * row_scale[i] * col_scale[j] * sum_k A[i, k] B[k, j] + beta * C[i, j] + bias
//                        C[i, j] = act(t) [* the same of up, without act] + residual[i, j]
//
// Layout      A, B and up by any strides, C and residual row-major (see GemmArgs). A zero batch stride broadcasts. Groups:
//             rows offsets[g] .. offsets[g + 1] of A and C are multiplied by matrix g of B.
// Grid        one-dimensional; linear id -> (batch, tile_m, tile_n), tile_n fastest. With groups tile_m counts the tiles of
//             all groups, of which there are at most (m / TILE_M + groups); what is beyond them does nothing.
// Threads     16 x 16 over a tile; each owns 4 x 4 of C (and as many sums of up).
// Accumulate  f32 by fma, or i32 for 8-bit whole numbers; k in ascending order. With scales of blocks each 128 steps are
//             summed first, then scaled and added.
// Tail        what is beyond the operands is 0 in threadgroup memory; C is stored element by element inside its bounds.
// Faults      an offset that decreases or passes the last row: kind 3, its place and value; nothing is written.
// Why         one text for every GPU and every part of the formula; it runs where the kernels on matrix units do not take a
//             part. 16 multiply-adds for 8 loads from threadgroup memory: bound by those, far below the matrix units.
//
// AUDIT: kernel=gemm_fused_* TILE_M=64 TILE_N=64 TILE_K=16 THREADS=256
constant constexpr uint TILE_M = 64;
constant constexpr uint TILE_N = 64;
constant constexpr uint TILE_K = 16;
constant constexpr uint THREADS = 256;
// Elements of a thread along each axis.
constant constexpr uint OWN = 4;
constant constexpr uint ACROSS = TILE_N / OWN;
// A step of a staged tile is one row of it; the padding spreads the stores of a column over the banks.
constant constexpr uint PITCH = TILE_M + 4;
constant constexpr uint TILE = TILE_K * PITCH;
// Steps that share a scale.
constant constexpr uint SCALED = 128;
constant constexpr uint BAD_LENGTH = 3;

// Numbers of GemmArgs::a_type.
constant constexpr uint UNSIGNED = 1;
constant constexpr uint E4M3 = 2;

// 8-bit floats. e5m2 is the upper half of an f16. e4m3 has no infinity, and one NaN of each sign.
DEVFN float e5m2(uchar b) { return float(as_type<half>(ushort(uint(b) << 8))); }
DEVFN float e4m3(uchar b) {
  const uint magnitude = b & 0x7fu;
  // Below 8 the exponent is 0. Elsewhere the bits are those of a float whose exponent is 120 too small.
  float v = magnitude < 8 ? float(magnitude) * 0.001953125f : as_type<float>((magnitude << 20) + (120u << 23));
  if (magnitude == 0x7f) v = as_type<float>(0x7fc00000u);
  return b & 0x80u ? -v : v;
}

// An element as it is multiplied; `type` tells 8-bit types apart.
DEVFN float value_of(float x, uint) { return x; }
DEVFN float value_of(half x, uint) { return float(x); }
DEVFN float value_of(bfloat x, uint) { return float(x); }

// Types of 8 bits: whole numbers, signed or not, come as char, floats as uchar.
DEVFN int value_of(char x, uint type) { return type == UNSIGNED ? int(uchar(x)) : int(x); }
DEVFN float value_of(uchar x, uint type) { return type == E4M3 ? e4m3(x) : e5m2(x); }

DEVFN void add_product(thread float& sum, float a, float b) { sum = fma(a, b, sum); }
DEVFN void add_product(thread int& sum, int a, int b) { sum += a * b; }

// A tile of TILE_K steps of `lanes` rows of A or columns of B, step by step; consecutive threads walk the axis with the
// smaller stride.
template <typename S, typename T>
DEVFN void stage_steps(threadgroup S* to, const device T* from, ulong lane_stride, ulong step_stride, uint lanes,
                       uint steps, uint type, uint tid) {
  const bool lane_first = lane_stride <= step_stride;
  for (uint i = tid; i < TILE_M * TILE_K; i += THREADS) {
    const uint lane = lane_first ? i % TILE_M : i / TILE_K;
    const uint step = lane_first ? i / TILE_M : i % TILE_K;
    S v = S(0);
    if (lane < lanes && step < steps) v = value_of(from[lane * lane_stride + step * step_stride], type);
    to[step * PITCH + lane] = v;
  }
}

// Element i of a vector that is absent (0), f32 (1) or of C's type (2).
template <typename O>
DEVFN float element_of(const device float* vector, uint kind, ulong i, float absent) {
  if (kind == 0) return absent;
  return kind == 1 ? vector[i] : float(((const device O*)vector)[i]);
}

// Rows of one tile: a matrix of B, the first row, and one past the last.
struct Rows {
  uint group;
  uint first;
  uint end;
  // The first offset that is wrong, or groups + 1.
  uint bad;
};

// The rows of tile `tile`. Every threadgroup looks at all offsets, so that none writes when one is wrong.
DEVFN Rows rows_of(uint tile, const device uint* offsets, constant GemmArgs& p) {
  Rows r = {0, tile * TILE_M, p.m, p.groups + 1};
  if (p.groups == 0) return r;
  r.first = r.end = 0;
  bool found = false;
  uint left = tile;
  uint start = offsets[0];
  if (start > p.m) r.bad = 0;
  for (uint g = 0; g < p.groups && r.bad > p.groups; g++) {
    const uint end = offsets[g + 1];
    if (end < start || end > p.m) {
      r.bad = g + 1;
    } else if (!found) {
      const uint tiles = (end - start + TILE_M - 1) / TILE_M;
      if (left < tiles) {
        found = true;
        r.group = g;
        r.first = start + left * TILE_M;
        r.end = end;
      } else {
        left -= tiles;
      }
    }
    start = end;
  }
  return r;
}

struct Fused {
  const device float* bias;
  const device float* row_scale;
  const device float* col_scale;
};

// What the activation is applied to, without beta; columns of up come after those of the gate.
template <typename O>
DEVFN float linear_part(float sum, thread const Fused& v, uint row, uint col, constant GemmArgs& p) {
  const float scale = element_of<O>(v.row_scale, p.row_scale, row, 1.0f) *
                      element_of<O>(v.col_scale, p.col_scale, col, 1.0f);
  float t = p.row_scale == 0 && p.col_scale == 0 ? sum : sum * scale;
  // alpha must not make a NaN of an empty sum.
  if (p.k != 0) t *= p.alpha;
  if (p.bias != 0) t += element_of<O>(v.bias, 1 + p.bias_typed, p.bias == 1 ? col : row, 0.0f);
  return t;
}

// Stores one element: of a whole sum, or of one whose blocks were scaled. A whole C is the sum itself.
template <typename S>
DEVFN void store_sum(device int* c, ulong at, S sum, float, S, thread const Fused&, const device int*, ulong, uint, uint,
                     constant GemmArgs&) {
  c[at] = sum;
}
template <typename O, typename S>
DEVFN void store_sum(device O* c, ulong at, S sum, float scaled, S up, thread const Fused& v, const device O* residual,
                     ulong residual_at, uint row, uint col, constant GemmArgs& p) {
  float t = linear_part<O>(p.block_scales != 0 ? scaled : float(sum), v, row, col, p);
  if (p.beta != 0.0f) t += p.beta * float(c[at]);
  t = activate(p.activation, t);
  if (p.gated != 0) t *= linear_part<O>(float(up), v, row, p.n + col, p);
  if (p.residual != 0) t += float(residual[residual_at]);
  c[at] = O(t);
}

template <typename T, typename S, typename O>
DEVFN void gemm_fused_tile(const device T* a, const device T* b, device O* c, const device T* up, Fused v,
                           const device O* residual, const device uint* offsets, const device float* block_a,
                           const device float* block_b, constant GemmArgs& p, STATUS_PARAMS, threadgroup S* a_tile,
                           threadgroup S* b_tile, threadgroup S* u_tile, uint id, uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint tiles = p.tiles_m * p.tiles_n;
  const uint batch = id / tiles;
  const uint n0 = id % p.tiles_n * TILE_N;
  const Rows r = rows_of(id % tiles / p.tiles_n, offsets, p);
  if (r.bad <= p.groups) {
    if (tid == 0) FAULT(BAD_LENGTH, r.bad, offsets[r.bad]);
    return;
  }
  if (r.first >= r.end) return;
  const uint rows = min(TILE_M, r.end - r.first);
  const uint cols = min(TILE_N, p.n - n0);
  const ulong matrix = p.groups == 0 ? batch : r.group;
  a += batch * p.a_bs + r.first * p.a_rs;
  b += matrix * p.b_bs + n0 * p.b_cs;
  if (p.gated != 0) up += matrix * p.u_bs + n0 * p.u_cs;

  // The thread's first row and column inside the tile.
  const uint r0 = tid / ACROSS * OWN;
  const uint c0 = tid % ACROSS * OWN;
  S sums[OWN][OWN], ups[OWN][OWN];
  float scaled[OWN][OWN];
  for (uint i = 0; i < OWN; i++)
    for (uint j = 0; j < OWN; j++) {
      sums[i][j] = ups[i][j] = S(0);
      scaled[i][j] = 0.0f;
    }

  const ulong blocks = (ulong(p.k) + SCALED - 1) / SCALED;
  for (uint done = 0; done < p.k; done += min(p.k - done, TILE_K)) {
    const uint steps = min(p.k - done, TILE_K);
    stage_steps<S>(a_tile, a, p.a_rs, p.a_cs, rows, steps, p.a_type, tid);
    stage_steps<S>(b_tile, b, p.b_cs, p.b_rs, cols, steps, p.b_type, tid);
    if (p.gated != 0) stage_steps<S>(u_tile, up, p.u_cs, p.u_rs, cols, steps, p.b_type, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 0; step < TILE_K; step++) {
      const uint at = step * PITCH;
      S x[OWN];
      for (uint i = 0; i < OWN; i++) x[i] = a_tile[at + r0 + i];
      for (uint j = 0; j < OWN; j++) {
        const S y = b_tile[at + c0 + j];
        for (uint i = 0; i < OWN; i++) add_product(sums[i][j], x[i], y);
      }
      if (p.gated != 0) {
        for (uint j = 0; j < OWN; j++) {
          const S y = u_tile[at + c0 + j];
          for (uint i = 0; i < OWN; i++) add_product(ups[i][j], x[i], y);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    a += TILE_K * p.a_cs;
    b += TILE_K * p.b_rs;
    if (p.gated != 0) up += TILE_K * p.u_rs;
    const uint after = done + steps;
    if (p.block_scales != 0 && (after % SCALED == 0 || after == p.k)) {
      const ulong block = done / SCALED;
      const ulong across = (ulong(p.n) + SCALED - 1) / SCALED;
      for (uint i = 0; i < OWN; i++)
        for (uint j = 0; j < OWN; j++) {
          if (r0 + i < rows && c0 + j < cols) {
            const float of_a = block_a[(r.first + r0 + i) * blocks + block];
            const float of_b = block_b[block * across + (n0 + c0 + j) / SCALED];
            scaled[i][j] = fma(float(sums[i][j]), of_a * of_b, scaled[i][j]);
          }
          sums[i][j] = S(0);
        }
    }
  }

  for (uint i = 0; i < OWN; i++)
    for (uint j = 0; j < OWN; j++) {
      if (r0 + i >= rows || c0 + j >= cols) continue;
      const uint row = r.first + r0 + i, col = n0 + c0 + j;
      const ulong at = batch * p.c_bs + row * p.c_rs + col;
      const ulong residual_at = batch * p.r_bs + row * p.r_rs + col;
      store_sum(c, at, sums[i][j], scaled[i][j], ups[i][j], v, residual, residual_at, row, col, p);
    }
}

KERNEL(gemm_fused_f32_f32, 256, IN(float, a, 0), IN(float, b, 1), OUT(float, c, 2), IN(float, bias, 3), IN(float, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(float, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<float, float, float>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_f32_bf16, 256, IN(float, a, 0), IN(float, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3), IN(float, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(bfloat, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<float, float, bfloat>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_f32_f16, 256, IN(float, a, 0), IN(float, b, 1), OUT(half, c, 2), IN(float, bias, 3), IN(float, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(half, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<float, float, half>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_bf16_f32, 256, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(float, c, 2), IN(float, bias, 3), IN(bfloat, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(float, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<bfloat, float, float>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_bf16_bf16, 256, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3), IN(bfloat, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(bfloat, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<bfloat, float, bfloat>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_bf16_f16, 256, IN(bfloat, a, 0), IN(bfloat, b, 1), OUT(half, c, 2), IN(float, bias, 3), IN(bfloat, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(half, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<bfloat, float, half>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_f16_f32, 256, IN(half, a, 0), IN(half, b, 1), OUT(float, c, 2), IN(float, bias, 3), IN(half, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(float, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<half, float, float>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_f16_bf16, 256, IN(half, a, 0), IN(half, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3), IN(half, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(bfloat, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<half, float, bfloat>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_f16_f16, 256, IN(half, a, 0), IN(half, b, 1), OUT(half, c, 2), IN(float, bias, 3), IN(half, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(half, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<half, float, half>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_i8_i32, 256, IN(char, a, 0), IN(char, b, 1), OUT(int, c, 2), IN(float, bias, 3), IN(char, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(int, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(int, a_tile, TILE);
  TG(int, b_tile, TILE);
  TG(int, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<char, int, int>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_i8_f32, 256, IN(char, a, 0), IN(char, b, 1), OUT(float, c, 2), IN(float, bias, 3), IN(char, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(float, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(int, a_tile, TILE);
  TG(int, b_tile, TILE);
  TG(int, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<char, int, float>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_i8_bf16, 256, IN(char, a, 0), IN(char, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3), IN(char, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(bfloat, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(int, a_tile, TILE);
  TG(int, b_tile, TILE);
  TG(int, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<char, int, bfloat>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_i8_f16, 256, IN(char, a, 0), IN(char, b, 1), OUT(half, c, 2), IN(float, bias, 3), IN(char, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(half, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(int, a_tile, TILE);
  TG(int, b_tile, TILE);
  TG(int, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<char, int, half>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_f8_f32, 256, IN(uchar, a, 0), IN(uchar, b, 1), OUT(float, c, 2), IN(float, bias, 3), IN(uchar, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(float, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<uchar, float, float>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_f8_bf16, 256, IN(uchar, a, 0), IN(uchar, b, 1), OUT(bfloat, c, 2), IN(float, bias, 3), IN(uchar, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(bfloat, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<uchar, float, bfloat>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(gemm_fused_f8_f16, 256, IN(uchar, a, 0), IN(uchar, b, 1), OUT(half, c, 2), IN(float, bias, 3), IN(uchar, up, 4),
       IN(float, row_scale, 5), IN(float, col_scale, 6), IN_ALIASED(half, residual, 7), IN(uint, offsets, 8),
       IN(float, block_a, 9), IN(float, block_b, 10), ARGS(GemmArgs, p, 11), STATUS(12)) {
  TG(float, a_tile, TILE);
  TG(float, b_tile, TILE);
  TG(float, u_tile, TILE);
  const Fused v = {bias, row_scale, col_scale};
  gemm_fused_tile<uchar, float, half>(a, b, c, up, v, residual, offsets, block_a, block_b, p, STATUS_PASS, a_tile, b_tile,
                                    u_tile, gpu_tg.x, gpu_tid.x);
}
