// activate:  y[r, i] = act(x[r, i])
// glu:       y[r, i] = act(g[r, i]) * u[r, i]
//
// Layout     rows of n elements, unit stride inside; three row strides for each operand (see MapArgs: a, b and y are
//            x or g, u and y).
// Grid       threads walk over the vectors of all rows (MapCursor).
// Accumulate nothing is summed: each element is computed in f32 and rounded once. The function (mode) is a uniform branch.
// Access     VEC16: all rows start on 16 bytes, and a thread does one vector of 16 bytes; else one element.
// Tail       VEC16: the last n % (16 / sizeof(T)) elements of a row are done one by one by one thread.
//
// In place is allowed (y is x, g or u, same strides), so inputs are IN_ALIASED: a thread reads its elements before it
// writes them, and nobody else touches them.
FCONST(bool, VEC16, 0);

constant constexpr uint THREADS = 256;

template <typename T>
DEVFN void activate_one(const device T* x, device T* y, uint kind) {
  *y = T(activate(kind, float(*x)));
}

// One choice for all elements: a choice for each would nest its branches in the unrolled loop, which on sm_100 spills.
template <uint E>
DEVFN void activate_each(uint kind, thread float (&v)[E]) {
  switch (kind) {
    case 1:
      for (uint e = 0; e < E; e++) v[e] = relu(v[e]);
      break;
    case 2:
      for (uint e = 0; e < E; e++) v[e] = silu(v[e]);
      break;
    case 3:
      for (uint e = 0; e < E; e++) v[e] = gelu_erf(v[e]);
      break;
    case 4:
      for (uint e = 0; e < E; e++) v[e] = gelu_tanh(v[e]);
      break;
  }
}

template <typename T>
DEVFN void activate_vector(const device T* x, device T* y, uint kind) {
  constexpr uint E = 16 / sizeof(T);
  float v[E];
  load_floats<T, E>(x, v);
  activate_each(kind, v);
  store_floats<T, E>(y, v);
}

template <typename T>
DEVFN void glu_one(const device T* g, const device T* u, device T* y, uint kind) {
  *y = T(activate(kind, float(*g)) * float(*u));
}

template <typename T>
DEVFN void glu_vector(const device T* g, const device T* u, device T* y, uint kind) {
  constexpr uint E = 16 / sizeof(T);
  float v[E], w[E];
  load_floats<T, E>(g, v);
  load_floats<T, E>(u, w);
  activate_each(kind, v);
  for (uint e = 0; e < E; e++) v[e] *= w[e];
  store_floats<T, E>(y, v);
}

template <typename T>
DEVFN void activate_rows(const device T* x, device T* y, constant MapArgs& p, uint group, uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint i = c.at * width;
    const device T* xr = x + map_a(c, p, i);
    device T* yr = y + map_y(c, p, i);
    if (VEC16 && p.n - i >= width) {
      activate_vector<T>(xr, yr, p.mode);
    } else {
      const uint left = min(width, p.n - i);
      for (uint e = 0; e < left; e++) activate_one<T>(xr + e, yr + e, p.mode);
    }
  }
}

template <typename T>
DEVFN void glu_rows(const device T* g, const device T* u, device T* y, constant MapArgs& p, uint group, uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  const uint width = VEC16 ? 16 / sizeof(T) : 1;
  for (MapCursor c = map_first(p, group * THREADS + tid); c.row < p.rows; map_next(c, p)) {
    const uint i = c.at * width;
    const device T* gr = g + map_a(c, p, i);
    const device T* ur = u + map_b(c, p, i);
    device T* yr = y + map_y(c, p, i);
    if (VEC16 && p.n - i >= width) {
      glu_vector<T>(gr, ur, yr, p.mode);
    } else {
      const uint left = min(width, p.n - i);
      for (uint e = 0; e < left; e++) glu_one<T>(gr + e, ur + e, yr + e, p.mode);
    }
  }
}

KERNEL(activate_f32, 256, IN_ALIASED(float, x, 0), OUT(float, y, 1), ARGS(MapArgs, p, 2)) {
  activate_rows<float>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(activate_f16, 256, IN_ALIASED(half, x, 0), OUT(half, y, 1), ARGS(MapArgs, p, 2)) {
  activate_rows<half>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(activate_bf16, 256, IN_ALIASED(bfloat, x, 0), OUT(bfloat, y, 1), ARGS(MapArgs, p, 2)) {
  activate_rows<bfloat>(x, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(glu_f32, 256, IN_ALIASED(float, g, 0), IN_ALIASED(float, u, 1), OUT(float, y, 2), ARGS(MapArgs, p, 3)) {
  glu_rows<float>(g, u, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(glu_f16, 256, IN_ALIASED(half, g, 0), IN_ALIASED(half, u, 1), OUT(half, y, 2), ARGS(MapArgs, p, 3)) {
  glu_rows<half>(g, u, y, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(glu_bf16, 256, IN_ALIASED(bfloat, g, 0), IN_ALIASED(bfloat, u, 1), OUT(bfloat, y, 2), ARGS(MapArgs, p, 3)) {
  glu_rows<bfloat>(g, u, y, p, gpu_tg.x, gpu_tid.x);
}
