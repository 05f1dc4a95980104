// rms_norm:  y[r, i] = x[r, i] * 1 / sqrt(mean_i(x[r, i]^2) + eps) * (w[i] + weight_offset)
//
// Layout      rows of n elements, unit stride inside; three row strides for x and y (see RmsNormArgs); w is [n].
// Grid        `groups` threadgroups of 256; group g walks rows g, g + groups, ..  One row is one threadgroup's work.
// Accumulate  f32: per thread in index order, then lanes by 16 8 4 2 1, then the eight simdgroups in order. The order
//             depends on n alone, so a row's result does not depend on the grid.
// Access      VEC16: all rows of x and y and w start on 16 bytes, and 16-byte accesses are used; else one element.
// Tail        VEC16: the last n % (16 / sizeof(x)) elements are done one by one by the first threads.
// Numbers     plain f32: the sum of squares overflows to infinity, and y becomes 0, when |x| exceeds about
//             sqrt(FLT_MAX / n) (2.9e17 at n = 4096). NaN and infinity in a row give a NaN row, or zeros beside NaN.
//             1 / sqrt is within 1 ulp (see inverse_root), the mean within 1.5 ulp, halved by the root.
//
// In place is allowed (y is x, same strides), so x is IN_ALIASED: on CUDA a __restrict__ pointer would allow the second
// read of x to be served by the read-only cache after y was written. Each element is read again only by the thread
// that overwrites it, before it does so, and the barrier separates the whole first pass from the first store.
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

// 1 / sqrt(v). One Newton step makes the 2 ulp of rsqrt one ulp; an IEEE division and root would be calls of slow
// paths, around which registers spill. At 0, infinity and NaN the step has no meaning and rsqrt is exact.
DEVFN float inverse_root(float v) {
  const float r = precise::rsqrt(v);
  const float refined = fma(0.5f * r, fma(-v * r, r, 1.0f), r);
  return v > 0.0f && v < INFINITY ? refined : r;
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

template <typename X, typename W>
DEVFN uint4 scale16(uint4 u, const device W* w, float scale, float weight_offset) {
  constexpr uint E = 16 / sizeof(X);
  float v[E], g[E];
  unpack16<X>(u, v);
  load_floats<W, E>(w, g);
  for (uint e = 0; e < E; e++) v[e] = v[e] * scale * (g[e] + weight_offset);
  return pack16<X>(v);
}

// One row, element by element.
template <typename X, typename W>
DEVFN void rms_row_scalar(const device X* x, const device W* w, device X* y, constant RmsNormArgs& p,
                          float inv_n, threadgroup float* part, uint tid, uint lane, uint sg) {
  float sum = 0.0f;
  for (uint i = tid; i < p.n; i += THREADS) sum += float(x[i]) * float(x[i]);
  sum = group_sum(sum, part, lane, sg);
  const float scale = inverse_root(sum * inv_n + p.eps);
  for (uint i = tid; i < p.n; i += THREADS) y[i] = X(float(x[i]) * scale * (float(w[i]) + p.weight_offset));
}

// One row in 16-byte vectors; the first KEEP of each thread are read from memory once.
template <typename X, typename W>
DEVFN void rms_row_vector(const device X* x, const device W* w, device X* y, constant RmsNormArgs& p,
                          float inv_n, threadgroup float* part, uint tid, uint lane, uint sg) {
  constexpr uint E = 16 / sizeof(X);
  const uint vectors = p.n / E;
  const device uint4* xv = (const device uint4*)x;
  device uint4* yv = (device uint4*)y;
  const uint tail = vectors * E + tid;

  uint4 kept[KEEP];
#pragma unroll
  for (uint j = 0; j < KEEP; j++) kept[j] = tid + j * THREADS < vectors ? xv[tid + j * THREADS] : uint4(0u);
  float sum = 0.0f;
#pragma unroll
  for (uint j = 0; j < KEEP; j++) sum += square_sum16<X>(kept[j]);
#pragma unroll 2
  for (uint i = tid + KEEP * THREADS; i < vectors; i += THREADS) sum += square_sum16<X>(xv[i]);
  if (tail < p.n) sum += float(x[tail]) * float(x[tail]);
  sum = group_sum(sum, part, lane, sg);
  const float scale = inverse_root(sum * inv_n + p.eps);

#pragma unroll
  for (uint j = 0; j < KEEP; j++) {
    const uint i = tid + j * THREADS;
    if (i < vectors) yv[i] = scale16<X, W>(kept[j], w + i * E, scale, p.weight_offset);
  }
#pragma unroll 2
  for (uint i = tid + KEEP * THREADS; i < vectors; i += THREADS)
    yv[i] = scale16<X, W>(xv[i], w + i * E, scale, p.weight_offset);
  if (tail < p.n) y[tail] = X(float(x[tail]) * scale * (float(w[tail]) + p.weight_offset));
}

// `part` has two halves used in turn, so that one barrier a row is enough: a slot is written again only after every
// thread has passed the barrier of the row between.
template <typename X, typename W>
DEVFN void rms_rows(const device X* x, const device W* w, device X* y, constant RmsNormArgs& p, threadgroup float* part,
                    uint group, uint tid, uint lane, uint sg) {
  GRID_RELEASE;
  GRID_WAIT;
  const float inv_n = 1.0f / float(p.n);
  uint half_used = 0;
  for (ulong r = group; r < p.rows; r += p.groups) {
    const uint row = uint(r);
    const device X* xr = x + row_offset(row, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    device X* yr = y + row_offset(row, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2);
    threadgroup float* slots = part + half_used * SIMDGROUPS;
    if (VEC16) {
      rms_row_vector<X, W>(xr, w, yr, p, inv_n, slots, tid, lane, sg);
    } else {
      rms_row_scalar<X, W>(xr, w, yr, p, inv_n, slots, tid, lane, sg);
    }
    half_used ^= 1;
  }
}

KERNEL(rms_norm_f32_f32, 256, IN_ALIASED(float, x, 0), IN(float, w, 1), OUT(float, y, 2), ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<float, float>(x, w, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_f16_f16, 256, IN_ALIASED(half, x, 0), IN(half, w, 1), OUT(half, y, 2), ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, half>(x, w, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_bf16_bf16, 256, IN_ALIASED(bfloat, x, 0), IN(bfloat, w, 1), OUT(bfloat, y, 2),
       ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, bfloat>(x, w, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_f16_f32, 256, IN_ALIASED(half, x, 0), IN(float, w, 1), OUT(half, y, 2), ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<half, float>(x, w, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(rms_norm_bf16_f32, 256, IN_ALIASED(bfloat, x, 0), IN(float, w, 1), OUT(bfloat, y, 2),
       ARGS(RmsNormArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  rms_rows<bfloat, float>(x, w, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
