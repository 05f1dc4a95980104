// sort_by_expert:   offsets[e] = number of choices below e;  choice c of expert e gets the place offsets[e] + (choices of
//                   e before c):  places[c] = place, tokens[place] = c / each
// combine_experts:  y[t, i] = residual[t, i] + sum_j w[t, j] x[places[t, j], i],   j in order
//
// Layout      choices are rows of `each` elements along three axes, and so are places and weights; x has one stride between
//             rows; rows of n elements have unit stride inside.
// Grid        sort: a threadgroup an expert, and one more for choices that no expert has; a thread looks at a run of
//             choices. combine: threads walk over vectors of all rows (MapCursor).
// Accumulate  f32, by fused multiply-adds: the residual first, then j in order; rounded once.
// Access      VEC16 (combine): all rows of x, residual and y start on 16 bytes, and 16-byte accesses are used; else one
//             element.
// Tail        combine: the last n % (16 / sizeof(x)) elements of a row are done one by one by one thread.
// Faults      an expert or a place out of range: kind 1, the number of its choice and its value. Such a choice has the place
//             0xffffffff, and a row of y with such a place is not written.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint INDEX_OUT_OF_RANGE = 1;
constant constexpr uint NOWHERE = 0xffffffff;

// Element `choice` of a matrix of choices.
template <typename A>
DEVFN ulong choice_at(uint choice, constant A& p, ulong s0, ulong s1, ulong s2) {
  return row_offset(choice / p.each, p.r1, p.r2, s0, s1, s2) + choice % p.each;
}

// The sum of `v` over the threads before this one, and over all of them. `part` has SIMDGROUPS slots, which nobody reads
// any more.
DEVFN uint2 sums_before(uint v, threadgroup uint* part, uint lane, uint sg) {
  uint upto = v;
  for (uint step = 1; step < 32; step *= 2) {
    const uint other = simd_shuffle(upto, ushort(lane >= step ? lane - step : lane));
    upto += lane >= step ? other : 0;
  }
  if (lane == 31) part[sg] = upto;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint before = upto - v, all = 0;
  for (uint i = 0; i < SIMDGROUPS; i++) {
    before += i < sg ? part[i] : 0;
    all += part[i];
  }
  return uint2(before, all);
}

// `part` has two sets of slots, for two sums; one of them is written again only after every thread has passed the barrier
// of the other.
KERNEL(sort_by_expert, 256, IN(uint, experts, 0), OUT(uint, offsets, 1), OUT(uint, tokens, 2), OUT(uint, places, 3),
       ARGS(SortByExpertArgs, p, 4), STATUS(5)) {
  TG(uint, part, 2 * SIMDGROUPS);
  GRID_RELEASE;
  GRID_WAIT;
  const uint tid = gpu_tid.x;
  const ulong each = (ulong(p.choices) + THREADS - 1) / THREADS;
  const uint first = uint(min(tid * each, ulong(p.choices))), end = uint(min((tid + 1) * each, ulong(p.choices)));
  for (uint expert = gpu_tg.x; expert <= p.experts; expert += p.groups) {
    uint below = 0, own = 0;
    for (uint c = first; c < end; c++) {
      const uint id = experts[choice_at(c, p, p.e_s0, p.e_s1, p.e_s2)];
      below += id < expert ? 1 : 0;
      own += id == expert ? 1 : 0;
    }
    const uint begin = sums_before(below, part, gpu_lane, gpu_sg).y;
    uint place = begin + sums_before(own, part + SIMDGROUPS, gpu_lane, gpu_sg).x;
    if (tid == 0) offsets[expert] = begin;
    for (uint c = first; c < end; c++) {
      const uint id = experts[choice_at(c, p, p.e_s0, p.e_s1, p.e_s2)];
      device uint* to = places + choice_at(c, p, p.p_s0, p.p_s1, p.p_s2);
      if (expert == p.experts && id >= p.experts) {
        FAULT(INDEX_OUT_OF_RANGE, c, p.is_signed != 0 ? ulong(long(int(id))) : ulong(id));
        *to = NOWHERE;
      } else if (expert < p.experts && id == expert) {
        tokens[place] = c / p.each;
        *to = place++;
      }
    }
  }
}

// Up to a vector of x from index i, times `weight`, added to v.
template <typename T>
DEVFN void add_weighted(const device T* x, float weight, uint i, uint n, thread float* v) {
  constexpr uint E = 16 / sizeof(T);
  if (VEC16 && i + E <= n) {
    float w[E];
    load_floats<T, E>(x + i, w);
    for (uint e = 0; e < E; e++) v[e] = fma(weight, w[e], v[e]);
  } else {
    const uint left = min(VEC16 ? E : 1u, n - i);
    for (uint e = 0; e < left; e++) v[e] = fma(weight, float(x[i + e]), v[e]);
  }
}

template <typename T>
DEVFN void combine_rows(const device T* x, const device uint* places, const device uchar* weights,
                        const device T* residual, device T* y, constant CombineExpertsArgs& p, STATUS_PARAMS,
                        uint group, uint tid) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint row = uint(c.row), i = c.at * width;
    const device uint* from = places + row_offset(row, p.r1, p.r2, p.p_s0, p.p_s1, p.p_s2);
    bool good = true;
    for (uint j = 0; j < p.each; j++) {
      if (from[j] >= p.places && good) {
        if (c.at == 0) FAULT(INDEX_OUT_OF_RANGE, c.row * p.each + j, from[j]);
        good = false;
      }
    }
    if (!good) continue;
    float v[E];
    for (uint e = 0; e < E; e++) v[e] = 0.0f;
    if (p.residual != 0) {
      // Added to zero: exact.
      add_weighted<T>(residual + row_offset(row, p.r1, p.r2, p.r_s0, p.r_s1, p.r_s2), 1.0f, i, p.n, v);
    }
    const ulong w = row_offset(row, p.r1, p.r2, p.w_s0, p.w_s1, p.w_s2);
    for (uint j = 0; j < p.each; j++) {
      const float weight =
          p.weights_typed != 0 ? float(((const device T*)weights)[w + j]) : ((const device float*)weights)[w + j];
      add_weighted<T>(x + from[j] * p.x_s, weight, i, p.n, v);
    }
    device T* to = y + row_offset(row, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2);
    if (VEC16 && i + E <= p.n) {
      store_floats<T, E>(to + i, v);
    } else {
      const uint left = min(width, p.n - i);
      for (uint e = 0; e < left; e++) to[i + e] = T(v[e]);
    }
  }
}

KERNEL(combine_experts_f32, 256, IN(float, x, 0), IN(uint, places, 1), IN(uchar, weights, 2),
       IN_ALIASED(float, residual, 3), OUT(float, y, 4), ARGS(CombineExpertsArgs, p, 5), STATUS(6)) {
  combine_rows<float>(x, places, weights, residual, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(combine_experts_f16, 256, IN(half, x, 0), IN(uint, places, 1), IN(uchar, weights, 2),
       IN_ALIASED(half, residual, 3), OUT(half, y, 4), ARGS(CombineExpertsArgs, p, 5), STATUS(6)) {
  combine_rows<half>(x, places, weights, residual, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(combine_experts_bf16, 256, IN(bfloat, x, 0), IN(uint, places, 1), IN(uchar, weights, 2),
       IN_ALIASED(bfloat, residual, 3), OUT(bfloat, y, 4), ARGS(CombineExpertsArgs, p, 5), STATUS(6)) {
  combine_rows<bfloat>(x, places, weights, residual, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}
