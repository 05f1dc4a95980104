// C = act(alpha A B + beta C + bias) for f32 operands with IEEE f32 products: fused multiply-adds on CUDA cores, no TF32.
//
// Layout     A [m, k] and B [k, n] with any leading stride; A_ROWS (B_ROWS) says that A's (B's) rows are contiguous.
//            C row-major, f32, bf16 or f16.
// Grid       one block per (matrix, tile_m, tile_n), flattened; see tile_origin().
// Accumulate f32, one chain of fma per element over k in order: the same bits on every run.
// Tails      loads give zeros beyond m, n and k and read nothing there; stores are guarded.
// Pipeline   two tiles in shared memory; the next one travels through registers while the current one is multiplied.
//            Both operands are kept [k][m or n], so that a thread reads four neighbours at once; operands whose
//            contiguous index is k are transposed on the way in.
//
// VEC_A, VEC_B: bytes per load that alignment allows: 16, or 4 for guarded loads with any strides.

// Compiled by scripts/nvrtc_check.py; the tests of device/cuda compile every row of the table.
// variant: TILE=0 A_ROWS=1 B_ROWS=1 VEC_A=16 VEC_B=16
// variant: TILE=1 A_ROWS=0 B_ROWS=0 VEC_A=4 VEC_B=16

FCONST(uint, TILE, 0);
FCONST(bool, A_ROWS, 1);
FCONST(bool, B_ROWS, 2);
FCONST(uint, VEC_A, 3);
FCONST(uint, VEC_B, 4);

// Audited against device/cuda/tables/gemm.rs: column i is the tile with index i.
// AUDIT: kernel=gemm_simt_* TILE_M=TILES_M[TILE] TILE_N=TILES_N[TILE] TILE_K=TILES_K[TILE] THREADS=32*WARPS_M[TILE]*WARPS_N[TILE]
constexpr uint TILES_M[] = {128, 64};
constexpr uint TILES_N[] = {128, 64};
constexpr uint TILES_K[] = {16, 8};
constexpr uint WARPS_M[] = {4, 2};
constexpr uint WARPS_N[] = {2, 1};

constexpr uint TM = TILES_M[TILE], TN = TILES_N[TILE], TK = TILES_K[TILE];
constexpr uint THREADS = 32 * WARPS_M[TILE] * WARPS_N[TILE];
// A warp owns 32 x 64; lane (4 x 8) owns two blocks of 4 rows, 16 apart, by two blocks of 4 columns, 32 apart.
static_assert(TM == 32 * WARPS_M[TILE] && TN == 64 * WARPS_N[TILE], "a warp owns 32 x 64");
constexpr uint PITCH_A = TM + 4, PITCH_B = TN + 4;
constexpr uint A_FLOATS = TK * PITCH_A, STAGE_FLOATS = A_FLOATS + TK * PITCH_B;
static_assert(TM / 2 * PITCH_B <= 2 * STAGE_FLOATS, "half a tile of sums fits in the stages");

// One operand's tiles on their way to shared memory, in chunks of 4 floats along the contiguous index.
template <bool K_INNER, uint MN, uint VEC>
struct Loader {
  static constexpr uint ROWS = K_INNER ? MN : TK;
  static constexpr uint CHUNKS = (K_INNER ? TK : MN) / 4;
  static constexpr uint ROWS_PER_PASS = THREADS / CHUNKS;
  static constexpr uint PASSES = ROWS / ROWS_PER_PASS;
  static_assert(PASSES * ROWS_PER_PASS == ROWS, "every thread has the same work");

  const float* src;
  ulong line, inner, step;
  uint mn_left;  // from the tile's first row (column) to the end of the matrix
  float held[PASSES][4];

  GPU_MEMBER Loader(const float* matrix, ulong mn_stride, ulong k_stride, uint mn0, uint mn) {
    uint row = threadIdx.x / CHUNKS, elem = threadIdx.x % CHUNKS * 4;
    line = K_INNER ? mn_stride : k_stride;
    inner = K_INNER ? k_stride : mn_stride;
    step = k_stride * TK;
    mn_left = mn - mn0;
    src = matrix + ulong(mn0) * mn_stride + row * line + elem * inner;
  }

  // Begins to load the current step and moves on along k.
  GPU_MEMBER void fetch(uint k_left) {
    uint row = threadIdx.x / CHUNKS, elem = threadIdx.x % CHUNKS * 4;
    uint lines = K_INNER ? mn_left : k_left, elems = K_INNER ? k_left : mn_left;
#pragma unroll
    for (uint i = 0; i < PASSES; i++) {
      const float* p = src + ulong(i * ROWS_PER_PASS) * line;
      bool here = row + i * ROWS_PER_PASS < lines;
      if (VEC == 16 && here && elem + 4 <= elems) {
        float4 v = *(const float4*)p;
        held[i][0] = v.x, held[i][1] = v.y, held[i][2] = v.z, held[i][3] = v.w;
      } else {
#pragma unroll
        for (uint j = 0; j < 4; j++) held[i][j] = here && elem + j < elems ? p[j * inner] : 0.0f;
      }
    }
    src += step;
  }

  // Puts what was fetched into a tile [k][MN + 4].
  GPU_MEMBER void store(float* tile) const {
    uint row = threadIdx.x / CHUNKS, elem = threadIdx.x % CHUNKS * 4;
#pragma unroll
    for (uint i = 0; i < PASSES; i++) {
      uint r = row + i * ROWS_PER_PASS;
      if constexpr (K_INNER) {
#pragma unroll
        for (uint j = 0; j < 4; j++) tile[(elem + j) * (MN + 4) + r] = held[i][j];
      } else {
        *(float4*)(tile + r * (MN + 4) + elem) = float4(held[i][0], held[i][1], held[i][2], held[i][3]);
      }
    }
  }
};

// Two blocks of 4 floats, `apart` floats from each other.
DEVFN void load_8(float (&v)[8], const float* p, uint apart) {
  float4 lo = *(const float4*)p, hi = *(const float4*)(p + apart);
  v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
  v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
}

template <class Out>
DEVFN void gemm(const float* a, const float* b, Out* c, const uchar* bias, const GemmArgs& args) {
  extern __shared__ __align__(16) float smem[];
  GRID_RELEASE;
  GRID_WAIT;
  TileOrigin o = tile_origin(args, TM, TN);
  Loader<A_ROWS, TM, VEC_A> load_a(a + o.batch * args.a_bs, args.a_rs, args.a_cs, o.row, args.m);
  Loader<!B_ROWS, TN, VEC_B> load_b(b + o.batch * args.b_bs, args.b_cs, args.b_rs, o.col, args.n);
  uint warp_m = gpu_sg / WARPS_N[TILE], warp_n = gpu_sg % WARPS_N[TILE];
  uint lane_m = gpu_lane / 8 * 4, lane_n = gpu_lane % 8 * 4;
  uint steps = args.k / TK + (args.k % TK != 0);

  float acc[8][8] = {};
  if (steps) {
    load_a.fetch(args.k);
    load_b.fetch(args.k);
  }
#pragma unroll 1
  for (uint s = 0; s < steps; s++) {
    // The other stage may still be read; this one was last read before the previous barrier.
    float* tile = smem + (s & 1) * STAGE_FLOATS;
    load_a.store(tile);
    load_b.store(tile + A_FLOATS);
    __syncthreads();
    if (s + 1 < steps) {
      load_a.fetch(args.k - (s + 1) * TK);
      load_b.fetch(args.k - (s + 1) * TK);
    }
#pragma unroll
    for (uint k = 0; k < TK; k++) {
      float x[8], y[8];
      load_8(x, tile + k * PITCH_A + warp_m * 32 + lane_m, 16);
      load_8(y, tile + A_FLOATS + k * PITCH_B + warp_n * 64 + lane_n, 32);
#pragma unroll
      for (uint i = 0; i < 8; i++) {
#pragma unroll
        for (uint j = 0; j < 8; j++) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
      }
    }
  }

  // Two halves: the first, then the second block of 4 rows of every lane, i.e. runs of 16 rows, 32 apart.
#pragma unroll
  for (uint half_tile = 0; half_tile < 2; half_tile++) {
    __syncthreads();
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      float* p = smem + (warp_m * 16 + lane_m + i) * PITCH_B + warp_n * 64 + lane_n;
      const float(&v)[8] = acc[half_tile * 4 + i];
      *(float4*)p = float4(v[0], v[1], v[2], v[3]);
      *(float4*)(p + 32) = float4(v[4], v[5], v[6], v[7]);
    }
    __syncthreads();
    store_tile<Out, TM / 2, TN, PITCH_B, THREADS, 16, 32>(smem, c, bias, args, o, half_tile * 16);
  }
}

// 64 sums and two fragments fit in 128 registers, which lets the large tile keep two blocks on an SM.
#define BOUNDS THREADS, 512 / THREADS

#define GEMM_SIMT(name, Out)                                                                                 \
  KERNEL(name, BOUNDS, IN(float, a, 0), IN(float, b, 1), OUT(Out, c, 2), IN_ALIASED(uchar, bias, 3),         \
         ARGS(GemmArgs, args, 4)) {                                                                          \
    gemm<Out>(a, b, c, bias, args);                                                                          \
  }

// Each entry takes the compiler a quarter of a second, so the builder names the one it wants.
#ifdef ENTRY_gemm_simt_f32_f32
GEMM_SIMT(gemm_simt_f32_f32, float)
#endif
#ifdef ENTRY_gemm_simt_f32_bf16
GEMM_SIMT(gemm_simt_f32_bf16, bfloat)
#endif
#ifdef ENTRY_gemm_simt_f32_f16
GEMM_SIMT(gemm_simt_f32_f16, half)
#endif
