// C = act(alpha A B + beta C + bias) for bf16 and f16 operands on tensor cores: mma.sync m16n8k16, sm_80 and later.
//
// Layout     A [m, k] and B [k, n] with any leading stride; A_ROWS (B_ROWS) says that A's (B's) rows are contiguous.
//            C row-major.
// Grid       one block per (matrix, tile_m, tile_n), flattened; see tile_origin().
// Accumulate f32 in the tensor core, k in steps of 16, in order: the same bits on every run.
// Tails      copies fill with zeros beyond m, n and k and read nothing there; stores are guarded.
// Pipeline   STAGES tiles in shared memory, filled by cp.async STAGES - 1 steps ahead; one barrier per step.
//            A tile is kept as it lies in memory: rows of 16-byte chunks, chunk c of row r at c ^ (r % 8), which makes
//            both the copies and ldmatrix (8 rows of one chunk column) free of bank conflicts. Fragments whose
//            contiguous index is not k are transposed by ldmatrix.
//
// VEC_A, VEC_B: bytes per copy that alignment allows: 16, 8, 4 by cp.async; 2 by guarded loads with any strides.

// Compiled by scripts/nvrtc_check.py; the tests of device/cuda compile every row of the table.
// variant: TILE=0 STAGES=4 A_ROWS=1 B_ROWS=1 VEC_A=16 VEC_B=16
// variant: TILE=1 STAGES=3 A_ROWS=0 B_ROWS=0 VEC_A=16 VEC_B=2
// variant: TILE=2 STAGES=4 A_ROWS=1 B_ROWS=0 VEC_A=8 VEC_B=4
// variant: TILE=3 STAGES=2 A_ROWS=0 B_ROWS=1 VEC_A=2 VEC_B=16

FCONST(uint, TILE, 0);
FCONST(uint, STAGES, 1);
FCONST(bool, A_ROWS, 2);
FCONST(bool, B_ROWS, 3);
FCONST(uint, VEC_A, 4);
FCONST(uint, VEC_B, 5);

// Audited against device/cuda/tables/gemm.rs: column i is the tile with index i.
// AUDIT: kernel=gemm_mma_* TILE_M=TILES_M[TILE] TILE_N=TILES_N[TILE] TILE_K=TILES_K[TILE] THREADS=32*WARPS_M[TILE]*WARPS_N[TILE] STAGES=plan
constexpr uint TILES_M[] = {128, 128, 64, 32};
constexpr uint TILES_N[] = {256, 128, 64, 32};
constexpr uint TILES_K[] = {64, 64, 64, 64};
constexpr uint WARPS_M[] = {2, 2, 2, 2};
constexpr uint WARPS_N[] = {4, 2, 2, 2};
// Blocks per SM that registers must allow; without a number the assembler spills the smallest tile for more.
constexpr uint RESIDENT[] = {1, 2, 4, 8};

constexpr uint TM = TILES_M[TILE], TN = TILES_N[TILE], TK = TILES_K[TILE];
constexpr uint THREADS = 32 * WARPS_M[TILE] * WARPS_N[TILE];
constexpr uint WM = TM / WARPS_M[TILE], WN = TN / WARPS_N[TILE];  // one warp's part of the tile
constexpr uint MI = WM / 16, NI = WN / 16;                        // its 16 x 16 blocks
constexpr uint A_BYTES = TM * TK * 2, STAGE_BYTES = (TM + TN) * TK * 2;
constexpr uint PITCH = TN + 8;  // of the f32 tile in the epilogue: 8 rows fall into different banks

// A tile of ROWS rows of CHUNKS 16-byte chunks.
template <uint ROWS, uint CHUNKS>
struct Tile {
  static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "swizzle");
  // Where a chunk goes; rows of 64 bytes pair up to fill the 128 bytes of all banks.
  static GPU_MEMBER uint offset(uint row, uint chunk) {
    uint twist = CHUNKS == 4 ? (row >> 1) & 3 : row & 7;
    return (row * CHUNKS + (chunk ^ twist)) * 16;
  }
};

// Copies one operand's tiles. `rows` counts lines of the contiguous index: m or n when k is contiguous, else k.
template <class T, bool K_INNER, uint MN, uint VEC>
struct Loader {
  static constexpr uint ROWS = K_INNER ? MN : TK;
  static constexpr uint CHUNKS = (K_INNER ? TK : MN) / 8;
  static constexpr uint ROWS_PER_PASS = THREADS / CHUNKS;
  static constexpr uint PASSES = ROWS / ROWS_PER_PASS;
  static constexpr uint UNROLL = VEC == 2 ? 1 : PASSES;  // eight loads of a guarded chunk are enough in flight
  static_assert(ROWS_PER_PASS % 8 == 0 && PASSES * ROWS_PER_PASS == ROWS, "the twist is the same in every pass");
  using Shape = Tile<ROWS, CHUNKS>;

  const T* src;              // this thread's first chunk in the current step
  ulong line, inner, step;   // strides: between lines, along the contiguous index, between steps
  uint dst;                  // offset in the tile
  int lines_left, elems_left;  // from this thread's first chunk to the end of the matrix

  GPU_MEMBER Loader(const T* matrix, ulong mn_stride, ulong k_stride, uint mn0, uint mn, uint k) {
    uint row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    line = K_INNER ? mn_stride : k_stride;
    inner = K_INNER ? k_stride : mn_stride;
    step = k_stride * TK;
    uint row0 = K_INNER ? mn0 : 0, elem0 = K_INNER ? 0 : mn0;
    src = matrix + (row0 + ulong(row)) * line + (elem0 + chunk * 8ull) * inner;
    dst = Shape::offset(row, chunk);
    lines_left = int(min(K_INNER ? mn - mn0 : k, 1u << 30)) - int(row);
    elems_left = int(min(K_INNER ? k : mn - mn0, 1u << 30)) - int(chunk * 8);
  }

  // Begins the copy of the current step into `stage` (a tile in shared memory) and moves on along k.
  GPU_MEMBER void load(uchar* tile, uint k_left) {
    int elems = K_INNER ? int(min(k_left, 1u << 30)) - int(threadIdx.x % CHUNKS * 8) : elems_left;
    int lines = K_INNER ? lines_left : int(min(k_left, 1u << 30)) - int(threadIdx.x / CHUNKS);
    int whole = max(0, min(8, elems));
#pragma unroll UNROLL
    for (uint i = 0; i < PASSES; i++) {
      const T* p = src + ulong(i * ROWS_PER_PASS) * line;
      int valid = int(i * ROWS_PER_PASS) < lines ? whole : 0;
      copy(tile + dst + i * (ROWS_PER_PASS * CHUNKS * 16), p, valid);
    }
    src += step;
  }

  // One 16-byte chunk, of which `valid` elements exist.
  GPU_MEMBER void copy(uchar* to, const T* from, int valid) const {
    if constexpr (VEC == 16) {
      cp_async_16(smem_address(to), from, uint(valid) * 2);
    } else if constexpr (VEC == 2) {
      ushort e[8];
#pragma unroll
      for (int j = 0; j < 8; j++) e[j] = j < valid ? from[j * inner].bits : ushort(0);
      *(uint4*)to = uint4(e[0] | uint(e[1]) << 16, e[2] | uint(e[3]) << 16, e[4] | uint(e[5]) << 16, e[6] | uint(e[7]) << 16);
    } else {
      constexpr int PART = VEC / 2;
#pragma unroll
      for (int j = 0; j < 8; j += PART) {
        uint bytes = uint(max(0, min(PART, valid - j))) * 2;
        if constexpr (VEC == 8) cp_async_8(smem_address(to) + j * 2, from + j, bytes);
        else cp_async_4(smem_address(to) + j * 2, from + j, bytes);
      }
    }
  }
};

// One 16 x 16 block of an operand as four 8 x 8 matrices. INNER_FIRST: matrices 0 and 1 differ along k (B), else along
// m (A). `mn` and `k` are its first indices in the tile.
template <bool K_INNER, bool INNER_FIRST, uint MN>
DEVFN void load_fragment(uint (&r)[4], uint tile, uint mn, uint k) {
  uint matrix = gpu_lane >> 3, in = gpu_lane & 7;
  uint k_block = INNER_FIRST ? matrix & 1 : matrix >> 1, mn_block = INNER_FIRST ? matrix >> 1 : matrix & 1;
  if constexpr (K_INNER) {
    ldmatrix_x4(r, tile + Tile<MN, TK / 8>::offset(mn + mn_block * 8 + in, k / 8 + k_block));
  } else {
    ldmatrix_x4_trans(r, tile + Tile<TK, MN / 8>::offset(k + k_block * 8 + in, mn / 8 + mn_block));
  }
}

template <class T, class Out>
DEVFN void gemm(const T* a, const T* b, Out* c, const uchar* bias, const GemmArgs& args) {
  extern __shared__ __align__(128) uchar smem[];
  GRID_RELEASE;
  GRID_WAIT;
  TileOrigin o = tile_origin(args, TM, TN);
  Loader<T, A_ROWS, TM, VEC_A> load_a(a + o.batch * args.a_bs, args.a_rs, args.a_cs, o.row, args.m, args.k);
  Loader<T, !B_ROWS, TN, VEC_B> load_b(b + o.batch * args.b_bs, args.b_cs, args.b_rs, o.col, args.n, args.k);
  uint warp_m = gpu_sg / WARPS_N[TILE] * WM, warp_n = gpu_sg % WARPS_N[TILE] * WN;
  uint base = smem_address(smem);
  uint steps = args.k / TK + (args.k % TK != 0);

  float acc[MI][NI * 2][4] = {};
  uint loaded = 0;
  auto load_next = [&](uint stage) {
    if (loaded < steps) {
      uchar* tile = smem + stage * STAGE_BYTES;
      load_a.load(tile, args.k - loaded * TK);
      load_b.load(tile + A_BYTES, args.k - loaded * TK);
    }
    loaded++;
    cp_async_commit();  // also when empty: the wait below counts groups
  };
  for (uint s = 0; s + 1 < STAGES; s++) load_next(s);

  uint stage = 0, fill = STAGES - 1;
#pragma unroll 1
  for (uint s = 0; s < steps; s++) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // tile s has arrived for all, and all have left the stage that is filled next
    load_next(fill);
    uint tile = base + stage * STAGE_BYTES;
    uint fa[2][MI][4], fb[2][NI][4];
    auto fetch = [&](uint slot, uint k) {
#pragma unroll
      for (uint i = 0; i < MI; i++) load_fragment<A_ROWS, false, TM>(fa[slot][i], tile, warp_m + i * 16, k);
#pragma unroll
      for (uint j = 0; j < NI; j++) load_fragment<!B_ROWS, true, TN>(fb[slot][j], tile + A_BYTES, warp_n + j * 16, k);
    };
    fetch(0, 0);
#pragma unroll
    for (uint k = 0; k < TK / 16; k++) {
      if (k + 1 < TK / 16) fetch((k + 1) & 1, (k + 1) * 16);  // the next block travels while this one is multiplied
#pragma unroll
      for (uint i = 0; i < MI; i++) {
#pragma unroll
        for (uint j = 0; j < NI; j++) {
          const uint(&f)[4] = fb[k & 1][j];
          mma_16x8x16(acc[i][2 * j], fa[k & 1][i], f[0], f[1], T());
          mma_16x8x16(acc[i][2 * j + 1], fa[k & 1][i], f[2], f[3], T());
        }
      }
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    fill = fill + 1 == STAGES ? 0 : fill + 1;
  }

  cp_async_wait<0>();
  __syncthreads();  // the stages become the f32 tile
  float* sums = (float*)smem;
  uint g = gpu_lane >> 2, t = gpu_lane & 3;
#pragma unroll
  for (uint i = 0; i < MI; i++) {
#pragma unroll
    for (uint j = 0; j < NI * 2; j++) {
      float* p = sums + (warp_m + i * 16 + g) * PITCH + warp_n + j * 8 + t * 2;
      *(float2*)p = float2(acc[i][j][0], acc[i][j][1]);
      *(float2*)(p + 8 * PITCH) = float2(acc[i][j][2], acc[i][j][3]);
    }
  }
  __syncthreads();
  store_tile<Out, TM, TN, PITCH, THREADS, TM, TM>(sums, c, bias, args, o, 0);
}

#define BOUNDS THREADS, RESIDENT[TILE]

#define GEMM_MMA(name, T, Out)                                                                                     \
  KERNEL(name, BOUNDS, IN(T, a, 0), IN(T, b, 1), OUT(Out, c, 2), IN_ALIASED(uchar, bias, 3), ARGS(GemmArgs, args, 4)) { \
    gemm<T, Out>(a, b, c, bias, args);                                                                             \
  }

// Each entry takes the compiler a quarter of a second, so the builder names the one it wants.
#ifdef ENTRY_gemm_mma_bf16_f32
GEMM_MMA(gemm_mma_bf16_f32, bfloat, float)
#endif
#ifdef ENTRY_gemm_mma_bf16_bf16
GEMM_MMA(gemm_mma_bf16_bf16, bfloat, bfloat)
#endif
#ifdef ENTRY_gemm_mma_bf16_f16
GEMM_MMA(gemm_mma_bf16_f16, bfloat, half)
#endif
#ifdef ENTRY_gemm_mma_f16_f32
GEMM_MMA(gemm_mma_f16_f32, half, float)
#endif
#ifdef ENTRY_gemm_mma_f16_f16
GEMM_MMA(gemm_mma_f16_f16, half, half)
#endif
#ifdef ENTRY_gemm_mma_f16_bf16
GEMM_MMA(gemm_mma_f16_bf16, half, bfloat)
#endif
