// add:    y[r, i] = a[r, i] + b[r, i]
// mul:    y[r, i] = a[r, i] * b[r, i]
// scale:  y[r, i] = factor * x[r, i]     factor from the arguments (mode 0) or from memory (mode 1)
// cast:   y[r, i] = x[r, i] as another float type
// copy:   y[r, i] = x[r, i], the same bits, for elements of 8, 16 and 32 bits
//
// Layout     rows of n elements, unit stride inside; three row strides for each operand (see MapArgs), 0 to repeat an
//            input.
// Grid       threads walk over the vectors of all rows (MapCursor).
// Accumulate nothing is summed: each element is computed in f32 and rounded once.
// Access     VEC16: all rows start on 16 bytes, and a thread does as many elements as the smaller type has in 16 bytes;
//            else one element.
// Tail       VEC16: the elements of a row beyond its last full vector are done one by one by one thread.
//
// In place is allowed (y is an input, same strides and type), so inputs are IN_ALIASED: a thread reads its elements
// before it writes them, and nobody else touches them.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;
constant constexpr uint ADD = 0, MUL = 1;

template <uint OP>
DEVFN float combine(float a, float b) {
  if constexpr (OP == ADD) return a + b;
  else return a * b;
}

template <uint OP, typename T>
DEVFN void binary_rows(const device T* a, const device T* b, device T* y, constant MapArgs& p, uint group, uint tid) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint i = c.at * width;
    const device T* ar = a + map_a(c, p, i);
    const device T* br = b + map_b(c, p, i);
    device T* yr = y + map_y(c, p, i);
    if (VEC16 && p.n - i >= E) {
      float v[E], w[E];
      load_floats<T, E>(ar, v);
      load_floats<T, E>(br, w);
      for (uint e = 0; e < E; e++) v[e] = combine<OP>(v[e], w[e]);
      store_floats<T, E>(yr, v);
    } else {
      const uint left = min(width, p.n - i);
      for (uint e = 0; e < left; e++) yr[e] = T(combine<OP>(float(ar[e]), float(br[e])));
    }
  }
}

template <typename T>
DEVFN void scale_rows(const device T* x, const device float* factor, device T* y, constant MapArgs& p, uint group,
                      uint tid) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const float f = p.mode == 1 ? *factor : p.scale;
  const uint width = VEC16 ? E : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint i = c.at * width;
    const device T* xr = x + map_a(c, p, i);
    device T* yr = y + map_y(c, p, i);
    if (VEC16 && p.n - i >= E) {
      float v[E];
      load_floats<T, E>(xr, v);
      for (uint e = 0; e < E; e++) v[e] *= f;
      store_floats<T, E>(yr, v);
    } else {
      const uint left = min(width, p.n - i);
      for (uint e = 0; e < left; e++) yr[e] = T(float(xr[e]) * f);
    }
  }
}

// One of the two types has 16 bits, hence eight elements a vector.
template <typename X, typename Y>
DEVFN void cast_rows(const device X* x, device Y* y, constant MapArgs& p, uint group, uint tid) {
  constexpr uint E = 8;
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint i = c.at * width;
    const device X* xr = x + map_a(c, p, i);
    device Y* yr = y + map_y(c, p, i);
    if (VEC16 && p.n - i >= E) {
      float v[E];
      load_floats<X, E>(xr, v);
      store_floats<Y, E>(yr, v);
    } else {
      const uint left = min(width, p.n - i);
      for (uint e = 0; e < left; e++) yr[e] = Y(float(xr[e]));
    }
  }
}

template <typename T>
DEVFN void copy_rows(const device T* x, device T* y, constant MapArgs& p, uint group, uint tid) {
  constexpr uint E = 16 / sizeof(T);
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? E : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint i = c.at * width;
    const device T* xr = x + map_a(c, p, i);
    device T* yr = y + map_y(c, p, i);
    if (VEC16 && p.n - i >= E) {
      *(device uint4*)yr = *(const device uint4*)xr;
    } else {
      const uint left = min(width, p.n - i);
      for (uint e = 0; e < left; e++) yr[e] = xr[e];
    }
  }
}

KERNEL(add_f32, 256, IN_ALIASED(float, a, 0), IN_ALIASED(float, b, 1), OUT(float, y, 2), ARGS(MapArgs, p, 3)) {
  binary_rows<ADD, float>(a, b, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(add_f16, 256, IN_ALIASED(half, a, 0), IN_ALIASED(half, b, 1), OUT(half, y, 2), ARGS(MapArgs, p, 3)) {
  binary_rows<ADD, half>(a, b, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(add_bf16, 256, IN_ALIASED(bfloat, a, 0), IN_ALIASED(bfloat, b, 1), OUT(bfloat, y, 2), ARGS(MapArgs, p, 3)) {
  binary_rows<ADD, bfloat>(a, b, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(mul_f32, 256, IN_ALIASED(float, a, 0), IN_ALIASED(float, b, 1), OUT(float, y, 2), ARGS(MapArgs, p, 3)) {
  binary_rows<MUL, float>(a, b, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(mul_f16, 256, IN_ALIASED(half, a, 0), IN_ALIASED(half, b, 1), OUT(half, y, 2), ARGS(MapArgs, p, 3)) {
  binary_rows<MUL, half>(a, b, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(mul_bf16, 256, IN_ALIASED(bfloat, a, 0), IN_ALIASED(bfloat, b, 1), OUT(bfloat, y, 2), ARGS(MapArgs, p, 3)) {
  binary_rows<MUL, bfloat>(a, b, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(scale_f32, 256, IN_ALIASED(float, x, 0), IN_ALIASED(float, factor, 1), OUT(float, y, 2), ARGS(MapArgs, p, 3)) {
  scale_rows<float>(x, factor, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(scale_f16, 256, IN_ALIASED(half, x, 0), IN_ALIASED(float, factor, 1), OUT(half, y, 2), ARGS(MapArgs, p, 3)) {
  scale_rows<half>(x, factor, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(scale_bf16, 256, IN_ALIASED(bfloat, x, 0), IN_ALIASED(float, factor, 1), OUT(bfloat, y, 2), ARGS(MapArgs, p,
       3)) {
  scale_rows<bfloat>(x, factor, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(cast_f32_f16, 256, IN(float, x, 0), OUT(half, y, 1), ARGS(MapArgs, p, 2)) {
  cast_rows<float, half>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(cast_f32_bf16, 256, IN(float, x, 0), OUT(bfloat, y, 1), ARGS(MapArgs, p, 2)) {
  cast_rows<float, bfloat>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(cast_f16_f32, 256, IN(half, x, 0), OUT(float, y, 1), ARGS(MapArgs, p, 2)) {
  cast_rows<half, float>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(cast_f16_bf16, 256, IN(half, x, 0), OUT(bfloat, y, 1), ARGS(MapArgs, p, 2)) {
  cast_rows<half, bfloat>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(cast_bf16_f32, 256, IN(bfloat, x, 0), OUT(float, y, 1), ARGS(MapArgs, p, 2)) {
  cast_rows<bfloat, float>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(cast_bf16_f16, 256, IN(bfloat, x, 0), OUT(half, y, 1), ARGS(MapArgs, p, 2)) {
  cast_rows<bfloat, half>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(copy_8, 256, IN_ALIASED(uchar, x, 0), OUT(uchar, y, 1), ARGS(MapArgs, p, 2)) {
  copy_rows<uchar>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(copy_16, 256, IN_ALIASED(ushort, x, 0), OUT(ushort, y, 1), ARGS(MapArgs, p, 2)) {
  copy_rows<ushort>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(copy_32, 256, IN_ALIASED(uint, x, 0), OUT(uint, y, 1), ARGS(MapArgs, p, 2)) {
  copy_rows<uint>(x, y, p, gpu_tg.x, gpu_tid.x);
}
