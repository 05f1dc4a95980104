// strided:      y[r, i] = x[r, i], the same bits, with a stride inside rows as well
// transpose:    y[b, i, j] = x[b, j, i]; x is contiguous along i, y along j
// scatter:      y[ids[r], i] = x[r, i]; the last of the rows with one id stays
// scatter_add:  y[ids[r], i] += w[r] x[r, i], the weight being optional; the rows of one id are added in order
//
// Layout      strided: rows along four axes; transpose: matrices along three, and two axes of their own; scatter: rows of
//             x along three, rows of y one after the other. Elements of 8, 16 and 32 bits, or floats where they are added.
// Grid        strided: threads walk over elements (MapCursor). transpose: groups walk over tiles of 32 by 32. scatter:
//             groups walk over panels of rows, a panel being one vector for each thread.
// Accumulate  scatter_add: f32, the old element of y first, then x in the order of rows; rounded once. Nobody but the
//             group of the first row with an id touches the row of y that it names, hence the same bits every time.
// Access      VEC16 (scatter): all rows of x and y start on 16 bytes; else one element.
// Tail        transpose: tiles at the edges skip what is outside. scatter: the last vector of a row may be short.
// Faults      an id outside of y: kind 1 (index out of range), its row and its value; nothing is written for it.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint TILE = 32;
constant constexpr uint INDEX_OUT_OF_RANGE = 1;
constant constexpr uint NOWHERE = 0xffffffff;

// Offset of row r along four axes. With one axis r3 is its extent and the others are 1.
DEVFN ulong strided_offset(uint row, constant StridedArgs& p, ulong s0, ulong s1, ulong s2, ulong s3) {
  if (row < p.r3) return row * s3;
  return row_offset(row / p.r3, p.r1, p.r2, s0, s1, s2) + row % p.r3 * s3;
}

template <typename T>
DEVFN void strided_rows(const device T* x, device T* y, constant StridedArgs& p, uint group, uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint row = uint(c.row);
    y[strided_offset(row, p, p.y_s0, p.y_s1, p.y_s2, p.y_s3) + c.at * p.y_n] =
        x[strided_offset(row, p, p.x_s0, p.x_s1, p.x_s2, p.x_s3) + c.at * p.x_n];
  }
}

// `tile` has TILE rows of TILE + 1 elements: neighbours along both axes lie in different banks.
template <typename T>
DEVFN void transpose_tiles(const device T* x, device T* y, constant TransposeArgs& p, threadgroup T* tile, uint group,
                           uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint column = tid % TILE, first = tid / TILE;
  const ulong tiles = ulong(p.matrices) * p.tiles_m * p.tiles_n;
  for (ulong t = group; t < tiles; t += p.groups) {
    const uint across = uint(t % p.tiles_n) * TILE;
    const uint down = uint(t / p.tiles_n % p.tiles_m) * TILE;
    const uint matrix = uint(t / p.tiles_n / p.tiles_m);
    const device T* from = x + row_offset(matrix, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    device T* to = y + row_offset(matrix, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2);
    for (uint j = first; j < TILE; j += THREADS / TILE) {
      if (down + j < p.m && across + column < p.n) {
        tile[j * (TILE + 1) + column] = from[(down + j) * p.x_m + across + column];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = first; i < TILE; i += THREADS / TILE) {
      if (across + i < p.n && down + column < p.m) {
        to[(across + i) * p.y_n + down + column] = tile[column * (TILE + 1) + i];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

DEVFN uint id_of(const device uint* ids, uint row, constant ScatterArgs& p) {
  return ids[row_offset(row, p.r1, p.r2, p.i_s0, p.i_s1, p.i_s2)];
}

// The smallest v of the threadgroup. `part` has two halves used in turn: `turn` counts the calls.
DEVFN uint group_min(uint v, threadgroup uint* part, thread uint& turn, uint lane, uint sg) {
  threadgroup uint* slots = part + turn % 2 * SIMDGROUPS;
  turn++;
  v = simd_min(v);
  if (lane == 0) slots[sg] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint least = slots[0];
  for (uint i = 1; i < SIMDGROUPS; i++) least = min(least, slots[i]);
  return least;
}

// The first row in from..to whose id is `id`, or NOWHERE; the whole group asks together.
DEVFN uint next_row(const device uint* ids, uint id, uint from, uint to, constant ScatterArgs& p,
                    threadgroup uint* part, thread uint& turn, uint tid, uint lane, uint sg) {
  for (ulong base = from; base < to; base += THREADS) {
    const ulong mine = base + tid;
    const bool hit = mine < to && id_of(ids, uint(mine), p) == id;
    const uint found = group_min(hit ? uint(mine) : NOWHERE, part, turn, lane, sg);
    if (found != NOWHERE) return found;
  }
  return NOWHERE;
}

// The weight of row `row` of x.
template <typename T>
DEVFN float weight_of(const device uchar* weights, uint row, constant ScatterArgs& p) {
  if (p.weights == 0) return 1.0f;
  const ulong at = row_offset(row, p.r1, p.r2, p.w_s0, p.w_s1, p.w_s2);
  return p.weights == 1 ? ((const device float*)weights)[at] : float(((const device T*)weights)[at]);
}

// Up to a vector of x from index i, times `weight`, added to v; at weight 1 exactly as without.
template <typename T>
DEVFN void add_vector(const device T* x, float weight, uint i, uint n, thread float* v) {
  constexpr uint E = 16 / sizeof(T);
  const uint width = VEC16 ? E : 1;
  if (VEC16 && i + E <= n) {
    float w[E];
    load_floats<T, E>(x + i, w);
    for (uint e = 0; e < E; e++) v[e] = fma(weight, w[e], v[e]);
  } else {
    for (uint e = 0; e < width; e++) {
      if (i + e < n) v[e] = fma(weight, float(x[i + e]), v[e]);
    }
  }
}

// What one group does with row `row`, whose id is good: its panel from index i on. ADD: the first row with an id adds all
// of them; else the last one is written.
template <typename T, bool ADD>
DEVFN void scatter_row(const device T* x, const device uint* ids, const device uchar* weights, device T* y,
                       constant ScatterArgs& p, uint row, uint id, uint i, threadgroup uint* part, thread uint& turn,
                       uint tid, uint lane, uint sg) {
  constexpr uint E = 16 / sizeof(T);
  const uint width = VEC16 ? E : 1;
  const uint rows = uint(p.rows);
  device T* to = y + id * p.y_s;
  if constexpr (ADD) {
    if (next_row(ids, id, 0, row, p, part, turn, tid, lane, sg) != NOWHERE) return;
    float v[E];
    for (uint e = 0; e < width; e++) v[e] = i + e < p.n ? float(to[i + e]) : 0.0f;
    for (uint at = row; at != NOWHERE; at = next_row(ids, id, at + 1, rows, p, part, turn, tid, lane, sg)) {
      const float weight = weight_of<T>(weights, at, p);
      add_vector<T>(x + row_offset(at, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2), weight, i, p.n, v);
    }
    if (VEC16 && i + E <= p.n) {
      store_floats<T, E>(to + i, v);
    } else {
      for (uint e = 0; e < width; e++) {
        if (i + e < p.n) to[i + e] = T(v[e]);
      }
    }
  } else {
    if (next_row(ids, id, row + 1, rows, p, part, turn, tid, lane, sg) != NOWHERE) return;
    const device T* from = x + row_offset(row, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    if (VEC16 && i + E <= p.n) {
      *(device uint4*)(to + i) = *(const device uint4*)(from + i);
    } else {
      for (uint e = 0; e < width; e++) {
        if (i + e < p.n) to[i + e] = from[i + e];
      }
    }
  }
}

template <typename T, bool ADD>
DEVFN void scatter_rows(const device T* x, const device uint* ids, const device uchar* weights, device T* y,
                        constant ScatterArgs& p, STATUS_PARAMS, threadgroup uint* part, uint group, uint tid, uint lane,
                        uint sg) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  const ulong panels = p.rows * p.panels;
  uint turn = 0;
  for (ulong t = group; t < panels; t += p.groups) {
    const uint row = uint(t / p.panels);
    const uint panel = uint(t % p.panels);
    const uint id = id_of(ids, row, p);
    // A negative i32 is a large number here, above every number of rows.
    if (id >= p.targets) {
      const bool negative = p.is_signed != 0 && (id >> 31) != 0;
      if (panel == 0 && tid == 0) {
        FAULT(INDEX_OUT_OF_RANGE, row, negative ? ulong(id) | 0xffffffff00000000ul : ulong(id));
      }
      continue;
    }
    const uint i = (panel * THREADS + tid) * width;
    scatter_row<T, ADD>(x, ids, weights, y, p, row, id, i, part, turn, tid, lane, sg);
  }
}

KERNEL(strided_8, 256, IN_ALIASED(uchar, x, 0), OUT(uchar, y, 1), ARGS(StridedArgs, p, 2)) {
  strided_rows<uchar>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(strided_16, 256, IN_ALIASED(ushort, x, 0), OUT(ushort, y, 1), ARGS(StridedArgs, p, 2)) {
  strided_rows<ushort>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(strided_32, 256, IN_ALIASED(uint, x, 0), OUT(uint, y, 1), ARGS(StridedArgs, p, 2)) {
  strided_rows<uint>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(transpose_8, 256, IN(uchar, x, 0), OUT(uchar, y, 1), ARGS(TransposeArgs, p, 2)) {
  TG(uchar, tile, TILE * (TILE + 1));
  transpose_tiles<uchar>(x, y, p, tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(transpose_16, 256, IN(ushort, x, 0), OUT(ushort, y, 1), ARGS(TransposeArgs, p, 2)) {
  TG(ushort, tile, TILE * (TILE + 1));
  transpose_tiles<ushort>(x, y, p, tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(transpose_32, 256, IN(uint, x, 0), OUT(uint, y, 1), ARGS(TransposeArgs, p, 2)) {
  TG(uint, tile, TILE * (TILE + 1));
  transpose_tiles<uint>(x, y, p, tile, gpu_tg.x, gpu_tid.x);
}

KERNEL(scatter_8, 256, IN(uchar, x, 0), IN(uint, ids, 1), OUT(uchar, y, 2), ARGS(ScatterArgs, p, 3), STATUS(4)) {
  TG(uint, part, 2 * SIMDGROUPS);
  scatter_rows<uchar, false>(x, ids, nullptr, y, p, STATUS_PASS, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(scatter_16, 256, IN(ushort, x, 0), IN(uint, ids, 1), OUT(ushort, y, 2), ARGS(ScatterArgs, p, 3), STATUS(4)) {
  TG(uint, part, 2 * SIMDGROUPS);
  scatter_rows<ushort, false>(x, ids, nullptr, y, p, STATUS_PASS, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(scatter_32, 256, IN(uint, x, 0), IN(uint, ids, 1), OUT(uint, y, 2), ARGS(ScatterArgs, p, 3), STATUS(4)) {
  TG(uint, part, 2 * SIMDGROUPS);
  scatter_rows<uint, false>(x, ids, nullptr, y, p, STATUS_PASS, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(scatter_add_f32, 256, IN(float, x, 0), IN(uint, ids, 1), IN(uchar, weights, 2), OUT(float, y, 3),
       ARGS(ScatterArgs, p, 4), STATUS(5)) {
  TG(uint, part, 2 * SIMDGROUPS);
  scatter_rows<float, true>(x, ids, weights, y, p, STATUS_PASS, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(scatter_add_f16, 256, IN(half, x, 0), IN(uint, ids, 1), IN(uchar, weights, 2), OUT(half, y, 3),
       ARGS(ScatterArgs, p, 4), STATUS(5)) {
  TG(uint, part, 2 * SIMDGROUPS);
  scatter_rows<half, true>(x, ids, weights, y, p, STATUS_PASS, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(scatter_add_bf16, 256, IN(bfloat, x, 0), IN(uint, ids, 1), IN(uchar, weights, 2), OUT(bfloat, y, 3),
       ARGS(ScatterArgs, p, 4), STATUS(5)) {
  TG(uint, part, 2 * SIMDGROUPS);
  scatter_rows<bfloat, true>(x, ids, weights, y, p, STATUS_PASS, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
