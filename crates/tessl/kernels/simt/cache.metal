// kv_store:      cache[b, start[b] + t] = rows[b, t]
// kv_store_coded: cache[b, start[b] + t] = codes of rows[b, t], scales[b, start[b] + t] = max_i |row_i| / 127
// ring_densify:  out[b, t] = ring[b, (start[b] + t) % capacity]
//
// Layout     rows of n elements, unit stride inside; strides for sequence (page), token (slot) and head (see CacheArgs:
//            a and b are the rows of tokens of one operand or two, c and d their caches).
// Grid       threads walk over the vectors of all rows (MapCursor); of two operands the second one's vectors come last.
//            kv_store_coded: a row of one of the operands is one simdgroup's; e and f are the scales of c and d.
// Places     kv_place in prelude/rows.h
// Accumulate nothing is summed: bits are copied.
// Access     VEC16: all rows start on 16 bytes, and 16-byte accesses are used; else one element.
//            kv_store_coded: one element, lanes side by side.
// Codes      x / scale, to nearest even. A row below 2^-100 is 0 with scale 0; one with NaN or infinity has scale NaN.
// Tail       VEC16: the last n % (16 / sizeof(T)) elements of a row are done one by one by one thread.
// Faults     a position beyond the capacity: kind 2, its token and the position; a page outside of memory: kind 1, its
//            place in the table. Rows of such a token are not written.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
// 2^-100: one over the scale of a smaller element could pass the range of f32.
constant constexpr float SMALLEST = 7.888609052210118e-31f;

DEVFN ulong position_of(uint b, uint t, const device uint* starts, constant CacheArgs& p) {
  return (p.start_known != 0 ? p.start : ulong(starts[b * p.start_s])) + t;
}

// Copies elements i .. i + width - 1 of a row of n.
template <typename T>
DEVFN void copy_vector(const device T* from, device T* to, uint i, uint n) {
  constexpr uint E = 16 / sizeof(T);
  if (VEC16 && n - i >= E) {
    *(device uint4*)(to + i) = *(const device uint4*)(from + i);
  } else {
    const uint left = min(VEC16 ? E : 1u, n - i);
    for (uint e = 0; e < left; e++) to[i + e] = from[i + e];
  }
}

template <typename T>
DEVFN void store_rows(const device T* k, const device T* v, const device uint* starts, const device uint* table,
                      device T* k_cache, device T* v_cache, constant CacheArgs& p, STATUS_PARAMS, uint group, uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint token = uint(c.row) / p.heads, h = uint(c.row) % p.heads;
    const uint b = token / p.tokens, t = token % p.tokens;
    const KvPlace at = kv_place(b, t, position_of(b, t, starts, p), table, p);
    if (at.fault != 0) {
      if (c.at == 0 && h == 0) FAULT(at.fault, at.index, at.value);
      continue;
    }
    if (c.at < p.vectors_of_one) {
      copy_vector<T>(k + (b * p.a_b + t * p.a_t + h * p.a_h), k_cache + (at.outer * p.c_b + at.slot * p.c_t + h * p.c_h),
                     c.at * width, p.n);
    } else {
      copy_vector<T>(v + (b * p.b_b + t * p.b_t + h * p.b_h), v_cache + (at.outer * p.d_b + at.slot * p.d_t + h * p.d_h),
                     (c.at - p.vectors_of_one) * width, p.n);
    }
  }
}

template <typename T>
DEVFN void densify_rows(const device T* ring, const device uint* starts, device T* out, constant CacheArgs& p, uint group,
                        uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint token = uint(c.row) / p.heads, h = uint(c.row) % p.heads;
    const uint b = token / p.tokens, t = token % p.tokens;
    const ulong slot = position_of(b, t, starts, p) % p.capacity;
    copy_vector<T>(ring + (b * p.c_b + slot * p.c_t + h * p.c_h), out + (b * p.a_b + t * p.a_t + h * p.a_h), c.at * width,
                   p.n);
  }
}

// One simdgroup a row: first the rows of k, then, where `sides` is 2, those of v.
template <typename T>
DEVFN void store_codes(const device T* k, const device T* v, const device uint* starts, const device uint* table,
                       device uchar* k_cache, device uchar* v_cache, device float* k_scales, device float* v_scales,
                       constant CacheArgs& p, STATUS_PARAMS, uint group, uint lane, uint sg) {
  GRID_RELEASE;
  GRID_WAIT;
  const ulong all = p.vectors > p.vectors_of_one ? 2 * p.rows : p.rows;
  for (ulong r = ulong(group) * SIMDGROUPS + sg; r < all; r += ulong(p.groups) * SIMDGROUPS) {
    const bool of_v = r >= p.rows;
    const uint row = uint(of_v ? r - p.rows : r);
    const uint token = row / p.heads, h = row % p.heads;
    const uint b = token / p.tokens, t = token % p.tokens;
    const KvPlace at = kv_place(b, t, position_of(b, t, starts, p), table, p);
    if (at.fault != 0) {
      if (lane == 0 && h == 0 && !of_v) FAULT(at.fault, at.index, at.value);
      continue;
    }
    const device T* x = of_v ? v + (b * p.b_b + t * p.b_t + h * p.b_h) : k + (b * p.a_b + t * p.a_t + h * p.a_h);
    device uchar* codes = of_v ? v_cache + (at.outer * p.d_b + at.slot * p.d_t + h * p.d_h)
                               : k_cache + (at.outer * p.c_b + at.slot * p.c_t + h * p.c_h);
    device float* to = of_v ? v_scales + (at.outer * p.f_b + at.slot * p.f_t + h * p.f_h)
                            : k_scales + (at.outer * p.e_b + at.slot * p.e_t + h * p.e_h);
    float most = 0.0f;
    uint wrong = 0;
    for (uint i = lane; i < p.n; i += 32) {
      const float value = float(x[i]), size = value < 0.0f ? -value : value;
      most = size > most ? size : most;
      wrong |= size < INFINITY ? 0 : 1;
    }
    most = simd_max(most);
    const bool good = simd_max(wrong) == 0;
    const bool some = good && most >= SMALLEST;
    const float inverse = some ? 127.0f / most : 0.0f;
    for (uint i = lane; i < p.n; i += 32) codes[i] = some ? quant::code_of(float(x[i]), inverse) : uchar(0);
    if (lane == 0) *to = !good ? NAN : some ? most / 127.0f : 0.0f;
  }
}

KERNEL(kv_store_16, 256, IN(ushort, k, 0), IN(ushort, v, 1), IN(uint, starts, 2), IN(uint, table, 3),
       OUT(ushort, k_cache, 4), OUT(ushort, v_cache, 5), ARGS(CacheArgs, p, 6), STATUS(7)) {
  store_rows<ushort>(k, v, starts, table, k_cache, v_cache, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(kv_store_32, 256, IN(uint, k, 0), IN(uint, v, 1), IN(uint, starts, 2), IN(uint, table, 3), OUT(uint, k_cache, 4),
       OUT(uint, v_cache, 5), ARGS(CacheArgs, p, 6), STATUS(7)) {
  store_rows<uint>(k, v, starts, table, k_cache, v_cache, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(kv_store_coded_f32, 256, IN(float, k, 0), IN(float, v, 1), IN(uint, starts, 2), IN(uint, table, 3),
       OUT(uchar, k_cache, 4), OUT(uchar, v_cache, 5), OUT(float, k_scales, 6), OUT(float, v_scales, 7),
       ARGS(CacheArgs, p, 8), STATUS(9)) {
  store_codes<float>(k, v, starts, table, k_cache, v_cache, k_scales, v_scales, p, STATUS_PASS, gpu_tg.x, gpu_lane, gpu_sg);
}

KERNEL(kv_store_coded_f16, 256, IN(half, k, 0), IN(half, v, 1), IN(uint, starts, 2), IN(uint, table, 3),
       OUT(uchar, k_cache, 4), OUT(uchar, v_cache, 5), OUT(float, k_scales, 6), OUT(float, v_scales, 7),
       ARGS(CacheArgs, p, 8), STATUS(9)) {
  store_codes<half>(k, v, starts, table, k_cache, v_cache, k_scales, v_scales, p, STATUS_PASS, gpu_tg.x, gpu_lane, gpu_sg);
}

KERNEL(kv_store_coded_bf16, 256, IN(bfloat, k, 0), IN(bfloat, v, 1), IN(uint, starts, 2), IN(uint, table, 3),
       OUT(uchar, k_cache, 4), OUT(uchar, v_cache, 5), OUT(float, k_scales, 6), OUT(float, v_scales, 7),
       ARGS(CacheArgs, p, 8), STATUS(9)) {
  store_codes<bfloat>(k, v, starts, table, k_cache, v_cache, k_scales, v_scales, p, STATUS_PASS, gpu_tg.x, gpu_lane, gpu_sg);
}

KERNEL(ring_densify_8, 256, IN(uchar, ring, 0), IN(uint, starts, 1), OUT(uchar, out, 2), ARGS(CacheArgs, p, 3)) {
  densify_rows<uchar>(ring, starts, out, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(ring_densify_16, 256, IN(ushort, ring, 0), IN(uint, starts, 1), OUT(ushort, out, 2), ARGS(CacheArgs, p, 3)) {
  densify_rows<ushort>(ring, starts, out, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(ring_densify_32, 256, IN(uint, ring, 0), IN(uint, starts, 1), OUT(uint, out, 2), ARGS(CacheArgs, p, 3)) {
  densify_rows<uint>(ring, starts, out, p, gpu_tg.x, gpu_tid.x);
}
