// softmax:      y[r, i] = exp(t[r, i] - max_i t) / sum_i exp(t[r, i] - max_i t)
// log_softmax:  y[r, i] = (t[r, i] - max_i t) - log(sum_i exp(t[r, i] - max_i t))
//               t = x * scale, then softcap * tanh(t / softcap) unless softcap is 0, then the mask: u8, 0 hides the
//               element; or a float that is added
// row_sum:      y[r] = scale * sum_i x[r, i]      (the mean with scale 1 / n)
// row_max:      y[r] = max_i x[r, i]
// row_argmax:   y[r] = the first i of the largest x[r, i]; the first NaN before all numbers
//
// Layout      rows of n elements, unit stride inside; three row strides for each operand (see ReduceArgs), 0 to repeat a
//             mask.
// Grid        `groups` threadgroups of 256; group g walks rows g, g + groups, ..  One row is one threadgroup's work.
// Accumulate  f32: per thread in index order, then lanes by 16 8 4 2 1, then the eight simdgroups in order. The order
//             depends on n alone, so a row's result does not depend on the grid.
// Access      VEC16: all rows of x and y start on 16 bytes, and 16-byte accesses are used; else one element. A mask is
//             read element by element.
// Tail        the last vector of a row may be short; what is missing counts as -infinity (0 in sums).
// Special     a NaN makes its row NaN, or is the maximum; so does +infinity a softmax. Hidden elements are not looked at.
//             A row of -infinity alone: softmax is uniform without a mask and 0 with one, log_softmax -log(n), or
//             -infinity with a mask.
//
// In place is allowed (y is x, same strides), so x is IN_ALIASED: an element is read again only by the thread that
// overwrites it, before it does so.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
// Vectors of x that a thread keeps in registers between the passes; longer rows (8192 f16, 4096 f32) are read again.
constant constexpr uint KEEP = 4;

// The larger one; NaN before all numbers.
DEVFN float larger(float a, float b) { return a > b || a != a ? a : b; }

// Whether a at index i is the argmax rather than b at j.
DEVFN bool beats(float a, uint i, float b, uint j) {
  if (a != a || b != b) return a != a && (b == b || i < j);
  return a > b || (a == b && i < j);
}

// Over the threadgroup, the same bits in every thread. `part` has SIMDGROUPS slots that nobody reads any more.
DEVFN float group_sum(float v, threadgroup float* part, uint lane, uint sg) {
  v = simd_sum(v);
  if (lane == 0) part[sg] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < SIMDGROUPS; i++) sum += part[i];
  return sum;
}

DEVFN float group_max(float v, threadgroup float* part, uint lane, uint sg) {
  for (ushort m = 16; m > 0; m >>= 1) v = larger(v, simd_shuffle_xor(v, m));
  if (lane == 0) part[sg] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float most = part[0];
  for (uint i = 1; i < SIMDGROUPS; i++) most = larger(most, part[i]);
  return most;
}

// 1 / v for v in [1, 2^31], within 1 ulp: the square of rsqrt and one Newton step. An IEEE division is a call of a slow
// path, around which registers spill.
DEVFN float inverse(float v) {
  const float root = precise::rsqrt(v);
  const float r = root * root;
  return fma(r, fma(-v, r, 1.0f), r);
}

// Up to a vector of elements from index i, as floats; what lies beyond the row is `beyond`.
template <typename T>
DEVFN void load_row(const device T* x, uint i, uint n, float beyond, thread float* v) {
  constexpr uint E = 16 / sizeof(T);
  const uint width = VEC16 ? E : 1;
  if (VEC16 && i + E <= n) {
    load_floats<T, E>(x + i, v);
  } else {
    for (uint e = 0; e < width; e++) v[e] = i + e < n ? float(x[i + e]) : beyond;
  }
}

template <typename T>
DEVFN void store_row(device T* y, uint i, uint n, const thread float* v) {
  constexpr uint E = 16 / sizeof(T);
  const uint width = VEC16 ? E : 1;
  if (VEC16 && i + E <= n) {
    store_floats<T, E>(y + i, v);
  } else {
    for (uint e = 0; e < width; e++) {
      if (i + e < n) y[i + e] = T(v[e]);
    }
  }
}

// The mask's say on a score.
DEVFN float masked(float t, const device uchar* mask, ulong at, uint kind) {
  switch (kind) {
    case 1: return mask[at] != 0 ? t : -INFINITY;
    case 2: return t + ((const device float*)mask)[at];
    case 3: return t + float(((const device half*)mask)[at]);
    case 4: return t + float(((const device bfloat*)mask)[at]);
    default: return t;
  }
}

// Up to a vector of scores t from index i; -infinity beyond the row.
template <typename T>
DEVFN void load_scores(const device T* x, const device uchar* mask, ulong mask_row, uint i, constant ReduceArgs& p,
                       thread float* t) {
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  load_row<T>(x, i, p.n, -INFINITY, t);
  for (uint e = 0; e < width; e++) {
    if (i + e < p.n) {
      t[e] *= p.scale;
      if (p.softcap > 0.0f) t[e] = p.softcap * tanh_saturating(t[e] * p.inverse_softcap);
      t[e] = masked(t[e], mask, mask_row + i + e, p.mask);
    }
  }
}

template <typename T>
DEVFN float largest_of(const thread float* t, float most) {
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  for (uint e = 0; e < width; e++) most = larger(t[e], most);
  return most;
}

template <typename T>
DEVFN float exponentials(thread float* t, float most) {
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  float sum = 0.0f;
  for (uint e = 0; e < width; e++) {
    t[e] = precise::exp(t[e] - most);
    sum += t[e];
  }
  return sum;
}

// The row's values from its scores: `total` is one over the sum of exponentials, or the logarithm of the sum.
template <typename T, bool LOG>
DEVFN void finish(thread float* t, float most, float total) {
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  for (uint e = 0; e < width; e++) t[e] = LOG ? (t[e] - most) - total : precise::exp(t[e] - most) * total;
}

// One row without a number above -infinity.
template <typename T, bool LOG>
DEVFN void flat_row(device T* y, constant ReduceArgs& p, uint tid) {
  const float some = LOG ? -precise::log(float(p.n)) : 1.0f / float(p.n);
  const float none = LOG ? -INFINITY : 0.0f;
  for (uint i = tid; i < p.n; i += THREADS) y[i] = T(p.mask == 0 ? some : none);
}

// `part` has two sets of slots, for maxima and for sums: one is written again only after every thread has passed the
// barrier of the other.
template <typename T, bool LOG>
DEVFN void softmax_rows(const device T* x, const device uchar* mask, device T* y, constant ReduceArgs& p,
                        threadgroup float* part, uint group, uint tid, uint lane, uint sg) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  const uint step = THREADS * width;
  for (ulong r = group; r < p.rows; r += p.groups) {
    const uint row = uint(r);
    const device T* xr = x + row_offset(row, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    device T* yr = y + row_offset(row, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2);
    const ulong mr = row_offset(row, p.r1, p.r2, p.m_s0, p.m_s1, p.m_s2);

    float kept[KEEP][E];
    float most = -INFINITY;
#pragma unroll
    for (uint j = 0; j < KEEP; j++) {
      load_scores<T>(xr, mask, mr, tid * width + j * step, p, kept[j]);
      most = largest_of<T>(kept[j], most);
    }
    for (uint i = tid * width + KEEP * step; i < p.n; i += step) {
      float t[E];
      load_scores<T>(xr, mask, mr, i, p, t);
      most = largest_of<T>(t, most);
    }
    most = group_max(most, part, lane, sg);

    float sum = 0.0f;
#pragma unroll
    for (uint j = 0; j < KEEP; j++) {
      float t[E];
      for (uint e = 0; e < width; e++) t[e] = kept[j][e];
      sum += exponentials<T>(t, most);
    }
    for (uint i = tid * width + KEEP * step; i < p.n; i += step) {
      float t[E];
      load_scores<T>(xr, mask, mr, i, p, t);
      sum += exponentials<T>(t, most);
    }
    sum = group_sum(sum, part + SIMDGROUPS, lane, sg);

    if (most == -INFINITY) {
      flat_row<T, LOG>(yr, p, tid);
    } else {
      const float total = LOG ? precise::log(sum) : inverse(sum);
#pragma unroll
      for (uint j = 0; j < KEEP; j++) {
        finish<T, LOG>(kept[j], most, total);
        store_row<T>(yr, tid * width + j * step, p.n, kept[j]);
      }
      for (uint i = tid * width + KEEP * step; i < p.n; i += step) {
        float t[E];
        load_scores<T>(xr, mask, mr, i, p, t);
        finish<T, LOG>(t, most, total);
        store_row<T>(yr, i, p.n, t);
      }
    }
  }
}

// `part` has two halves used in turn, so that one barrier a row is enough.
template <typename T, typename Y, bool MAX>
DEVFN void fold_rows(const device T* x, device Y* y, constant ReduceArgs& p, threadgroup float* part, uint group,
                     uint tid, uint lane, uint sg) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  uint half_used = 0;
  for (ulong r = group; r < p.rows; r += p.groups) {
    const device T* xr = x + row_offset(uint(r), p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    float all = MAX ? -INFINITY : 0.0f;
#pragma unroll 4
    for (uint i = tid * width; i < p.n; i += THREADS * width) {
      float v[E];
      load_row<T>(xr, i, p.n, MAX ? -INFINITY : 0.0f, v);
      for (uint e = 0; e < width; e++) all = MAX ? larger(v[e], all) : all + v[e];
    }
    threadgroup float* slots = part + half_used * SIMDGROUPS;
    all = MAX ? group_max(all, slots, lane, sg) : p.scale * group_sum(all, slots, lane, sg);
    if (tid == 0) y[row_offset(uint(r), p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2)] = Y(all);
    half_used ^= 1;
  }
}

template <typename T>
DEVFN void argmax_rows(const device T* x, device uint* y, constant ReduceArgs& p, threadgroup float* part,
                       threadgroup uint* index, uint group, uint tid, uint lane, uint sg) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  uint half_used = 0;
  for (ulong r = group; r < p.rows; r += p.groups) {
    const device T* xr = x + row_offset(uint(r), p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    // Beyond the row: an index that no element can lose to.
    float most = -INFINITY;
    uint place = 0xffffffff;
    for (uint i = tid * width; i < p.n; i += THREADS * width) {
      float v[E];
      load_row<T>(xr, i, p.n, -INFINITY, v);
      for (uint e = 0; e < width; e++) {
        if (i + e < p.n && beats(v[e], i + e, most, place)) {
          most = v[e];
          place = i + e;
        }
      }
    }
    for (ushort m = 16; m > 0; m >>= 1) {
      const float other = simd_shuffle_xor(most, m);
      const uint there = simd_shuffle_xor(place, m);
      if (beats(other, there, most, place)) {
        most = other;
        place = there;
      }
    }
    threadgroup float* slots = part + half_used * SIMDGROUPS;
    threadgroup uint* places = index + half_used * SIMDGROUPS;
    if (lane == 0) {
      slots[sg] = most;
      places[sg] = place;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
      for (uint i = 1; i < SIMDGROUPS; i++) {
        if (beats(slots[i], places[i], most, place)) {
          most = slots[i];
          place = places[i];
        }
      }
      y[row_offset(uint(r), p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2)] = place;
    }
    half_used ^= 1;
  }
}

KERNEL(softmax_f32, 256, IN_ALIASED(float, x, 0), IN_ALIASED(uchar, mask, 1), OUT(float, y, 2), ARGS(ReduceArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  softmax_rows<float, false>(x, mask, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(softmax_f16, 256, IN_ALIASED(half, x, 0), IN_ALIASED(uchar, mask, 1), OUT(half, y, 2), ARGS(ReduceArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  softmax_rows<half, false>(x, mask, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(softmax_bf16, 256, IN_ALIASED(bfloat, x, 0), IN_ALIASED(uchar, mask, 1), OUT(bfloat, y, 2), ARGS(ReduceArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  softmax_rows<bfloat, false>(x, mask, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(log_softmax_f32, 256, IN_ALIASED(float, x, 0), IN_ALIASED(uchar, mask, 1), OUT(float, y, 2), ARGS(ReduceArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  softmax_rows<float, true>(x, mask, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(log_softmax_f16, 256, IN_ALIASED(half, x, 0), IN_ALIASED(uchar, mask, 1), OUT(half, y, 2), ARGS(ReduceArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  softmax_rows<half, true>(x, mask, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(log_softmax_bf16, 256, IN_ALIASED(bfloat, x, 0), IN_ALIASED(uchar, mask, 1), OUT(bfloat, y, 2), ARGS(ReduceArgs, p, 3)) {
  TG(float, part, 2 * SIMDGROUPS);
  softmax_rows<bfloat, true>(x, mask, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_sum_f32_f32, 256, IN(float, x, 0), OUT(float, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<float, float, false>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_sum_f16_f16, 256, IN(half, x, 0), OUT(half, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<half, half, false>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_sum_f16_f32, 256, IN(half, x, 0), OUT(float, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<half, float, false>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_sum_bf16_bf16, 256, IN(bfloat, x, 0), OUT(bfloat, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<bfloat, bfloat, false>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_sum_bf16_f32, 256, IN(bfloat, x, 0), OUT(float, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<bfloat, float, false>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_max_f32_f32, 256, IN(float, x, 0), OUT(float, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<float, float, true>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_max_f16_f16, 256, IN(half, x, 0), OUT(half, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<half, half, true>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_max_f16_f32, 256, IN(half, x, 0), OUT(float, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<half, float, true>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_max_bf16_bf16, 256, IN(bfloat, x, 0), OUT(bfloat, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<bfloat, bfloat, true>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_max_bf16_f32, 256, IN(bfloat, x, 0), OUT(float, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  fold_rows<bfloat, float, true>(x, y, p, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_argmax_f32, 256, IN(float, x, 0), OUT(uint, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  TG(uint, index, 2 * SIMDGROUPS);
  argmax_rows<float>(x, y, p, part, index, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_argmax_f16, 256, IN(half, x, 0), OUT(uint, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  TG(uint, index, 2 * SIMDGROUPS);
  argmax_rows<half>(x, y, p, part, index, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(row_argmax_bf16, 256, IN(bfloat, x, 0), OUT(uint, y, 1), ARGS(ReduceArgs, p, 2)) {
  TG(float, part, 2 * SIMDGROUPS);
  TG(uint, index, 2 * SIMDGROUPS);
  argmax_rows<bfloat>(x, y, p, part, index, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
