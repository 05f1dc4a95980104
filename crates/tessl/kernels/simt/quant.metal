// quantized_matmul:     y[r, j] = act(sum_k x[r, k] w[j, k] + bias[j]) + residual[r, j]
// quantized_glu:        y[r, j] = act(sum_k x[r, k] g[j, k]) * sum_k x[r, k] u[j, k]
// quantized_qkv:        three products of one x, one after the other along the columns
// quantized_embedding:  y[r, i] = scale * table[ids[r], i]
//
// Layout     w has packed rows of codes, [n, k]; scales and biases (where they lie apart) packed rows [n, k / group]. Rows of
//            x, y and residual have unit stride inside. docs/numerics.md has a block of each format, byte by byte.
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
constant constexpr uint RUN = 32;
constant constexpr uint INDEX_OUT_OF_RANGE = 1;

// Rows of one quantised matrix.
struct Weights {
  const device uchar* codes;
  const device uchar* scales;
  const device uchar* biases;
};

// Element `at` of an array of f32 (0), f16 (1) or bf16 (2).
DEVFN float factor(const device uchar* array, uint type, ulong at) {
  if (type == 1) return float(((const device half*)array)[at]);
  if (type == 2) return float(((const device bfloat*)array)[at]);
  return ((const device float*)array)[at];
}

DEVFN void store(device uchar* array, uint type, ulong at, float v) {
  if (type == 1) {
    ((device half*)array)[at] = half(v);
  } else if (type == 2) {
    ((device bfloat*)array)[at] = bfloat(v);
  } else {
    ((device float*)array)[at] = v;
  }
}

DEVFN float f16_at(const device uchar* p) { return float(*(const device half*)p); }
DEVFN float signed_byte(uint b) { return float(int(b << 24) >> 24); }

// Sixteen bytes from memory that is aligned to ALIGN bytes, as four words.
template <uint ALIGN>
DEVFN void load_bytes16(const device uchar* p, thread uint* u) {
  if constexpr (ALIGN == 16) {
    const uint4 v = *(const device uint4*)p;
    u[0] = v.x;
    u[1] = v.y;
    u[2] = v.z;
    u[3] = v.w;
  } else if constexpr (ALIGN == 4) {
    for (uint i = 0; i < 4; i++) u[i] = ((const device uint*)p)[i];
  } else {
    const device ushort* h = (const device ushort*)p;
    for (uint i = 0; i < 4; i++) u[i] = uint(h[2 * i]) | uint(h[2 * i + 1]) << 16;
  }
}

DEVFN uint load_word2(const device uchar* p) {
  const device ushort* h = (const device ushort*)p;
  return uint(h[0]) | uint(h[1]) << 16;
}

// Scale (part 0) or minimum (part 1) `j` of the eight pairs of six bits in the 12 bytes after d and dmin.
DEVFN float six_bits(const device uchar* pairs, uint j, uint part) {
  if (j < 4) return float(uint(pairs[j + 4 * part]) & 63u);
  const uint low = uint(pairs[j + 4]) >> (4 * part) & 15u;
  return float(low | uint(pairs[j - 4 + 4 * part]) >> 6 << 4);
}

// run_<code>(w, .., i, out) decodes run i of the row at w. Factors that lie apart have element type `type`, and `group` weights
// share one.
DEVFN void run_affine4(Weights w, uint type, uint group, uint i, thread float* out) {
  uint u[4];
  load_bytes16<16>(w.codes + ulong(i) * 16, u);
  const uint g = i * RUN / group;
  const float s = factor(w.scales, type, g), b = factor(w.biases, type, g);
  for (uint e = 0; e < RUN; e++) out[e] = s * float(u[e / 8] >> (4 * (e % 8)) & 15u) + b;
}

DEVFN void run_affine8(Weights w, uint type, uint group, uint i, thread float* out) {
  uint u[8];
  load_bytes16<16>(w.codes + ulong(i) * 32, u);
  load_bytes16<16>(w.codes + ulong(i) * 32 + 16, u + 4);
  const uint g = i * RUN / group;
  const float s = factor(w.scales, type, g), b = factor(w.biases, type, g);
  for (uint e = 0; e < RUN; e++) out[e] = s * float(u[e / 4] >> (8 * (e % 4)) & 255u) + b;
}

DEVFN void run_signed4(Weights w, uint type, uint group, uint i, thread float* out) {
  uint u[4];
  load_bytes16<16>(w.codes + ulong(i) * 16, u);
  const float s = factor(w.scales, type, i * RUN / group);
  for (uint e = 0; e < RUN; e++) out[e] = s * float(int(u[e / 8] << (28 - 4 * (e % 8))) >> 28);
}

DEVFN void run_q8(Weights w, uint type, uint group, uint i, thread float* out) {
  uint u[8];
  load_bytes16<16>(w.codes + ulong(i) * 32, u);
  load_bytes16<16>(w.codes + ulong(i) * 32 + 16, u + 4);
  const float s = factor(w.scales, type, i * RUN / group);
  for (uint e = 0; e < RUN; e++) out[e] = s * signed_byte(u[e / 4] >> (8 * (e % 4)));
}

// Weight e of a block of 32 nibbles: low halves first.
DEVFN uint nibble(const thread uint* u, uint e) { return u[e % 16 / 4] >> (8 * (e % 4) + 4 * (e / 16)) & 15u; }

DEVFN void run_q4_0(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 18;
  uint u[4];
  load_bytes16<2>(block + 2, u);
  const float d = f16_at(block);
  for (uint e = 0; e < RUN; e++) out[e] = d * (float(nibble(u, e)) - 8.0f);
}

DEVFN void run_q4_1(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 20;
  uint u[4];
  load_bytes16<4>(block + 4, u);
  const float d = f16_at(block), m = f16_at(block + 2);
  for (uint e = 0; e < RUN; e++) out[e] = d * float(nibble(u, e)) + m;
}

DEVFN void run_q5_0(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 22;
  uint u[4];
  load_bytes16<2>(block + 6, u);
  const uint fifth = load_word2(block + 2);
  const float d = f16_at(block);
  for (uint e = 0; e < RUN; e++) out[e] = d * (float(nibble(u, e) | (fifth >> e & 1u) << 4) - 16.0f);
}

DEVFN void run_q5_1(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 24;
  uint u[4];
  load_bytes16<4>(block + 8, u);
  const uint fifth = *(const device uint*)(block + 4);
  const float d = f16_at(block), m = f16_at(block + 2);
  for (uint e = 0; e < RUN; e++) out[e] = d * float(nibble(u, e) | (fifth >> e & 1u) << 4) + m;
}

DEVFN void run_q8_0(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 34;
  uint u[8];
  load_bytes16<2>(block + 2, u);
  load_bytes16<2>(block + 18, u + 4);
  const float d = f16_at(block);
  for (uint e = 0; e < RUN; e++) out[e] = d * signed_byte(u[e / 4] >> (8 * (e % 4)));
}

DEVFN void run_q4_k(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i / 8) * 144;
  const uint j = i % 8, shift = 4 * (j % 2);
  uint u[8];
  load_bytes16<16>(block + 16 + j / 2 * 32, u);
  load_bytes16<16>(block + 32 + j / 2 * 32, u + 4);
  const float s = f16_at(block) * six_bits(block + 4, j, 0), m = f16_at(block + 2) * six_bits(block + 4, j, 1);
  for (uint e = 0; e < RUN; e++) out[e] = s * float(u[e / 4] >> (8 * (e % 4) + shift) & 15u) - m;
}

DEVFN void run_q5_k(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i / 8) * 176;
  const uint j = i % 8, shift = 4 * (j % 2);
  uint u[8], fifth[8];
  load_bytes16<16>(block + 16, fifth);
  load_bytes16<16>(block + 32, fifth + 4);
  load_bytes16<16>(block + 48 + j / 2 * 32, u);
  load_bytes16<16>(block + 64 + j / 2 * 32, u + 4);
  const float s = f16_at(block) * six_bits(block + 4, j, 0), m = f16_at(block + 2) * six_bits(block + 4, j, 1);
  for (uint e = 0; e < RUN; e++) {
    const uint low = u[e / 4] >> (8 * (e % 4) + shift) & 15u;
    out[e] = s * float(low | (fifth[e / 4] >> (8 * (e % 4) + j) & 1u) << 4) - m;
  }
}

DEVFN void run_q6_k(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i / 8) * 210;
  const uint part = i % 8 / 4, p = i % 4;
  const device uchar* low = block + 64 * part + 32 * (p % 2);
  const device uchar* high = block + 128 + 32 * part;
  const float d = f16_at(block + 208);
  const uint scales = load_word2(block + 192 + i % 8 / 2 * 4) >> (16 * (i % 2));
  for (uint j = 0; j < 2; j++) {
    uint u[4], h[4];
    load_bytes16<2>(low + 16 * j, u);
    load_bytes16<2>(high + 16 * j, h);
    const float s = d * signed_byte(scales >> (8 * j));
    for (uint e = 0; e < 16; e++) {
      const uint at = 8 * (e % 4);
      const uint q = (u[e / 4] >> (at + 4 * (p / 2)) & 15u) | (h[e / 4] >> (at + 2 * p) & 3u) << 4;
      out[16 * j + e] = s * (float(q) - 32.0f);
    }
  }
}

DEVFN void decode(Weights w, uint type, uint group, uint i, thread float* out) {
  if (FORMAT == 0) run_affine4(w, type, group, i, out);
  if (FORMAT == 1) run_affine8(w, type, group, i, out);
  if (FORMAT == 2) run_signed4(w, type, group, i, out);
  if (FORMAT == 3) run_q8(w, type, group, i, out);
  if (FORMAT == 4) run_q4_0(w, i, out);
  if (FORMAT == 5) run_q4_1(w, i, out);
  if (FORMAT == 6) run_q5_0(w, i, out);
  if (FORMAT == 7) run_q5_1(w, i, out);
  if (FORMAT == 8) run_q8_0(w, i, out);
  if (FORMAT == 9) run_q4_k(w, i, out);
  if (FORMAT == 10) run_q5_k(w, i, out);
  if (FORMAT == 11) run_q6_k(w, i, out);
}

// Row `at` of a matrix whose rows of codes have `bytes` bytes and whose rows of factors have `groups` elements.
DEVFN Weights row_of(const device uchar* codes, const device uchar* scales, const device uchar* biases, ulong bytes,
                     uint type, uint groups, uint at) {
  const ulong first = ulong(at) * groups * (type == 0 ? 4 : 2);
  Weights w;
  w.codes = codes + at * bytes;
  w.scales = scales + first;
  w.biases = biases + first;
  return w;
}

// The sum of the products of RUN weights with as many elements of a row of x.
template <typename X>
DEVFN float dot_run(const thread float* w, const device X* x) {
  constexpr uint E = 16 / sizeof(X);
  float sum = 0.0f;
#pragma unroll
  for (uint i = 0; i < RUN; i += E) {
    float v[E];
    if (VEC16) {
      load_floats<X, E>(x + i, v);
    } else {
      for (uint e = 0; e < E; e++) v[e] = float(x[i + e]);
    }
    for (uint e = 0; e < E; e++) sum += w[i + e] * v[e];
  }
  return sum;
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
    decode(w, p.factors, p.group, i, v);
#pragma unroll
    for (uint r = 0; r < TILE_M; r++) {
      if (r < rows) acc[r] += dot_run<X>(v, x + r * p.x_rs + i * RUN);
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
               const device uchar* up_biases, device uchar* y, constant QuantArgs& p, uint group, uint sg, uint lane) {
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
    if (lane < at.rows) store(y, p.output, (at.row + lane) * p.y0_rs + at.col, activate(p.activation, a) * b);
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
    decode(row_of(codes, scales, biases, p.row, p.factors, p.n / p.group, id), p.factors, p.group, c.at, v);
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
  glu<float>(x, gate, gate_scales, gate_biases, up, up_scales, up_biases, y, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_glu_f16, 256, IN(half, x, 0), IN(uchar, gate, 1), IN(uchar, gate_scales, 2), IN(uchar, gate_biases, 3),
       IN(uchar, up, 4), IN(uchar, up_scales, 5), IN(uchar, up_biases, 6), IN(uchar, gate_bias, 7),
       IN(uchar, up_bias, 8), IN(uchar, residual, 9), OUT(uchar, y, 10), ARGS(QuantArgs, p, 11)) {
  glu<half>(x, gate, gate_scales, gate_biases, up, up_scales, up_biases, y, p, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(quantized_glu_bf16, 256, IN(bfloat, x, 0), IN(uchar, gate, 1), IN(uchar, gate_scales, 2), IN(uchar, gate_biases, 3),
       IN(uchar, up, 4), IN(uchar, up_scales, 5), IN(uchar, up_biases, 6), IN(uchar, gate_bias, 7),
       IN(uchar, up_bias, 8), IN(uchar, residual, 9), OUT(uchar, y, 10), ARGS(QuantArgs, p, 11)) {
  glu<bfloat>(x, gate, gate_scales, gate_biases, up, up_scales, up_biases, y, p, gpu_tg.x, gpu_sg, gpu_lane);
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
