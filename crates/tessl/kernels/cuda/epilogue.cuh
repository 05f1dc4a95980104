// What every CUDA GEMM does with a finished tile, and how it finds its tile.
//
//   t = alpha * acc;  if beta != 0: t += beta * C;  t += bias;  t = act(t);  C = round(t) to nearest even
//
// The tile passes through shared memory as f32, because there each thread gets neighbouring columns (16-byte stores)
// and the loop over them stays rolled: few copies of the activations in the code, not one per accumulator. beta == 0
// never reads C.
#pragma once

struct TileOrigin {
  ulong batch;
  uint row, col;
};

// Number of a tile -> (batch, tile_m, tile_n). Tiles are walked in bands of `band` tile rows, column by column inside a
// band, so that the blocks that run together share rows of A and columns of B in L2.
DEVFN TileOrigin tile_origin(const GemmArgs& args, uint tile_m, uint tile_n, uint index = blockIdx.x, uint band = 8) {
  uint per_matrix = args.tiles_m * args.tiles_n;
  uint batch = index / per_matrix;
  uint tile = index % per_matrix;
  uint first = tile / (band * args.tiles_n) * band;
  uint rows = min(band, args.tiles_m - first);
  uint inside = tile % (band * args.tiles_n);
  TileOrigin o;
  o.batch = batch;
  o.row = (first + inside % rows) * tile_m;
  o.col = inside / rows * tile_n;
  return o;
}

template <class T>
DEVFN float bias_at(const uchar* bias, const GemmArgs& args, ulong i) {
  return args.bias_typed ? float(((const T*)bias)[i]) : ((const float*)bias)[i];
}

// One element. `old` counts only when beta != 0; an empty sum is 0 whatever alpha is. Products and sums that the formula
// does not fuse are rounded one by one: whether a compiler would fuse them depends on the code around.
template <class T>
DEVFN T finish(float acc, T old, const uchar* bias, const GemmArgs& args, ulong row, ulong col) {
  float t = args.k ? __fmul_rn(args.alpha, acc) : 0.0f;
  if (args.beta != 0.0f) t = fmaf(args.beta, float(old), t);
  if (args.bias == 1) t = __fadd_rn(t, bias_at<T>(bias, args, col));
  if (args.bias == 2) t = __fadd_rn(t, bias_at<T>(bias, args, row));
  return T(activate(args.activation, t));
}

// Stores ROWS x COLS sums from shared memory (row pitch PITCH floats). Local row r is tile row
// r / RUN * STRIDE + r % RUN + shift. Ragged edges and unaligned C go element by element.
template <class T, uint ROWS, uint COLS, uint PITCH, uint THREADS, uint RUN, uint STRIDE>
DEVFN void store_tile(const float* tile, T* c, const uchar* bias, const GemmArgs& args, TileOrigin o, uint shift) {
  constexpr uint WIDE = 16 / sizeof(T);
  constexpr uint PER_ROW = COLS / WIDE;
  T* base = c + o.batch * args.c_bs;
  bool aligned = ((ulong(base) | args.c_rs * sizeof(T)) & 15) == 0;
#pragma unroll 1
  for (uint i = threadIdx.x; i < ROWS * PER_ROW; i += THREADS) {
    uint r = i / PER_ROW;
    uint local = i % PER_ROW * WIDE;
    uint row = o.row + r / RUN * STRIDE + r % RUN + shift;
    uint col = o.col + local;
    if (row >= args.m || col >= args.n) continue;
    T* p = base + ulong(row) * args.c_rs + col;
    const float* sums = tile + r * PITCH + local;
    if (aligned && args.n - col >= WIDE) {
      alignas(16) T out[WIDE];
      if (args.beta != 0.0f) *(uint4*)out = *(const uint4*)p;
#pragma unroll
      for (uint j = 0; j < WIDE; j++) out[j] = finish(sums[j], out[j], bias, args, row, col + j);
      *(uint4*)p = *(const uint4*)out;
    } else {
      uint end = min(WIDE, args.n - col);
#pragma unroll 1
      for (uint j = 0; j < end; j++) {
        T old = args.beta != 0.0f ? p[j] : T(0.0f);
        p[j] = finish(sums[j], old, bias, args, row, col + j);
      }
    }
  }
}
