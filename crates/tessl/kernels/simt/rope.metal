// rope:  pairs (x0, x1) of the first `dims` elements of a row turn by the angle  a = position * frequency[pair]
//            y0 = x0 cos a - x1 sin a,   y1 = x1 cos a + x0 sin a
//        half-split: pair i is (x[i], x[i + dims / 2]); interleaved: pair i is (x[2 i], x[2 i + 1]).
//        Elements from `dims` on are copied.
//
// Layout     rows of n elements, unit stride inside; three row strides for x, y and positions (see RopeArgs).
// Grid       threads walk over the vectors of all rows (MapCursor): first vectors of pairs, then vectors to copy.
// Angles     frequencies are turns per position as fractions of 2^64. Position times frequency, modulo 2^64, is the
//            angle modulo one turn without any rounding, for every 32-bit position, negative ones included.
// Accumulate f32: sine and cosine within 2^-23 (see turn), then two products and a sum; one rounding of the result.
// Access     VEC16: all rows, and their second halves, start on 16 bytes, and 16-byte accesses are used; else one pair.
// Tail       a last vector that is not full is done element by element by one thread.
//
// In place is allowed (y is x, same strides), so x is IN_ALIASED: a thread reads its pairs before it writes them, and
// nobody else touches them.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;

// The angle of a pair at a position, as a fraction of 2^64 turns.
DEVFN ulong angle_of(const device ulong* frequencies, uint pair, ulong position) {
  return position * frequencies[pair];
}

// Position of a row: read for each row (mode 2), or counted from a number of the host (0) or of the device (1);
// 4 more for i32. A negative one is its 64-bit complement, which turns the other way.
DEVFN ulong position_of(const device uint* positions, constant RopeArgs& p, uint row) {
  const ulong at = row_offset(row, p.r1, p.r2, p.p_s0, p.p_s1, p.p_s2);
  const uint mode = p.mode & 3;
  if (mode == 0) return p.offset + at;
  const uint value = positions[mode == 2 ? at : 0];
  const bool negative = (p.mode & 4) != 0 && (value >> 31) != 0;
  const ulong wide = negative ? ulong(value) | 0xffffffff00000000ul : ulong(value);
  return mode == 2 ? wide : wide + at;
}

template <typename T>
DEVFN void half_split(const device T* x, device T* y, const device ulong* frequencies, uint pair, uint half_dims,
                      ulong position) {
  constexpr uint E = 16 / sizeof(T);
  if (VEC16 && pair + E <= half_dims) {
    float a[E], b[E];
    load_floats<T, E>(x + pair, a);
    load_floats<T, E>(x + half_dims + pair, b);
    for (uint e = 0; e < E; e++) rotate(a[e], b[e], angle_of(frequencies, pair + e, position));
    store_floats<T, E>(y + pair, a);
    store_floats<T, E>(y + half_dims + pair, b);
  } else {
    const uint end = min(pair + (VEC16 ? E : 1), half_dims);
#pragma unroll 1
    for (uint i = pair; i < end; i++) {
      float a = float(x[i]), b = float(x[half_dims + i]);
      rotate(a, b, angle_of(frequencies, i, position));
      y[i] = T(a);
      y[half_dims + i] = T(b);
    }
  }
}

template <typename T>
DEVFN void interleaved(const device T* x, device T* y, const device ulong* frequencies, uint pair, uint half_dims,
                       ulong position) {
  constexpr uint E = 16 / sizeof(T);
  if (VEC16 && pair + E / 2 <= half_dims) {
    float v[E];
    load_floats<T, E>(x + 2 * pair, v);
    for (uint e = 0; e < E; e += 2) rotate(v[e], v[e + 1], angle_of(frequencies, pair + e / 2, position));
    store_floats<T, E>(y + 2 * pair, v);
  } else {
    const uint end = min(pair + (VEC16 ? E / 2 : 1), half_dims);
#pragma unroll 1
    for (uint i = pair; i < end; i++) {
      float a = float(x[2 * i]), b = float(x[2 * i + 1]);
      rotate(a, b, angle_of(frequencies, i, position));
      y[2 * i] = T(a);
      y[2 * i + 1] = T(b);
    }
  }
}

template <typename T, bool INTERLEAVED>
DEVFN void rope_rows(const device T* x, const device ulong* frequencies, const device uint* positions, device T* y,
                     constant RopeArgs& p, uint group, uint tid) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  const uint half_dims = p.dims / 2;
  const uint pairs = INTERLEAVED && VEC16 ? E / 2 : width;
  const uint turned = (half_dims + pairs - 1) / pairs;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint row = uint(c.row);
    const device T* xr = x + row_offset(row, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    device T* yr = y + row_offset(row, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2);
    if (c.at < turned) {
      const ulong position = position_of(positions, p, row);
      if (INTERLEAVED) {
        interleaved<T>(xr, yr, frequencies, c.at * pairs, half_dims, position);
      } else {
        half_split<T>(xr, yr, frequencies, c.at * pairs, half_dims, position);
      }
    } else {
      // `dims` need not be a multiple of the vector, hence element by element.
      const uint start = p.dims + (c.at - turned) * width;
      const uint end = min(start + width, p.n);
      for (uint i = start; i < end; i++) yr[i] = xr[i];
    }
  }
}

KERNEL(rope_half_f32, 256, IN_ALIASED(float, x, 0), IN(ulong, frequencies, 1), IN(uint, positions, 2),
       OUT(float, y, 3), ARGS(RopeArgs, p, 4)) {
  rope_rows<float, false>(x, frequencies, positions, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(rope_half_f16, 256, IN_ALIASED(half, x, 0), IN(ulong, frequencies, 1), IN(uint, positions, 2),
       OUT(half, y, 3), ARGS(RopeArgs, p, 4)) {
  rope_rows<half, false>(x, frequencies, positions, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(rope_half_bf16, 256, IN_ALIASED(bfloat, x, 0), IN(ulong, frequencies, 1), IN(uint, positions, 2),
       OUT(bfloat, y, 3), ARGS(RopeArgs, p, 4)) {
  rope_rows<bfloat, false>(x, frequencies, positions, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(rope_interleaved_f32, 256, IN_ALIASED(float, x, 0), IN(ulong, frequencies, 1), IN(uint, positions, 2),
       OUT(float, y, 3), ARGS(RopeArgs, p, 4)) {
  rope_rows<float, true>(x, frequencies, positions, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(rope_interleaved_f16, 256, IN_ALIASED(half, x, 0), IN(ulong, frequencies, 1), IN(uint, positions, 2),
       OUT(half, y, 3), ARGS(RopeArgs, p, 4)) {
  rope_rows<half, true>(x, frequencies, positions, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(rope_interleaved_bf16, 256, IN_ALIASED(bfloat, x, 0), IN(ulong, frequencies, 1), IN(uint, positions, 2),
       OUT(bfloat, y, 3), ARGS(RopeArgs, p, 4)) {
  rope_rows<bfloat, true>(x, frequencies, positions, y, p, gpu_tg.x, gpu_tid.x);
}
