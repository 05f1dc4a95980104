// norm_qkv_rope: q, k, v = heads of norm(x) W^T + bias
//                norm(x)[i] = x[i] * 1 / sqrt(mean_i(x[i]^2) + eps) * (w[i] + weight_offset)
//                heads of q and k: norm of the head with a weight of their own, if asked for; then pairs of the first `dims`
//                elements turn by position * frequency, as in rope.metal.
//                With a residual x is x[i] + norm(added)[i], rounded, which is stored as well.
//
// Layout     x is [sequences, tokens, k], eight rows at most; q is [sequences, tokens, heads, dim]; k and v are like it, or
//            caches in which a token takes the place of its position (as in cache.metal). Rows have unit stride inside.
// Grid       one threadgroup a head of q, then of k, then of v, for all rows. A simdgroup sums one column after the other for
//            TILE_M rows at a time; then simdgroup r finishes the head of row r.
// Accumulate f32, nothing is rounded before the store. The scale of a row multiplies the sum of its products.
// Access     weights as in prelude/weights.h. VEC16: rows of x, of dense weights and norm weights start on 16 bytes.
// Tail       k is whole runs of 32. Rows past m are neither read nor stored.
// Faults     a position beyond the capacity: kind 2, its token and the position; a page outside of memory: kind 1, its place
//            in the table. Keys and values of such a token are not written.
// variant: VEC16=1 FORMAT=0
// variant: VEC16=0 FORMAT=4
// variant: VEC16=1 FORMAT=9
// variant: VEC16=0 FORMAT=10
// variant: VEC16=1 FORMAT=11
// variant: VEC16=1 FORMAT=12
// variant: VEC16=0 FORMAT=13
// variant: VEC16=1 FORMAT=14
FCONST(bool, VEC16, 0);
// The code: the order of QFormat in the library, then dense f32, f16 and bf16.
FCONST(uint, FORMAT, 1);

// With two threadgroups promised, NVRTC uses the registers that this leaves instead of spilling at fewer.
#undef KERNEL_RESIDENT
#define KERNEL_RESIDENT , 2

using namespace quant;

constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint MAX_ROWS = 8;
constant constexpr uint MAX_DIM = 512;
constant constexpr uint TILE_M = 4;
constant constexpr uint DENSE = 12;

// RUN elements of an array of type T from element `at` on.
template <typename T>
DEVFN void load_run(const device uchar* array, uint at, thread float* out) {
  const device T* p = (const device T*)array + at;
  if (VEC16) {
    load_floats<T, RUN>(p, out);
  } else {
    for (uint e = 0; e < RUN; e++) out[e] = float(p[e]);
  }
}

// Multiplies RUN weights with those of the norm from element `at` on.
template <typename T>
DEVFN void weigh(const device uchar* norm, uint at, float offset, thread float* v) {
  constexpr uint E = 16 / sizeof(T);
  const device T* p = (const device T*)norm + at;
#pragma unroll
  for (uint i = 0; i < RUN; i += E) {
    float g[E];
    if (VEC16) {
      load_floats<T, E>(p + i, g);
    } else {
      for (uint e = 0; e < E; e++) g[e] = float(p[i + e]);
    }
    for (uint e = 0; e < E; e++) v[i + e] *= g[e] + offset;
  }
}

// A row of x, and what is added to it.
template <typename X>
struct Row {
  const device X* x;
  const device X* added;
  const device uchar* weight;
  float scale;
};

// Element `i` of the row.
template <typename X>
DEVFN float element(Row<X> row, constant NormQkvRopeArgs& p, uint i) {
  const float x = float(row.x[i]);
  if (p.residual == 0) return x;
  const float w = factor(row.weight, p.norm_type, i) + p.weight_offset;
  // Explicit, so that every place of use has the same bits.
  return float(X(fma(float(row.added[i]) * row.scale, w, x)));
}

// The row as it is numbered, `scale` that of what is added.
template <typename X>
DEVFN Row<X> row_at(const device X* x, const device X* added, const device uchar* weight, float scale,
                    constant NormQkvRopeArgs& p, uint r) {
  const uint b = r / p.tokens, t = r % p.tokens;
  Row<X> row;
  row.x = x + (b * p.x_b + t * p.x_t);
  row.added = added + (b * p.a_b + t * p.a_t);
  row.weight = weight;
  row.scale = scale;
  return row;
}

// 1 / sqrt of the mean square and eps, by one simdgroup, for n elements that each lane has summed the squares of.
DEVFN float inverse_rms(float squares, uint n, float eps) { return inverse_root(simd_sum(squares) / float(n) + eps); }

// The sums of one row of weights with rows `first` to `first + rows - 1`: lane r holds that of row first + r. `scales` holds
// the scale of each row of what is added.
template <typename X>
DEVFN float column(Weights w, const device X* x, const device uchar* norm, const device X* added,
                   const device uchar* post, const threadgroup float* scales, constant NormQkvRopeArgs& p, uint first,
                   uint rows, uint lane) {
  float acc[TILE_M];
  for (uint r = 0; r < TILE_M; r++) acc[r] = 0.0f;
  // Unrolled, a lane would hold more weights than it has registers.
#pragma unroll 1
  for (uint i = lane; i < p.k / RUN; i += 32) {
    float v[RUN];
    if (FORMAT == DENSE) {
      load_run<float>(w.codes, i * RUN, v);
    } else if (FORMAT == DENSE + 1) {
      load_run<half>(w.codes, i * RUN, v);
    } else if (FORMAT == DENSE + 2) {
      load_run<bfloat>(w.codes, i * RUN, v);
    } else {
      decode(FORMAT, w, p.factors, p.group, i, v);
    }
    if (p.norm_type == 0) {
      weigh<float>(norm, i * RUN, p.weight_offset, v);
    } else {
      weigh<X>(norm, i * RUN, p.weight_offset, v);
    }
#pragma unroll
    for (uint r = 0; r < TILE_M; r++) {
      if (r >= rows) continue;
      const Row<X> row = row_at<X>(x, added, post, scales[first + r], p, first + r);
      if (p.residual == 0) {
        acc[r] += dot_run<X>(VEC16, v, row.x + i * RUN);
      } else {
        for (uint e = 0; e < RUN; e++) acc[r] += v[e] * element<X>(row, p, i * RUN + e);
      }
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

// One of q, k and v.
struct Projection {
  const device uchar* codes;
  const device uchar* scales;
  const device uchar* biases;
  const device uchar* bias;
  device uchar* out;
};

// One head of one row, normalised and turned as the row is stored.
template <typename X>
DEVFN void finish(const threadgroup float* head, const device uchar* weight, bool normed, uint dims, ulong position,
                  const device ulong* frequencies, device X* out, constant NormQkvRopeArgs& p, uint lane) {
  float scale = 1.0f;
  if (normed) {
    float squares = 0.0f;
    for (uint i = lane; i < p.dim; i += 32) squares += head[i] * head[i];
    scale = inverse_rms(squares, p.dim, p.eps);
  }
  const uint pairs = dims / 2;
  for (uint i = lane; i < pairs; i += 32) {
    const uint i0 = p.interleaved != 0 ? 2 * i : i, i1 = p.interleaved != 0 ? 2 * i + 1 : i + pairs;
    float a = head[i0], b = head[i1];
    if (normed) {
      a *= scale * (factor(weight, p.norm_type, i0) + p.weight_offset);
      b *= scale * (factor(weight, p.norm_type, i1) + p.weight_offset);
    }
    rotate(a, b, position * frequencies[i]);
    out[i0] = X(a);
    out[i1] = X(b);
  }
  for (uint i = dims + lane; i < p.dim; i += 32) {
    out[i] = X(normed ? head[i] * (scale * (factor(weight, p.norm_type, i) + p.weight_offset)) : head[i]);
  }
}

template <typename X>
DEVFN void heads(const device X* x, const device uchar* norm, const device X* added, const device uchar* post,
                 device X* sum_out, Projection q, Projection k, Projection v, const device uchar* q_norm,
                 const device uchar* k_norm, const device ulong* frequencies, const device uint* starts,
                 const device uint* table, constant NormQkvRopeArgs& p, threadgroup float* head,
                 threadgroup float* scales, threadgroup float* added_scales, STATUS_PARAMS, uint group, uint sg,
                 uint lane) {
  GRID_RELEASE;
  GRID_WAIT;
  if (sg < p.m) {
    float scale = 0.0f;
    Row<X> row = row_at<X>(x, added, post, 0.0f, p, sg);
    if (p.residual != 0) {
      float squares = 0.0f;
      for (uint i = lane; i < p.k; i += 32) squares += float(row.added[i]) * float(row.added[i]);
      scale = inverse_rms(squares, p.k, p.eps);
    }
    row.scale = scale;
    float squares = 0.0f;
    for (uint i = lane; i < p.k; i += 32) {
      const float e = element<X>(row, p, i);
      squares += e * e;
    }
    const float own = inverse_rms(squares, p.k, p.eps);
    if (lane == 0) {
      scales[sg] = own;
      added_scales[sg] = scale;
    }
    if (p.residual != 0 && group == 0) {
      device X* to = sum_out + (sg / p.tokens * p.s_b + sg % p.tokens * p.s_t);
      for (uint i = lane; i < p.k; i += 32) to[i] = X(element<X>(row, p, i));
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint at = group; at < p.heads + 2 * p.kv_heads; at += p.groups) {
    const uint part = at < p.heads ? 0 : at < p.heads + p.kv_heads ? 1 : 2;
    const uint h = at - (part == 0 ? 0 : part == 1 ? p.heads : p.heads + p.kv_heads);
    const Projection o = part == 0 ? q : part == 1 ? k : v;
    for (uint c = sg; c < p.dim; c += SIMDGROUPS) {
      const uint col = h * p.dim + c;
      const Weights w = row_of(o.codes, o.scales, o.biases, p.row, p.factors, p.k / p.group, col);
      const float bias = p.bias == 0 ? 0.0f : factor(o.bias, p.bias - 1, col);
#pragma unroll 1
      for (uint first = 0; first < p.m; first += TILE_M) {
        const uint rows = min(TILE_M, p.m - first);
        const float sum = column<X>(w, x, norm, added, post, added_scales, p, first, rows, lane);
        if (lane < rows) head[(first + lane) * p.dim + c] = sum * scales[first + lane] + bias;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg < p.m) {
      const uint b = sg / p.tokens, t = sg % p.tokens;
      const ulong position = (p.start_known != 0 ? p.start : ulong(starts[b * p.start_s])) + t;
      const threadgroup float* mine = head + sg * p.dim;
      if (part == 0) {
        device X* out = (device X*)o.out + (b * p.q_b + t * p.q_t + h * p.q_h);
        finish<X>(mine, q_norm, p.head_norm != 0, p.dims, position, frequencies, out, p, lane);
      } else {
        KvPlace to = {b, t, 0, 0, 0};
        if (p.cached != 0) to = kv_place(b, t, position, table, p);
        if (to.fault != 0) {
          if (part == 1 && h == 0 && lane == 0) FAULT(to.fault, to.index, to.value);
        } else if (part == 1) {
          device X* out = (device X*)o.out + (to.outer * p.k_b + to.slot * p.k_t + h * p.k_h);
          finish<X>(mine, k_norm, p.head_norm != 0, p.dims, position, frequencies, out, p, lane);
        } else {
          device X* out = (device X*)o.out + (to.outer * p.v_b + to.slot * p.v_t + h * p.v_h);
          finish<X>(mine, k_norm, false, 0, position, frequencies, out, p, lane);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

KERNEL(norm_qkv_rope_f32, 256, IN(float, x, 0), IN(uchar, norm, 1), IN(float, added, 2), IN(uchar, post, 3),
       IN(uchar, wq, 4), IN(uchar, sq, 5), IN(uchar, zq, 6), IN(uchar, wk, 7), IN(uchar, sk, 8), IN(uchar, zk, 9),
       IN(uchar, wv, 10), IN(uchar, sv, 11), IN(uchar, zv, 12), IN(uchar, bq, 13), IN(uchar, bk, 14), IN(uchar, bv, 15),
       IN(uchar, q_norm, 16), IN(uchar, k_norm, 17), IN(ulong, frequencies, 18), IN(uint, starts, 19),
       IN(uint, table, 20), OUT(uchar, yq, 21), OUT(uchar, yk, 22), OUT(uchar, yv, 23), OUT(float, sum, 24),
       ARGS(NormQkvRopeArgs, p, 25), STATUS(26)) {
  TG(float, head, MAX_ROWS * MAX_DIM);
  TG(float, scales, MAX_ROWS);
  TG(float, added_scales, MAX_ROWS);
  const Projection q = {wq, sq, zq, bq, yq}, k = {wk, sk, zk, bk, yk}, v = {wv, sv, zv, bv, yv};
  heads<float>(x, norm, added, post, sum, q, k, v, q_norm, k_norm, frequencies, starts, table, p, head, scales,
         added_scales, STATUS_PASS, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(norm_qkv_rope_f16, 256, IN(half, x, 0), IN(uchar, norm, 1), IN(half, added, 2), IN(uchar, post, 3),
       IN(uchar, wq, 4), IN(uchar, sq, 5), IN(uchar, zq, 6), IN(uchar, wk, 7), IN(uchar, sk, 8), IN(uchar, zk, 9),
       IN(uchar, wv, 10), IN(uchar, sv, 11), IN(uchar, zv, 12), IN(uchar, bq, 13), IN(uchar, bk, 14), IN(uchar, bv, 15),
       IN(uchar, q_norm, 16), IN(uchar, k_norm, 17), IN(ulong, frequencies, 18), IN(uint, starts, 19),
       IN(uint, table, 20), OUT(uchar, yq, 21), OUT(uchar, yk, 22), OUT(uchar, yv, 23), OUT(half, sum, 24),
       ARGS(NormQkvRopeArgs, p, 25), STATUS(26)) {
  TG(float, head, MAX_ROWS * MAX_DIM);
  TG(float, scales, MAX_ROWS);
  TG(float, added_scales, MAX_ROWS);
  const Projection q = {wq, sq, zq, bq, yq}, k = {wk, sk, zk, bk, yk}, v = {wv, sv, zv, bv, yv};
  heads<half>(x, norm, added, post, sum, q, k, v, q_norm, k_norm, frequencies, starts, table, p, head, scales,
         added_scales, STATUS_PASS, gpu_tg.x, gpu_sg, gpu_lane);
}

KERNEL(norm_qkv_rope_bf16, 256, IN(bfloat, x, 0), IN(uchar, norm, 1), IN(bfloat, added, 2), IN(uchar, post, 3),
       IN(uchar, wq, 4), IN(uchar, sq, 5), IN(uchar, zq, 6), IN(uchar, wk, 7), IN(uchar, sk, 8), IN(uchar, zk, 9),
       IN(uchar, wv, 10), IN(uchar, sv, 11), IN(uchar, zv, 12), IN(uchar, bq, 13), IN(uchar, bk, 14), IN(uchar, bv, 15),
       IN(uchar, q_norm, 16), IN(uchar, k_norm, 17), IN(ulong, frequencies, 18), IN(uint, starts, 19),
       IN(uint, table, 20), OUT(uchar, yq, 21), OUT(uchar, yk, 22), OUT(uchar, yv, 23), OUT(bfloat, sum, 24),
       ARGS(NormQkvRopeArgs, p, 25), STATUS(26)) {
  TG(float, head, MAX_ROWS * MAX_DIM);
  TG(float, scales, MAX_ROWS);
  TG(float, added_scales, MAX_ROWS);
  const Projection q = {wq, sq, zq, bq, yq}, k = {wk, sk, zk, bk, yk}, v = {wv, sv, zv, bv, yv};
  heads<bfloat>(x, norm, added, post, sum, q, k, v, q_norm, k_norm, frequencies, starts, table, p, head, scales,
         added_scales, STATUS_PASS, gpu_tg.x, gpu_sg, gpu_lane);
}
