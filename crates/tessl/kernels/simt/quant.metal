// quantized_matmul:     y[r, j] = act(sum_k x[r, k] w[j, k] + bias[j]) + residual[r, j]
// quantized_glu:        y[r, j] = act(sum_k x[r, k] g[j, k] + gate_bias[j]) * (sum_k x[r, k] u[j, k] + up_bias[j])
// quantized_qkv:        three products of one x, one after the other along the columns
// quantized_embedding:  y[r, i] = scale * table[ids[r], i]
//
// Layout     w has packed rows of codes, [n, k]; scales and biases (where they lie apart) packed rows [n, k / group]. Rows of
//            x, y and residual have unit stride inside. prelude/weights.h decodes them.
// Grid       products: a simdgroup does one column of an output for TILE_M rows of x. Lookups: a thread does 32 weights.
// Accumulate f32; a lane decodes 32 weights at a time, 32 lanes walk along k together, simd_sum adds the lanes.
// Access     codes in the widest loads that their format keeps aligned: 16 bytes for affine, signed4, q8, q4_k and q5_k, 4 for
//            q4_1 and q5_1, 2 for the others. VEC16: rows of x (of y in lookups) start on 16 bytes.
// Tail       k is whole groups. Plans keep the number of simdgroups below 2^31, so that counting them never wraps.
//            Rows past m are neither read nor stored.
// Faults     lookups: an id outside the table: kind 1 (index out of range), its row and its value; that row is not written.
// variant: VEC16=1 FORMAT=0
// variant: VEC16=0 FORMAT=1
// variant: VEC16=1 FORMAT=2
// variant: VEC16=0 FORMAT=3
// variant: VEC16=1 FORMAT=4
// variant: VEC16=0 FORMAT=5
// variant: VEC16=1 FORMAT=6
// variant: VEC16=0 FORMAT=7
// variant: VEC16=1 FORMAT=8
// variant: VEC16=0 FORMAT=9
// variant: VEC16=1 FORMAT=10
// variant: VEC16=0 FORMAT=11
FCONST(bool, VEC16, 0);
// The code: the order of QFormat in the library.
FCONST(uint, FORMAT, 1);

// With two threadgroups promised, NVRTC uses the registers that this leaves instead of spilling at fewer.
#undef KERNEL_RESIDENT
#define KERNEL_RESIDENT , 2

constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint TILE_M = 4;
constant constexpr uint INDEX_OUT_OF_RANGE = 1;

using namespace quant;

DEVFN void store(device uchar* array, uint type, ulong at, float v) {
  if (type == 1) {
    ((device half*)array)[at] = half(v);
  } else if (type == 2) {
    ((device bfloat*)array)[at] = bfloat(v);
  } else {
    ((device float*)array)[at] = v;
  }
}

// The sums of one row of weights with `rows` rows of x from x on: lane r holds that of row r.
template <typename X>
DEVFN float column(Weights w, const device X* x, constant QuantArgs& p, uint rows, uint lane) {
  float acc[TILE_M];
  for (uint r = 0; r < TILE_M; r++) acc[r] = 0.0f;
  // Unrolled, a lane would hold more weights than it has registers.
#pragma unroll 1
  for (uint i = lane; i < p.k / RUN; i += 32) {
    float v[RUN];
    decode(FORMAT, w, p.factors, p.group, i, v);
#pragma unroll
    for (uint r = 0; r < TILE_M; r++) {
      if (r < rows) acc[r] += dot_run<X>(VEC16, v, x + r * p.x_rs + i * RUN);
    }
  }
  float mine = 0.0f;
#pragma unroll
  for (uint r = 0; r < TILE_M; r++) {
    const float sum = simd_sum(acc[r]);
    if (lane == r) mine = sum;
  }
  return mine;
}

DEVFN float biased(float sum, const device uchar* bias, constant QuantArgs& p, uint matrix, uint col) {
  if ((p.bias >> matrix & 1u) == 0) return sum;
  return sum + factor(bias, p.bias_typed != 0 ? p.output : 0, col);
}

// Places of simdgroup `item`: a column, and the first of its rows of x.
struct Place {
  uint col, row, rows;
};

DEVFN Place place_of(uint item, uint columns, constant QuantArgs& p) {
  Place at;
  at.col = item % columns;
  at.row = item / columns * TILE_M;
  at.rows = min(TILE_M, p.m - at.row);
  return at;
}

template <typename X>
DEVFN void matmul(const device X* x, const device uchar* codes, const device uchar* scales, const device uchar* biases,
                  const device uchar* bias, const device uchar* residual, device uchar* y, constant QuantArgs& p,
                  uint group, uint sg, uint lane) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint items = p.n0 * ((p.m + TILE_M - 1) / TILE_M);
  for (uint it = group * SIMDGROUPS + sg; it < items; it += p.groups * SIMDGROUPS) {
    const Place at = place_of(it, p.n0, p);
    const Weights w = row_of(codes, scales, biases, p.row, p.factors, p.k / p.group, at.col);
    const float sum = column<X>(w, x + at.row * p.x_rs, p, at.rows, lane);
    if (lane < at.rows) {
      const uint col = it % p.n0;
      const ulong row = it / p.n0 * TILE_M + lane;
      float t = activate(p.activation, biased(sum, bias, p, 0, col));
      if (p.residual != 0) t += factor(residual, p.output, row * p.r_rs + col);
      store(y, p.output, row * p.y0_rs + col, t);
    }
  }
}

template <typename X>
DEVFN void glu(const device X* x, const device uchar* gate, const device uchar* gate_scales,
               const device uchar* gate_biases, const device uchar* up, const device uchar* up_scales,
               const device uchar* up_biases, const device uchar* gate_bias, const device uchar* up_bias,
               device uchar* y, constant QuantArgs& p, uint group, uint sg, uint lane) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint items = p.n0 * ((p.m + TILE_M - 1) / TILE_M);
  for (uint it = group * SIMDGROUPS + sg; it < items; it += p.groups * SIMDGROUPS) {
    float a = 0.0f, b = 0.0f;
    // Not unrolled: the addresses of both matrices at once would not fit the registers.
#pragma unroll 1
    for (uint matrix = 0; matrix < 2; matrix++) {
      const Place at = place_of(it, p.n0, p);
      const Weights w = row_of(matrix == 0 ? gate : up, matrix == 0 ? gate_scales : up_scales,
                               matrix == 0 ? gate_biases : up_biases, p.row, p.factors, p.k / p.group, at.col);
      const float sum = column<X>(w, x + at.row * p.x_rs, p, at.rows, lane);
      a = matrix == 0 ? sum : a;
      b = sum;
    }
    const Place at = place_of(it, p.n0, p);
    if (lane < at.rows) {
      const float t = activate(p.activation, biased(a, gate_bias, p, 0, at.col)) * biased(b, up_bias, p, 1, at.col);
      store(y, p.output, (at.row + lane) * p.y0_rs + at.col, t);
    }
  }
}

// The three matrices of a call and what belongs to each.
struct Projection {
  const device uchar* codes;
  const device uchar* scales;
  const device uchar* biases;
  const device uchar* bias;
  device uchar* y;
  ulong y_rs;
};

template <typename X>
DEVFN void qkv(const device X* x, Projection q, Projection k, Projection v, constant QuantArgs& p, uint group, uint sg,
               uint lane) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint columns = p.n0 + p.n1 + p.n2;
  const uint items = columns * ((p.m + TILE_M - 1) / TILE_M);
  for (uint it = group * SIMDGROUPS + sg; it < items; it += p.groups * SIMDGROUPS) {
    const Place at = place_of(it, columns, p);
    const uint matrix = at.col < p.n0 ? 0 : at.col < p.n0 + p.n1 ? 1 : 2;
    const Projection o = matrix == 0 ? q : matrix == 1 ? k : v;
    const uint col = at.col - (matrix == 0 ? 0 : matrix == 1 ? p.n0 : p.n0 + p.n1);
    const Weights w = row_of(o.codes, o.scales, o.biases, p.row, p.factors, p.k / p.group, col);
    const float sum = column<X>(w, x + at.row * p.x_rs, p, at.rows, lane);
    if (lane < at.rows) {
      const float t = activate(p.activation, biased(sum, o.bias, p, matrix, col));
      store(o.y, p.output, (at.row + lane) * o.y_rs + col, t);
    }
  }
}

template <typename Y>
DEVFN void lookup(const device uchar* codes, const device uchar* scales, const device uchar* biases,
                  const device uint* ids, device Y* y, constant QuantEmbedArgs& p, STATUS_PARAMS, uint group, uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint row = uint(c.row);
    const uint id = ids[row_offset(row, p.r1, p.r2, p.i_s0, p.i_s1, p.i_s2)];
    // A negative i32 is a large number here, above every vocabulary.
    if (id >= p.vocabulary) {
      const bool negative = p.is_signed != 0 && (id >> 31) != 0;
      if (c.at == 0) FAULT(INDEX_OUT_OF_RANGE, row, negative ? ulong(id) | 0xffffffff00000000ul : ulong(id));
      continue;
    }
    float v[RUN];
    decode(FORMAT, row_of(codes, scales, biases, p.row, p.factors, p.n / p.group, id), p.factors, p.group, c.at, v);
    if (p.scaled != 0) {
      for (uint e = 0; e < RUN; e++) v[e] *= p.scale;
    }
    device Y* to = y + row_offset(row, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2) + c.at * RUN;
    if (VEC16) {
      store_floats<Y, RUN>(to, v);
    } else {
      for (uint e = 0; e < RUN; e++) to[e] = Y(v[e]);
    }
  }
}

KERNEL(quantized_matmul_f32, 256, IN(float, x, 0), IN(uchar, codes, 1), IN(uchar, scales, 2), IN(uchar, biases, 3),
       IN(uchar, bias, 4), IN_ALIASED(uchar, residual, 5), OUT(uchar, y, 6), ARGS(QuantArgs, p, 7)) {
  matmul<float>(x, codes, scales, biases, bias, residual, y, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_matmul_f16, 256, IN(half, x, 0), IN(uchar, codes, 1), IN(uchar, scales, 2), IN(uchar, biases, 3),
       IN(uchar, bias, 4), IN_ALIASED(uchar, residual, 5), OUT(uchar, y, 6), ARGS(QuantArgs, p, 7)) {
  matmul<half>(x, codes, scales, biases, bias, residual, y, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_matmul_bf16, 256, IN(bfloat, x, 0), IN(uchar, codes, 1), IN(uchar, scales, 2), IN(uchar, biases, 3),
       IN(uchar, bias, 4), IN_ALIASED(uchar, residual, 5), OUT(uchar, y, 6), ARGS(QuantArgs, p, 7)) {
  matmul<bfloat>(x, codes, scales, biases, bias, residual, y, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_glu_f32, 256, IN(float, x, 0), IN(uchar, gate, 1), IN(uchar, gate_scales, 2), IN(uchar, gate_biases, 3),
       IN(uchar, up, 4), IN(uchar, up_scales, 5), IN(uchar, up_biases, 6), IN(uchar, gate_bias, 7),
       IN(uchar, up_bias, 8), IN(uchar, residual, 9), OUT(uchar, y, 10), ARGS(QuantArgs, p, 11)) {
  glu<float>(x, gate, gate_scales, gate_biases, up, up_scales, up_biases, gate_bias, up_bias, y, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_glu_f16, 256, IN(half, x, 0), IN(uchar, gate, 1), IN(uchar, gate_scales, 2), IN(uchar, gate_biases, 3),
       IN(uchar, up, 4), IN(uchar, up_scales, 5), IN(uchar, up_biases, 6), IN(uchar, gate_bias, 7),
       IN(uchar, up_bias, 8), IN(uchar, residual, 9), OUT(uchar, y, 10), ARGS(QuantArgs, p, 11)) {
  glu<half>(x, gate, gate_scales, gate_biases, up, up_scales, up_biases, gate_bias, up_bias, y, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_glu_bf16, 256, IN(bfloat, x, 0), IN(uchar, gate, 1), IN(uchar, gate_scales, 2), IN(uchar, gate_biases, 3),
       IN(uchar, up, 4), IN(uchar, up_scales, 5), IN(uchar, up_biases, 6), IN(uchar, gate_bias, 7),
       IN(uchar, up_bias, 8), IN(uchar, residual, 9), OUT(uchar, y, 10), ARGS(QuantArgs, p, 11)) {
  glu<bfloat>(x, gate, gate_scales, gate_biases, up, up_scales, up_biases, gate_bias, up_bias, y, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_qkv_f32, 256, IN(float, x, 0), IN(uchar, wq, 1), IN(uchar, sq, 2), IN(uchar, zq, 3), IN(uchar, wk, 4),
       IN(uchar, sk, 5), IN(uchar, zk, 6), IN(uchar, wv, 7), IN(uchar, sv, 8), IN(uchar, zv, 9), IN(uchar, bq, 10),
       IN(uchar, bk, 11), IN(uchar, bv, 12), IN(uchar, residual, 13), OUT(uchar, yq, 14), OUT(uchar, yk, 15),
       OUT(uchar, yv, 16), ARGS(QuantArgs, p, 17)) {
  const Projection q = {wq, sq, zq, bq, yq, p.y0_rs}, k = {wk, sk, zk, bk, yk, p.y1_rs};
  const Projection v = {wv, sv, zv, bv, yv, p.y2_rs};
  qkv<float>(x, q, k, v, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_qkv_f16, 256, IN(half, x, 0), IN(uchar, wq, 1), IN(uchar, sq, 2), IN(uchar, zq, 3), IN(uchar, wk, 4),
       IN(uchar, sk, 5), IN(uchar, zk, 6), IN(uchar, wv, 7), IN(uchar, sv, 8), IN(uchar, zv, 9), IN(uchar, bq, 10),
       IN(uchar, bk, 11), IN(uchar, bv, 12), IN(uchar, residual, 13), OUT(uchar, yq, 14), OUT(uchar, yk, 15),
       OUT(uchar, yv, 16), ARGS(QuantArgs, p, 17)) {
  const Projection q = {wq, sq, zq, bq, yq, p.y0_rs}, k = {wk, sk, zk, bk, yk, p.y1_rs};
  const Projection v = {wv, sv, zv, bv, yv, p.y2_rs};
  qkv<half>(x, q, k, v, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_qkv_bf16, 256, IN(bfloat, x, 0), IN(uchar, wq, 1), IN(uchar, sq, 2), IN(uchar, zq, 3), IN(uchar, wk, 4),
       IN(uchar, sk, 5), IN(uchar, zk, 6), IN(uchar, wv, 7), IN(uchar, sv, 8), IN(uchar, zv, 9), IN(uchar, bq, 10),
       IN(uchar, bk, 11), IN(uchar, bv, 12), IN(uchar, residual, 13), OUT(uchar, yq, 14), OUT(uchar, yk, 15),
       OUT(uchar, yv, 16), ARGS(QuantArgs, p, 17)) {
  const Projection q = {wq, sq, zq, bq, yq, p.y0_rs}, k = {wk, sk, zk, bk, yk, p.y1_rs};
  const Projection v = {wv, sv, zv, bv, yv, p.y2_rs};
  qkv<bfloat>(x, q, k, v, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_embedding_f32, 256, IN(uchar, codes, 0), IN(uchar, scales, 1), IN(uchar, biases, 2), IN(uint, ids, 3),
       OUT(float, y, 4), ARGS(QuantEmbedArgs, p, 5), STATUS(6)) {
  lookup<float>(codes, scales, biases, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(quantized_embedding_f16, 256, IN(uchar, codes, 0), IN(uchar, scales, 1), IN(uchar, biases, 2), IN(uint, ids, 3),
       OUT(half, y, 4), ARGS(QuantEmbedArgs, p, 5), STATUS(6)) {
  lookup<half>(codes, scales, biases, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(quantized_embedding_bf16, 256, IN(uchar, codes, 0), IN(uchar, scales, 1), IN(uchar, biases, 2), IN(uint, ids, 3),
       OUT(bfloat, y, 4), ARGS(QuantEmbedArgs, p, 5), STATUS(6)) {
  lookup<bfloat>(codes, scales, biases, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}
