// rms_norm:      y[r, i] = norm(x[r])[i]
// add_rms_norm:  h[r, i] = (x[r, i] + res[r, i]) * scale, rounded;  y[r, i] = norm(h[r])[i]
// rms_norm_add:  y[r, i] = (norm(x[r])[i] + res[r, i]) * scale
// rms_norm_add_rms_norm:  h[r, i] = (norm(x[r])[i] + res[r, i]) * scale, rounded;  y[r, i] = norm(h[r])[i] with w2
//                norm(x)[i] = x[i] * 1 / sqrt(mean_i(x[i]^2) + eps) * (w[i] + weight_offset)
// layer_norm:    y[r, i] = (x[r, i] - mean_i x[r, i]) * 1 / sqrt(var_i(x[r, i]) + eps) * w[i] + bias[i]
// qk_norm:       norm of each row of q and of k, with a weight for each of the two
//
// Layout      rows of n elements, unit stride inside; three row strides for each operand (see RmsNormArgs); w is [n].
// Grid        `groups` threadgroups of 256; group g walks rows g, g + groups, ..  One row is one threadgroup's work;
//             in qk_norm, whose rows are short, one simdgroup's.
// Accumulate  f32: per thread in index order, then lanes by 16 8 4 2 1, then the eight simdgroups in order. The order
//             depends on n alone, so a row's result does not depend on the grid.
// Access      VEC16: all rows and w start on 16 bytes, and 16-byte accesses are used; else one element.
// Tail        VEC16: the last n % (16 / sizeof(x)) elements are done one by one by the first threads.
// Numbers     plain f32: the sum of squares overflows to infinity, and y becomes 0, when |x| exceeds about
//             sqrt(FLT_MAX / n) (2.9e17 at n = 4096). NaN and infinity in a row give a NaN row, or zeros beside NaN.
//             1 / sqrt is within 1 ulp (see inverse_root in prelude/rows.h), the mean within 1.5 ulp, halved by the root. layer_norm adds
//             up x - x[0]: large numbers close together lose nothing, and the variance has a pass of its own.
//
// In place is allowed (y or h is x or res, same strides), so inputs are IN_ALIASED: on CUDA a __restrict__ pointer would
// allow the second read of x to be served by the read-only cache after y was written. Each element is read again only by
// the thread that overwrites it, before it does so, and the barrier separates the whole first pass from the first store
// of y.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
// 16-byte vectors of x that a thread keeps in registers between the passes; rows longer than
// THREADS * KEEP vectors (8192 f16, 4096 f32) read their remainder twice.
constant constexpr uint KEEP = 4;

// Sum over the threadgroup, the same bits in every thread. `part` has SIMDGROUPS slots that nobody reads any more.
DEVFN float group_sum(float v, threadgroup float* part, uint lane, uint sg) {
  v = simd_sum(v);
  if (lane == 0) part[sg] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < SIMDGROUPS; i++) sum += part[i];
  return sum;
}

template <typename X>
DEVFN float square_sum16(uint4 u) {
  constexpr uint E = 16 / sizeof(X);
  float v[E];
  unpack16<X>(u, v);
  float sum = 0.0f;
  for (uint e = 0; e < E; e++) sum += v[e] * v[e];
  return sum;
}

// (a + b) * scale, rounded.
template <typename X>
DEVFN uint4 sum16(uint4 a, uint4 b, float scale) {
  constexpr uint E = 16 / sizeof(X);
  float v[E], g[E];
  unpack16<X>(a, v);
  unpack16<X>(b, g);
  for (uint e = 0; e < E; e++) v[e] = (v[e] + g[e]) * scale;
  return pack16<X>(v);
}

// Where a residual is added: nowhere, to x, to what is normalised, to that and the sum is normalised again.
constant constexpr uint NONE = 0, BEFORE = 1, AFTER = 2, BETWEEN = 3;

// One element of y from one of x (or h).
template <typename X, typename W, uint RESIDUAL>
DEVFN X finish(X x, W w, const device X* res, float scale, constant RmsNormArgs& p, float sum_scale) {
  float y = float(x) * scale * (float(w) + p.weight_offset);
  if constexpr (RESIDUAL == AFTER) y = (y + float(*res)) * sum_scale;
  return X(y);
}

template <typename X, typename W, uint RESIDUAL>
DEVFN uint4 finish16(uint4 u, const device W* w, const device X* res, float scale, constant RmsNormArgs& p,
                     float sum_scale) {
  constexpr uint E = 16 / sizeof(X);
  float v[E], g[E];
  unpack16<X>(u, v);
  load_floats<W, E>(w, g);
  for (uint e = 0; e < E; e++) v[e] = v[e] * scale * (g[e] + p.weight_offset);
  if constexpr (RESIDUAL == AFTER) {
    load_floats<X, E>(res, g);
    for (uint e = 0; e < E; e++) v[e] = (v[e] + g[e]) * sum_scale;
  }
  return pack16<X>(v);
}

// One row, element by element. h is y where it is not another output, and w2 w where there is no second norm.
template <typename X, typename W, uint RESIDUAL>
DEVFN void rms_row_scalar(const device X* x, const device W* w, const device W* w2, const device X* res, device X* h,
                          device X* y, constant RmsNormArgs& p, float inv_n, float sum_scale, threadgroup float* part, uint tid,
                          uint lane, uint sg) {
  float sum = 0.0f;
  for (uint i = tid; i < p.n; i += THREADS) {
    X v = x[i];
    if constexpr (RESIDUAL == BEFORE) h[i] = v = X((float(v) + float(res[i])) * sum_scale);
    sum += float(v) * float(v);
  }
  sum = group_sum(sum, part, lane, sg);
  float scale = inverse_root(sum * inv_n + p.eps);
  if constexpr (RESIDUAL == BETWEEN) {
    sum = 0.0f;
    for (uint i = tid; i < p.n; i += THREADS) {
      const X v = h[i] = finish<X, W, AFTER>(x[i], w[i], res + i, scale, p, sum_scale);
      sum += float(v) * float(v);
    }
    sum = group_sum(sum, part + SIMDGROUPS, lane, sg);
    scale = inverse_root(sum * inv_n + p.eps);
  }
  const device X* from = RESIDUAL == BEFORE || RESIDUAL == BETWEEN ? (const device X*)h : x;
  for (uint i = tid; i < p.n; i += THREADS) {
    y[i] = finish<X, W, RESIDUAL>(from[i], w2[i], res + i, scale, p, sum_scale);
  }
}

// One row in 16-byte vectors; the first KEEP of each thread are read from memory once.
template <typename X, typename W, uint RESIDUAL>
DEVFN void rms_row_vector(const device X* x, const device W* w, const device W* w2, const device X* res, device X* h,
                          device X* y, constant RmsNormArgs& p, float inv_n, float sum_scale, threadgroup float* part, uint tid,
                          uint lane, uint sg) {
  constexpr uint E = 16 / sizeof(X);
  const uint vectors = p.n / E;
  const device uint4* xv = (const device uint4*)x;
  const device uint4* rv = (const device uint4*)res;
  device uint4* hv = (device uint4*)h;
  device uint4* yv = (device uint4*)y;
  const uint tail = vectors * E + tid;

  uint4 kept[KEEP];
#pragma unroll
  for (uint j = 0; j < KEEP; j++) kept[j] = tid + j * THREADS < vectors ? xv[tid + j * THREADS] : uint4(0u);
  if constexpr (RESIDUAL == BEFORE) {
#pragma unroll
    for (uint j = 0; j < KEEP; j++) {
      const uint i = tid + j * THREADS;
      if (i < vectors) hv[i] = kept[j] = sum16<X>(kept[j], rv[i], sum_scale);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (uint j = 0; j < KEEP; j++) sum += square_sum16<X>(kept[j]);
#pragma unroll 2
  for (uint i = tid + KEEP * THREADS; i < vectors; i += THREADS) {
    uint4 v = xv[i];
    if constexpr (RESIDUAL == BEFORE) hv[i] = v = sum16<X>(v, rv[i], sum_scale);
    sum += square_sum16<X>(v);
  }
  if (tail < p.n) {
    X v = x[tail];
    if constexpr (RESIDUAL == BEFORE) h[tail] = v = X((float(v) + float(res[tail])) * sum_scale);
    sum += float(v) * float(v);
  }
  sum = group_sum(sum, part, lane, sg);
  float scale = inverse_root(sum * inv_n + p.eps);

  if constexpr (RESIDUAL == BETWEEN) {
    sum = 0.0f;
#pragma unroll
    for (uint j = 0; j < KEEP; j++) {
      const uint i = tid + j * THREADS;
      if (i < vectors) hv[i] = kept[j] = finish16<X, W, AFTER>(kept[j], w + i * E, res + i * E, scale, p, sum_scale);
      sum += square_sum16<X>(kept[j]);
    }
#pragma unroll 1
    for (uint i = tid + KEEP * THREADS; i < vectors; i += THREADS) {
      const uint4 v = hv[i] = finish16<X, W, AFTER>(xv[i], w + i * E, res + i * E, scale, p, sum_scale);
      sum += square_sum16<X>(v);
    }
    if (tail < p.n) {
      const X v = h[tail] = finish<X, W, AFTER>(x[tail], w[tail], res + tail, scale, p, sum_scale);
      sum += float(v) * float(v);
    }
    sum = group_sum(sum, part + SIMDGROUPS, lane, sg);
    scale = inverse_root(sum * inv_n + p.eps);
  }

#pragma unroll
  for (uint j = 0; j < KEEP; j++) {
    const uint i = tid + j * THREADS;
    if (i < vectors) yv[i] = finish16<X, W, RESIDUAL>(kept[j], w2 + i * E, res + i * E, scale, p, sum_scale);
  }
  const device X* from = RESIDUAL == BEFORE || RESIDUAL == BETWEEN ? (const device X*)h : x;
  const device uint4* again = (const device uint4*)from;
#pragma unroll 2
  for (uint i = tid + KEEP * THREADS; i < vectors; i += THREADS)
    yv[i] = finish16<X, W, RESIDUAL>(again[i], w2 + i * E, res + i * E, scale, p, sum_scale);
  if (tail < p.n) y[tail] = finish<X, W, RESIDUAL>(from[tail], w2[tail], res + tail, scale, p, sum_scale);
}

// `part` has two halves used in turn, so that one barrier a row is enough: a slot is written again only after every
// thread has passed the barrier of the row between. Of BETWEEN each row takes both halves, one for each of its sums.
template <typename X, typename W, uint RESIDUAL>
DEVFN void rms_rows(const device X* x, const device W* w, const device W* w2, const device X* res,
                    const device float* layer_scale, device X* h, device X* y, constant RmsNormArgs& p, threadgroup float* part, uint group, uint tid,
                    uint lane, uint sg) {
  GRID_RELEASE;
  GRID_WAIT;
  const float inv_n = 1.0f / float(p.n);
  float sum_scale = 1.0f;
  if constexpr (RESIDUAL != NONE) sum_scale = p.scale_from_memory != 0 ? *layer_scale : p.scale;
  uint half_used = 0;
  for (ulong r = group; r < p.rows; r += p.groups) {
    const uint row = uint(r);
    const device X* xr = x + row_offset(row, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    const device X* rr = res + row_offset(row, p.r1, p.r2, p.r_s0, p.r_s1, p.r_s2);
    device X* hr = h + row_offset(row, p.r1, p.r2, p.h_s0, p.h_s1, p.h_s2);
    device X* yr = y + row_offset(row, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2);
    threadgroup float* slots = part + half_used * SIMDGROUPS;
    if (VEC16) {
      rms_row_vector<X, W, RESIDUAL>(xr, w, w2, rr, hr, yr, p, inv_n, sum_scale, slots, tid, lane, sg);
    } else {
      rms_row_scalar<X, W, RESIDUAL>(xr, w, w2, rr, hr, yr, p, inv_n, sum_scale, slots, tid, lane, sg);
    }
    if constexpr (RESIDUAL != BETWEEN) half_used ^= 1;
  }
}

// Up to a vector of elements from index i as floats, less `shift`; 0 beyond the row.
template <typename X>
DEVFN void load_shifted(const device X* x, uint i, uint n, float shift, thread float* v) {
  constexpr uint E = 16 / sizeof(X);
  const uint width = VEC16 ? E : 1;
  if (VEC16 && i + E <= n) {
    load_floats<X, E>(x + i, v);
    for (uint e = 0; e < E; e++) v[e] -= shift;
  } else {
    for (uint e = 0; e < width; e++) v[e] = i + e < n ? float(x[i + e]) - shift : 0.0f;
  }
}

// Sum of the squared distances from the mean of up to a vector from index i.
template <typename X>
DEVFN float square_distances(const thread float* v, uint i, uint n, float mean) {
  const uint width = VEC16 ? 16 / sizeof(X) : 1;
  float sum = 0.0f;
  for (uint e = 0; e < width; e++) sum += i + e < n ? (v[e] - mean) * (v[e] - mean) : 0.0f;
  return sum;
}

template <typename X, typename W>
DEVFN void store_normal(device X* y, const device W* w, const device W* bias, uint i, thread float* v, float mean,
                        float scale, constant LayerNormArgs& p) {
  constexpr uint E = 16 / sizeof(X);
  const uint width = VEC16 ? E : 1;
  if (VEC16 && i + E <= p.n) {
    float g[E];
    load_floats<W, E>(w + i, g);
    for (uint e = 0; e < E; e++) v[e] = (v[e] - mean) * scale * g[e];
    if (p.bias != 0) {
      load_floats<W, E>(bias + i, g);
      for (uint e = 0; e < E; e++) v[e] += g[e];
    }
    store_floats<X, E>(y + i, v);
  } else {
    for (uint e = 0; e < width; e++) {
      if (i + e < p.n) {
        const float t = (v[e] - mean) * scale * float(w[i + e]);
        y[i + e] = X(p.bias != 0 ? t + float(bias[i + e]) : t);
      }
    }
  }
}

// `part` has two sets of slots, for means and for variances: one is written again only after every thread has passed the
// barrier of the other.
template <typename X, typename W>
DEVFN void layer_rows(const device X* x, const device W* w, const device W* bias, device X* y,
                      constant LayerNormArgs& p, threadgroup float* part, uint group, uint tid, uint lane, uint sg) {
  constexpr uint E = 16 / sizeof(X);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  const uint step = THREADS * width;
  const float inv_n = 1.0f / float(p.n);
  for (ulong r = group; r < p.rows; r += p.groups) {
    const device X* xr = x + row_offset(uint(r), p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    device X* yr = y + row_offset(uint(r), p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2);
    const float shift = float(xr[0]);
    float v[E];
    float sum = 0.0f;
    for (uint i = tid * width; i < p.n; i += step) {
      load_shifted<X>(xr, i, p.n, shift, v);
      for (uint e = 0; e < width; e++) sum += v[e];
    }
    const float mean = group_sum(sum, part, lane, sg) * inv_n;
    sum = 0.0f;
    for (uint i = tid * width; i < p.n; i += step) {
      load_shifted<X>(xr, i, p.n, shift, v);
      sum += square_distances<X>(v, i, p.n, mean);
    }
    const float scale = inverse_root(group_sum(sum, part + SIMDGROUPS, lane, sg) * inv_n + p.eps);
    for (uint i = tid * width; i < p.n; i += step) {
      load_shifted<X>(xr, i, p.n, shift, v);
      store_normal<X, W>(yr, w, bias, i, v, mean, scale, p);
    }
  }
}

template <typename X, typename W>
DEVFN void qk_rows(const device X* q, const device X* k, const device W* qw, const device W* kw, device X* qo,
                   device X* ko, constant QkNormArgs& p, uint group, uint lane, uint sg) {
  constexpr uint E = 16 / sizeof(X);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  const float inv_n = 1.0f / float(p.n);
  for (ulong r = ulong(group) * SIMDGROUPS + sg; r < p.rows; r += ulong(p.groups) * SIMDGROUPS) {
    const bool of_q = r < p.q_rows;
    const uint row = uint(of_q ? r : r - p.q_rows);
    const device X* x = of_q ? q + row_offset(row, p.q_r1, p.q_r2, p.q_s0, p.q_s1, p.q_s2)
                             : k + row_offset(row, p.k_r1, p.k_r2, p.k_s0, p.k_s1, p.k_s2);
    device X* y = of_q ? qo + row_offset(row, p.q_r1, p.q_r2, p.o_s0, p.o_s1, p.o_s2)
                       : ko + row_offset(row, p.k_r1, p.k_r2, p.p_s0, p.p_s1, p.p_s2);
    const device W* w = of_q ? qw : kw;
    float v[E];
    float sum = 0.0f;
    for (uint i = lane * width; i < p.n; i += 32 * width) {
      load_shifted<X>(x, i, p.n, 0.0f, v);
      for (uint e = 0; e < width; e++) sum += v[e] * v[e];
    }
    const float scale = inverse_root(simd_sum(sum) * inv_n + p.eps);
    for (uint i = lane * width; i < p.n; i += 32 * width) {
      if (VEC16 && i + E <= p.n) {
        float g[E];
        load_floats<X, E>(x + i, v);
        load_floats<W, E>(w + i, g);
        for (uint e = 0; e < E; e++) v[e] = v[e] * scale * (g[e] + p.weight_offset);
        store_floats<X, E>(y + i, v);
      } else {
        for (uint e = 0; e < width; e++) {
          if (i + e < p.n) y[i + e] = X(float(x[i + e]) * scale * (float(w[i + e]) + p.weight_offset));
        }
      }
    }
  }
}

KERNEL(rms_norm_f32_f32, 256, IN_ALIASED(float, x, 0), IN(float, w, 1), OUT(float, y, 2), ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<float, float, NONE>(x, w, w, x, (const device float*)x, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_f16_f16, 256, IN_ALIASED(half, x, 0), IN(half, w, 1), OUT(half, y, 2), ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, half, NONE>(x, w, w, x, (const device float*)x, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_bf16_bf16, 256, IN_ALIASED(bfloat, x, 0), IN(bfloat, w, 1), OUT(bfloat, y, 2), ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, bfloat, NONE>(x, w, w, x, (const device float*)x, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_f16_f32, 256, IN_ALIASED(half, x, 0), IN(float, w, 1), OUT(half, y, 2), ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, float, NONE>(x, w, w, x, (const device float*)x, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_bf16_f32, 256, IN_ALIASED(bfloat, x, 0), IN(float, w, 1), OUT(bfloat, y, 2), ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, float, NONE>(x, w, w, x, (const device float*)x, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(add_rms_norm_f32_f32, 256, IN_ALIASED(float, x, 0), IN(float, w, 1), IN_ALIASED(float, res, 2),
       IN_ALIASED(float, scale, 3), OUT(float, h, 4), OUT(float, y, 5), ARGS(RmsNormArgs, p, 6)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<float, float, BEFORE>(x, w, w, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(add_rms_norm_f16_f16, 256, IN_ALIASED(half, x, 0), IN(half, w, 1), IN_ALIASED(half, res, 2),
       IN_ALIASED(float, scale, 3), OUT(half, h, 4), OUT(half, y, 5), ARGS(RmsNormArgs, p, 6)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, half, BEFORE>(x, w, w, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(add_rms_norm_bf16_bf16, 256, IN_ALIASED(bfloat, x, 0), IN(bfloat, w, 1), IN_ALIASED(bfloat, res, 2),
       IN_ALIASED(float, scale, 3), OUT(bfloat, h, 4), OUT(bfloat, y, 5), ARGS(RmsNormArgs, p, 6)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, bfloat, BEFORE>(x, w, w, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(add_rms_norm_f16_f32, 256, IN_ALIASED(half, x, 0), IN(float, w, 1), IN_ALIASED(half, res, 2),
       IN_ALIASED(float, scale, 3), OUT(half, h, 4), OUT(half, y, 5), ARGS(RmsNormArgs, p, 6)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, float, BEFORE>(x, w, w, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(add_rms_norm_bf16_f32, 256, IN_ALIASED(bfloat, x, 0), IN(float, w, 1), IN_ALIASED(bfloat, res, 2),
       IN_ALIASED(float, scale, 3), OUT(bfloat, h, 4), OUT(bfloat, y, 5), ARGS(RmsNormArgs, p, 6)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, float, BEFORE>(x, w, w, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_f32_f32, 256, IN_ALIASED(float, x, 0), IN(float, w, 1), IN_ALIASED(float, res, 2),
       IN_ALIASED(float, scale, 3), OUT(float, y, 4), ARGS(RmsNormArgs, p, 5)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<float, float, AFTER>(x, w, w, res, scale, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_f16_f16, 256, IN_ALIASED(half, x, 0), IN(half, w, 1), IN_ALIASED(half, res, 2),
       IN_ALIASED(float, scale, 3), OUT(half, y, 4), ARGS(RmsNormArgs, p, 5)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, half, AFTER>(x, w, w, res, scale, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_bf16_bf16, 256, IN_ALIASED(bfloat, x, 0), IN(bfloat, w, 1), IN_ALIASED(bfloat, res, 2),
       IN_ALIASED(float, scale, 3), OUT(bfloat, y, 4), ARGS(RmsNormArgs, p, 5)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, bfloat, AFTER>(x, w, w, res, scale, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_f16_f32, 256, IN_ALIASED(half, x, 0), IN(float, w, 1), IN_ALIASED(half, res, 2),
       IN_ALIASED(float, scale, 3), OUT(half, y, 4), ARGS(RmsNormArgs, p, 5)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, float, AFTER>(x, w, w, res, scale, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_bf16_f32, 256, IN_ALIASED(bfloat, x, 0), IN(float, w, 1), IN_ALIASED(bfloat, res, 2),
       IN_ALIASED(float, scale, 3), OUT(bfloat, y, 4), ARGS(RmsNormArgs, p, 5)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, float, AFTER>(x, w, w, res, scale, y, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_rms_norm_f32_f32, 256, IN_ALIASED(float, x, 0), IN(float, w, 1), IN_ALIASED(float, res, 2),
       IN_ALIASED(float, scale, 3), IN(float, w2, 4), OUT(float, h, 5), OUT(float, y, 6), ARGS(RmsNormArgs, p, 7)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<float, float, BETWEEN>(x, w, w2, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_rms_norm_f16_f16, 256, IN_ALIASED(half, x, 0), IN(half, w, 1), IN_ALIASED(half, res, 2),
       IN_ALIASED(float, scale, 3), IN(half, w2, 4), OUT(half, h, 5), OUT(half, y, 6), ARGS(RmsNormArgs, p, 7)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, half, BETWEEN>(x, w, w2, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_rms_norm_bf16_bf16, 256, IN_ALIASED(bfloat, x, 0), IN(bfloat, w, 1), IN_ALIASED(bfloat, res, 2),
       IN_ALIASED(float, scale, 3), IN(bfloat, w2, 4), OUT(bfloat, h, 5), OUT(bfloat, y, 6), ARGS(RmsNormArgs, p, 7)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, bfloat, BETWEEN>(x, w, w2, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_rms_norm_f16_f32, 256, IN_ALIASED(half, x, 0), IN(float, w, 1), IN_ALIASED(half, res, 2),
       IN_ALIASED(float, scale, 3), IN(float, w2, 4), OUT(half, h, 5), OUT(half, y, 6), ARGS(RmsNormArgs, p, 7)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, float, BETWEEN>(x, w, w2, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_add_rms_norm_bf16_f32, 256, IN_ALIASED(bfloat, x, 0), IN(float, w, 1), IN_ALIASED(bfloat, res, 2),
       IN_ALIASED(float, scale, 3), IN(float, w2, 4), OUT(bfloat, h, 5), OUT(bfloat, y, 6), ARGS(RmsNormArgs, p, 7)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, float, BETWEEN>(x, w, w2, res, scale, h, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(layer_norm_f32_f32, 256, IN_ALIASED(float, x, 0), IN(float, w, 1), IN(float, bias, 2), OUT(float, y, 3),
       ARGS(LayerNormArgs, p, 4)) {
  TG(float, part, 2 * SIMDGROUPS);
  layer_rows<float, float>(x, w, bias, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(layer_norm_f16_f16, 256, IN_ALIASED(half, x, 0), IN(half, w, 1), IN(half, bias, 2), OUT(half, y, 3),
       ARGS(LayerNormArgs, p, 4)) {
  TG(float, part, 2 * SIMDGROUPS);
  layer_rows<half, half>(x, w, bias, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(layer_norm_bf16_bf16, 256, IN_ALIASED(bfloat, x, 0), IN(bfloat, w, 1), IN(bfloat, bias, 2), OUT(bfloat, y, 3),
       ARGS(LayerNormArgs, p, 4)) {
  TG(float, part, 2 * SIMDGROUPS);
  layer_rows<bfloat, bfloat>(x, w, bias, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(layer_norm_f16_f32, 256, IN_ALIASED(half, x, 0), IN(float, w, 1), IN(float, bias, 2), OUT(half, y, 3),
       ARGS(LayerNormArgs, p, 4)) {
  TG(float, part, 2 * SIMDGROUPS);
  layer_rows<half, float>(x, w, bias, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(layer_norm_bf16_f32, 256, IN_ALIASED(bfloat, x, 0), IN(float, w, 1), IN(float, bias, 2), OUT(bfloat, y, 3),
       ARGS(LayerNormArgs, p, 4)) {
  TG(float, part, 2 * SIMDGROUPS);
  layer_rows<bfloat, float>(x, w, bias, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(qk_norm_f32_f32, 256, IN_ALIASED(float, q, 0), IN_ALIASED(float, k, 1), IN(float, qw, 2), IN(float, kw, 3),
       OUT(float, qo, 4), OUT(float, ko, 5), ARGS(QkNormArgs, p, 6)) {
  qk_rows<float, float>(q, k, qw, kw, qo, ko, p, gpu_tg.x, gpu_lane, gpu_sg);
}

KERNEL(qk_norm_f16_f16, 256, IN_ALIASED(half, q, 0), IN_ALIASED(half, k, 1), IN(half, qw, 2), IN(half, kw, 3),
       OUT(half, qo, 4), OUT(half, ko, 5), ARGS(QkNormArgs, p, 6)) {
  qk_rows<half, half>(q, k, qw, kw, qo, ko, p, gpu_tg.x, gpu_lane, gpu_sg);
}

KERNEL(qk_norm_bf16_bf16, 256, IN_ALIASED(bfloat, q, 0), IN_ALIASED(bfloat, k, 1), IN(bfloat, qw, 2), IN(bfloat, kw, 3),
       OUT(bfloat, qo, 4), OUT(bfloat, ko, 5), ARGS(QkNormArgs, p, 6)) {
  qk_rows<bfloat, bfloat>(q, k, qw, kw, qo, ko, p, gpu_tg.x, gpu_lane, gpu_sg);
}

KERNEL(qk_norm_f16_f32, 256, IN_ALIASED(half, q, 0), IN_ALIASED(half, k, 1), IN(float, qw, 2), IN(float, kw, 3),
       OUT(half, qo, 4), OUT(half, ko, 5), ARGS(QkNormArgs, p, 6)) {
  qk_rows<half, float>(q, k, qw, kw, qo, ko, p, gpu_tg.x, gpu_lane, gpu_sg);
}

KERNEL(qk_norm_bf16_f32, 256, IN_ALIASED(bfloat, q, 0), IN_ALIASED(bfloat, k, 1), IN(float, qw, 2), IN(float, kw, 3),
       OUT(bfloat, qo, 4), OUT(bfloat, ko, 5), ARGS(QkNormArgs, p, 6)) {
  qk_rows<bfloat, float>(q, k, qw, kw, qo, ko, p, gpu_tg.x, gpu_lane, gpu_sg);
}
