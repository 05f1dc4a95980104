// embedding:  y[r, i] = table[ids[r], i], times a factor where one is given
// gather:     y[r, i] = table[ids[r], i], the same bits, for elements of 8, 16 and 32 bits
//
// Layout     the table has `vocabulary` rows, t_s apart, and y rows of n elements, unit stride inside; three row strides
//            for y and ids (see EmbedArgs).
// Grid       threads walk over the vectors of all rows of y (MapCursor).
// Accumulate nothing is summed. Without a factor the bits are copied; with one, each element is one f32 product.
// Access     VEC16: all rows of table and y start on 16 bytes, and 16-byte accesses are used; else one element.
// Tail       VEC16: the last n % (16 / sizeof(T)) elements of a row are done one by one by one thread.
// Faults     an id outside the table: kind 1 (index out of range), its row and its value; the row of y is not written.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;
constant constexpr uint INDEX_OUT_OF_RANGE = 1;

template <typename T, bool FLOAT>
DEVFN void embed_rows(const device T* table, const device uint* ids, device T* y, constant EmbedArgs& p, STATUS_PARAMS,
                      uint group, uint tid) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint row = uint(c.row);
    const uint id = ids[row_offset(row, p.r1, p.r2, p.i_s0, p.i_s1, p.i_s2)];
    // A negative i32 is a large number here, above every vocabulary.
    if (id >= p.vocabulary) {
      const bool negative = p.is_signed != 0 && (id >> 31) != 0;
      if (c.at == 0) FAULT(INDEX_OUT_OF_RANGE, row, negative ? ulong(id) | 0xffffffff00000000ul : ulong(id));
      continue;
    }
    const uint i = c.at * width;
    const device T* from = table + id * p.t_s + i;
    device T* to = y + row_offset(row, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2) + i;
    if (VEC16 && p.n - i >= E) {
      if constexpr (FLOAT) {
        if (p.scaled != 0) {
          float v[E];
          load_floats<T, E>(from, v);
          for (uint e = 0; e < E; e++) v[e] *= p.scale;
          store_floats<T, E>(to, v);
          continue;
        }
      }
      *(device uint4*)to = *(const device uint4*)from;
    } else {
      const uint left = min(width, p.n - i);
      for (uint e = 0; e < left; e++) to[e] = FLOAT && p.scaled != 0 ? T(float(from[e]) * p.scale) : from[e];
    }
  }
}

KERNEL(embedding_f32, 256, IN(float, table, 0), IN(uint, ids, 1), OUT(float, y, 2), ARGS(EmbedArgs, p, 3), STATUS(4)) {
  embed_rows<float, true>(table, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(embedding_f16, 256, IN(half, table, 0), IN(uint, ids, 1), OUT(half, y, 2), ARGS(EmbedArgs, p, 3), STATUS(4)) {
  embed_rows<half, true>(table, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(embedding_bf16, 256, IN(bfloat, table, 0), IN(uint, ids, 1), OUT(bfloat, y, 2), ARGS(EmbedArgs, p, 3),
       STATUS(4)) {
  embed_rows<bfloat, true>(table, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(gather_8, 256, IN(uchar, table, 0), IN(uint, ids, 1), OUT(uchar, y, 2), ARGS(EmbedArgs, p, 3), STATUS(4)) {
  embed_rows<uchar, false>(table, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(gather_16, 256, IN(ushort, table, 0), IN(uint, ids, 1), OUT(ushort, y, 2), ARGS(EmbedArgs, p, 3), STATUS(4)) {
  embed_rows<ushort, false>(table, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}

KERNEL(gather_32, 256, IN(uint, table, 0), IN(uint, ids, 1), OUT(uint, y, 2), ARGS(EmbedArgs, p, 3), STATUS(4)) {
  embed_rows<uint, false>(table, ids, y, p, STATUS_PASS, gpu_tg.x, gpu_tid.x);
}
