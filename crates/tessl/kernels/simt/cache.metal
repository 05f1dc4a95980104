// kv_store:      cache[b, start[b] + t] = rows[b, t]
// ring_densify:  out[b, t] = ring[b, (start[b] + t) % capacity]
//
// Layout     rows of n elements, unit stride inside; strides for sequence (page), token (slot) and head (see CacheArgs:
//            a and b are the rows of tokens of one operand or two, c and d their caches).
// Grid       threads walk over the vectors of all rows (MapCursor); of two operands the second one's vectors come last.
// Places     kv_place in prelude/rows.h
// Accumulate nothing is summed: bits are copied.
// Access     VEC16: all rows start on 16 bytes, and 16-byte accesses are used; else one element.
// Tail       VEC16: the last n % (16 / sizeof(T)) elements of a row are done one by one by one thread.
// Faults     a position beyond the capacity: kind 2, its token and the position; a page outside of memory: kind 1, its
//            place in the table. Rows of such a token are not written.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;

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

KERNEL(kv_store_16, 256, IN(ushort, k, 0), IN(ushort, v, 1), IN(uint, starts, 2), IN(uint, table, 3),
       OUT(ushort, k_cache, 4), OUT(ushort, v_cache, 5), ARGS(CacheArgs, p, 6), STATUS(7)) {
  store_rows<ushort>(k, v, starts, table, k_cache, v_cache, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(kv_store_32, 256, IN(uint, k, 0), IN(uint, v, 1), IN(uint, starts, 2), IN(uint, table, 3), OUT(uint, k_cache, 4),
       OUT(uint, v_cache, 5), ARGS(CacheArgs, p, 6), STATUS(7)) {
  store_rows<uint>(k, v, starts, table, k_cache, v_cache, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(ring_densify_16, 256, IN(ushort, ring, 0), IN(uint, starts, 1), OUT(ushort, out, 2), ARGS(CacheArgs, p, 3)) {
  densify_rows<ushort>(ring, starts, out, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(ring_densify_32, 256, IN(uint, ring, 0), IN(uint, starts, 1), OUT(uint, out, 2), ARGS(CacheArgs, p, 3)) {
  densify_rows<uint>(ring, starts, out, p, gpu_tg.x, gpu_tid.x);
}
