// C = act(alpha A B + beta C + bias) for bf16 and f16 operands on Hopper: TMA copies, wgmma, warp specialisation.
//
// Layout     A [m, k] and B [k, n], either index contiguous: A_ROWS (B_ROWS) says that A's (B's) rows are. Addresses and
//            strides of A and B are multiples of 16 bytes. C row-major, any stride.
// Grid       persistent blocks walk over tiles (matrix, tile_m, tile_n), in bands of BAND tile rows; see tile_origin().
//            SPLIT > 1: one tile per cluster of SPLIT blocks, each of which takes a part of k.
// Block      warpgroup 0 copies: one thread fills a ring of STAGES tiles of A and B. The other warpgroups multiply, each
//            64 rows of the tile, with all sums in registers, and finish and store them. While they store one tile the
//            ring fills with the next.
// Accumulate f32 in the tensor core, k in steps of 16, in order; parts of a split k are added by rank, in order: the
//            same bits on every run.
// Tails      the copy engine fills with zeros beyond m, n and k.
// C          C_WIDE (address, strides and rows of C are multiples of 16 bytes): through swizzled shared memory and the
//            copy engine, which clips rows to 16-byte chunks and not to elements. Otherwise, and with SPLIT, each thread
//            stores its own pairs, guarded.
//
// Why        beside gemm_mma.cu: mma.sync reaches about 2/3 of what wgmma does. Its first form measured 1.01-1.04 of
//            cuBLAS at 4096^3 and 8192^3 on an H200 (98 % of cycles in the tensor core); docs/tuning-log.md goes on.

// Compiled by scripts/nvrtc_check.py; the tests of device/cuda compile every row of the table.
// arch: sm_90a
// variant: TILE=0 STAGES=4 A_ROWS=1 B_ROWS=1 C_WIDE=1 SPLIT=1 BAND=16
// variant: TILE=1 STAGES=4 A_ROWS=0 B_ROWS=1 C_WIDE=1 SPLIT=1 BAND=16
// variant: TILE=2 STAGES=6 A_ROWS=1 B_ROWS=0 C_WIDE=0 SPLIT=3 BAND=8
// variant: TILE=3 STAGES=4 A_ROWS=0 B_ROWS=0 C_WIDE=0 SPLIT=1 BAND=16
// variant: TILE=4 STAGES=6 A_ROWS=1 B_ROWS=1 C_WIDE=1 SPLIT=8 BAND=8

// AUDIT: kernel=gemm_wgmma_* TILE_M=TILES_M[TILE] TILE_N=TILES_N[TILE] TILE_K=64 THREADS=128*WARPGROUPS[TILE] STAGES=plan

FCONST(uint, TILE, 0);
FCONST(uint, STAGES, 1);
FCONST(bool, A_ROWS, 2);
FCONST(bool, B_ROWS, 3);
FCONST(bool, C_WIDE, 4);
FCONST(uint, SPLIT, 5);
FCONST(uint, BAND, 6);

// Audited against device/cuda/tables/wgmma.rs: column i is the tile with index i.
constexpr uint TILES_M[] = {128, 128, 128, 64, 64};
constexpr uint TILES_N[] = {256, 192, 128, 128, 64};
constexpr uint WARPGROUPS[] = {3, 3, 3, 2, 2};
// Blocks per SM that registers must allow, and registers of a copying and of a multiplying thread.
constexpr uint RESIDENT[] = {1, 1, 1, 2, 2};
constexpr uint COPY_REGISTERS = 40;
constexpr uint MULTIPLY_REGISTERS[] = {232, 232, 232, 216, 216};

constexpr uint TM = TILES_M[TILE], TN = TILES_N[TILE];
constexpr uint TILE_K = 64;  // 128 bytes: the span of the swizzle, four steps of wgmma
constexpr uint THREADS = 128 * WARPGROUPS[TILE], CONSUMERS = WARPGROUPS[TILE] - 1;
static_assert(TM == 64 * CONSUMERS, "a warpgroup multiplies 64 rows");
constexpr uint PANEL = 64 * 128;  // 64 rows of 128 bytes
constexpr uint A_BYTES = TM * 128, STAGE_BYTES = (TM + TN) * 128;
constexpr uint SUMS = TN / 2;       // of one thread
constexpr uint SLICES = TN / 16;    // 16 columns: eight sums of one thread, what one stmatrix stores
constexpr bool STAGED = C_WIDE && SPLIT == 1;
constexpr uint RING = 2;            // panels of C in shared memory, per warpgroup
constexpr uint C_BYTES = STAGED ? CONSUMERS * RING * PANEL : 0;
static_assert(TM * TN * 4 <= STAGES * STAGE_BYTES, "the sums of a split tile take the place of its stages");

// Named barriers: 1 and 2 are those of one multiplying warpgroup.
constexpr uint ALL_CONSUMERS = 3;

using Cursor = RingCursor<STAGES>;

// Shared memory of a block: stages, panels of C, barriers.
struct Memory {
  uint stages, panels, full, empty;
  GPU_MEMBER explicit Memory(uint base) {
    stages = base;
    panels = stages + STAGES * STAGE_BYTES;
    full = panels + C_BYTES;
    empty = full + STAGES * 8;
  }
};

// The tiles of k that this block multiplies.
struct Depth {
  uint first, end;
  GPU_MEMBER Depth(uint k, uint rank) {
    uint all = k / TILE_K + (k % TILE_K != 0);
    first = all * rank / SPLIT;
    end = all * (rank + 1) / SPLIT;
  }
};

// One stage of A and B. A panel is 64 rows of the contiguous index's lines; k-contiguous operands come as one box.
DEVFN void load_stage(const TensorMap& a, const TensorMap& b, uint tile, uint full, TileOrigin o, uint za, uint zb, uint k) {
  mbarrier_expect(full, STAGE_BYTES);
  if constexpr (A_ROWS) {
    tma_load(tile, a, k, o.row, za, full);
  } else {
#pragma unroll
    for (uint i = 0; i < TM / 64; i++) tma_load(tile + i * PANEL, a, o.row + i * 64, k, za, full);
  }
  if constexpr (B_ROWS) {
#pragma unroll
    for (uint i = 0; i < TN / 64; i++) tma_load(tile + A_BYTES + i * PANEL, b, o.col + i * 64, k, zb, full);
  } else {
    tma_load(tile + A_BYTES, b, k, o.col, zb, full);
  }
}

// Sums of 64 rows of a tile over its part of k. `part` is the warpgroup's number among those that multiply. A stage is
// given back when the batch that read it is done, which is one batch later.
template <class T>
DEVFN void multiply(float (&d)[SUMS], const Memory& memory, Cursor& at, Depth depth, uint part) {
  constexpr ulong STEP_A = (A_ROWS ? 32 : 16 * 128) / 16, STEP_B = (B_ROWS ? 16 * 128 : 32) / 16;
  bool leader = threadIdx.x % 128 == 0;
  uint last = 0;
#pragma unroll 1
  for (uint kb = depth.first; kb < depth.end; kb++) {
    mbarrier_wait(memory.full + at.stage * 8, at.parity);
    uint tile = memory.stages + at.stage * STAGE_BYTES;
    ulong a = matrix_descriptor(tile + part * PANEL, PANEL);
    ulong b = matrix_descriptor(tile + A_BYTES, PANEL);
    wgmma_fence();
#pragma unroll
    for (uint i = 0; i < TILE_K / 16; i++) {
      wgmma<!A_ROWS, B_ROWS>(d, a + i * STEP_A, b + i * STEP_B, (kb - depth.first) | i, T());
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (leader && kb != depth.first) mbarrier_arrive(memory.empty + last * 8);
    last = at.stage;
    at.next();
  }
  wgmma_wait<0>();
#pragma unroll
  for (uint i = 0; i < SUMS; i++) wgmma_settle(d[i]);
  if (leader) mbarrier_arrive(memory.empty + last * 8);
}

// --- a finished tile, in slices of 16 columns ------------------------------------------------------------------------

// Of a slice a thread has four pairs of neighbours: pair p is at row + 8 * (p % 2), col + 8 * (p / 2).
struct Slice {
  float t[8];
};

// Slice `index` of the sums. Registers cannot be indexed, so this is a jump into moves.
template <uint I = 0>
DEVFN void pick(Slice& s, const float (&d)[SUMS], uint index) {
  if (index == I) {
#pragma unroll
    for (uint i = 0; i < 8; i++) s.t[i] = d[I * 8 + i];
  } else if constexpr (I + 1 < SLICES) {
    pick<I + 1>(s, d, index);
  }
}

DEVFN void store_pair(bfloat* p, float lo, float hi) { *(uint*)p = pack_pair(lo, hi, bfloat()); }
DEVFN void store_pair(half* p, float lo, float hi) { *(uint*)p = pack_pair(lo, hi, half()); }
DEVFN void store_pair(float* p, float lo, float hi) { *(float2*)p = float2(lo, hi); }

// Adds beta C. Loads are not guarded one by one, which would run them one after the other: those outside the matrix
// read its edge instead, and what becomes of them is not stored.
template <class Out>
DEVFN void add_old(Slice& s, const Out* c, const GemmArgs& args, uint row, uint col) {
  Out old[8];
#pragma unroll
  for (uint p = 0; p < 4; p++) {
    const Out* line = c + ulong(min(row + 8 * (p % 2), args.m - 1)) * args.c_rs;
    uint j = col + 8 * (p / 2);
    if (C_WIDE && args.n % 2 == 0) {
      *(vec<Out, 2>*)&old[2 * p] = *(const vec<Out, 2>*)(line + min(j, args.n - 2));
    } else {
      old[2 * p] = line[min(j, args.n - 1)];
      old[2 * p + 1] = line[min(j + 1, args.n - 1)];
    }
  }
#pragma unroll
  for (uint i = 0; i < 8; i++) s.t[i] = fmaf(args.beta, float(old[i]), s.t[i]);
}

template <class Out>
DEVFN void add_bias(Slice& s, const uchar* bias, const GemmArgs& args, uint row, uint col) {
  float v[8];
#pragma unroll
  for (uint i = 0; i < 8; i++) {
    uint j = col + 8 * (i / 4) + i % 2, r = row + 8 * (i / 2 % 2);
    v[i] = bias_at<Out>(bias, args, args.bias == 1 ? min(j, args.n - 1) : min(r, args.m - 1));
  }
#pragma unroll
  for (uint i = 0; i < 8; i++) s.t[i] = __fadd_rn(s.t[i], v[i]);
}

template <uint KIND>
DEVFN void activate_slice(Slice& s) {
#pragma unroll
  for (uint i = 0; i < 8; i++) s.t[i] = activate(KIND, s.t[i]);
}

// alpha, beta, bias and activation, in that order; the same operations as finish() in epilogue.cuh.
template <class Out>
DEVFN void finish_slice(Slice& s, const Out* c, const uchar* bias, const GemmArgs& args, uint row, uint col) {
#pragma unroll
  for (uint i = 0; i < 8; i++) s.t[i] = __fmul_rn(args.alpha, s.t[i]);
  if (args.beta != 0.0f) add_old(s, c, args, row, col);
  if (args.bias) add_bias<Out>(s, bias, args, row, col);
  switch (args.activation) {  // once per slice, not once per element
    case 1: activate_slice<1>(s); break;
    case 2: activate_slice<2>(s); break;
    case 3: activate_slice<3>(s); break;
    case 4: activate_slice<4>(s); break;
  }
}

// Straight to C.
template <class Out>
DEVFN void store_slice(const Slice& s, Out* c, const GemmArgs& args, uint row, uint col) {
#pragma unroll
  for (uint p = 0; p < 4; p++) {
    uint r = row + 8 * (p % 2), j = col + 8 * (p / 2);
    if (r >= args.m || j >= args.n) continue;
    Out* q = c + ulong(r) * args.c_rs + j;
    if (C_WIDE && args.n - j >= 2) {
      store_pair(q, s.t[2 * p], s.t[2 * p + 1]);
    } else {
      q[0] = Out(s.t[2 * p]);
      if (args.n - j >= 2) q[1] = Out(s.t[2 * p + 1]);
    }
  }
}

// To slice `index` of a panel, 64 rows of 128 bytes whose 16-byte chunks are twisted as the copy engine expects.
template <class Out>
DEVFN void stage_slice(const Slice& s, uint panel, uint index) {
  uint warp = threadIdx.x / 32 % 4;
  if constexpr (sizeof(Out) == 2) {
    uint row = warp * 16 + gpu_lane % 16, chunk = index * 2 + gpu_lane / 16;
    uint packed[4];
#pragma unroll
    for (uint p = 0; p < 4; p++) packed[p] = pack_pair(s.t[2 * p], s.t[2 * p + 1], Out());
    stmatrix_x4(panel + row * 128 + (chunk ^ row % 8) * 16, packed);
  } else {
    uint g = gpu_lane / 4, t = gpu_lane % 4;
#pragma unroll
    for (uint p = 0; p < 4; p++) {
      uint row = warp * 16 + g + 8 * (p % 2), chunk = index * 4 + 2 * (p / 2) + t / 2;
      shared_store(panel + row * 128 + (chunk ^ row % 8) * 16 + t % 2 * 8, float2(s.t[2 * p], s.t[2 * p + 1]));
    }
  }
}

// Finishes and stores 64 rows of a tile. `ring` counts the panels that this warpgroup has ever stored.
template <class Out>
DEVFN void store_sums(const float (&d)[SUMS], const TensorMap& map, Out* c, const uchar* bias, const GemmArgs& args,
                      TileOrigin o, const Memory& memory, uint part, uint& ring) {
  constexpr uint PER_PANEL = 8 / sizeof(Out);  // slices
  uint tid = threadIdx.x % 128;
  uint row = o.row + part * 64 + tid / 32 * 16 + gpu_lane / 4, col = o.col + gpu_lane % 4 * 2;
  c += o.batch * args.c_bs;
  auto emit = [&](const Slice& s, uint index) {
    if constexpr (!STAGED) return store_slice(s, c, args, row, col + index * 16);
    uint panel = memory.panels + (part * RING + ring % RING) * PANEL;
    if (index % PER_PANEL == 0) {
      if (tid == 0) tma_wait_read<RING - 1>();
      barrier_sync(1 + part, 128);  // the panel is free
    }
    stage_slice<Out>(s, panel, index % PER_PANEL);
    if (index % PER_PANEL == PER_PANEL - 1) {
      fence_async_shared();
      barrier_sync(1 + part, 128);  // the panel is full
      if (tid == 0) {
        tma_store(map, o.col + index / PER_PANEL * PER_PANEL * 16, o.row + part * 64, uint(o.batch), panel);
        tma_commit();
      }
      ring++;
    }
  };
  Slice s;
  if (args.alpha == 1.0f && args.beta == 0.0f && args.bias == 0 && args.activation == 0) {
#pragma unroll
    for (uint i = 0; i < SLICES; i++) {
#pragma unroll
      for (uint j = 0; j < 8; j++) s.t[j] = d[i * 8 + j];
      emit(s, i);
    }
  } else {
    // Rolled: one copy of the activations in the code.
#pragma unroll 1
    for (uint i = 0; i < SLICES; i++) {
      pick(s, d, i);
      finish_slice(s, c, bias, args, row, col + i * 16);
      emit(s, i);
    }
  }
}

// --- one tile by several blocks --------------------------------------------------------------------------------------

// Where a thread keeps half a slice of its sums for the cluster; every block has the same places.
DEVFN uint partial(const Memory& memory, uint part, uint slice, uint half_slice) {
  return memory.stages + (((part * SLICES + slice) * 2 + half_slice) * 128 + threadIdx.x % 128) * 16;
}

DEVFN void publish(const float (&d)[SUMS], const Memory& memory, uint part) {
  barrier_sync(ALL_CONSUMERS, CONSUMERS * 128);  // nobody reads a stage any more
#pragma unroll
  for (uint i = 0; i < SUMS / 4; i++) {
    shared_store(partial(memory, part, i / 2, i % 2), float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
  }
}

// Each block adds up and stores every SPLIT-th slice.
template <class Out>
DEVFN void store_shares(Out* c, const uchar* bias, const GemmArgs& args, TileOrigin o, const Memory& memory, uint part,
                        uint rank) {
  uint row = o.row + part * 64 + threadIdx.x / 32 % 4 * 16 + gpu_lane / 4, col = o.col + gpu_lane % 4 * 2;
  c += o.batch * args.c_bs;
#pragma unroll 1
  for (uint i = rank; i < SLICES; i += SPLIT) {
    Slice s = {};
#pragma unroll
    for (uint q = 0; q < SPLIT; q++) {
#pragma unroll
      for (uint h = 0; h < 2; h++) {
        float4 v = cluster_load(cluster_address(partial(memory, part, i, h), q));
        s.t[4 * h] += v.x, s.t[4 * h + 1] += v.y, s.t[4 * h + 2] += v.z, s.t[4 * h + 3] += v.w;
      }
    }
    finish_slice(s, c, bias, args, row, col + i * 16);
    store_slice(s, c, args, row, col + i * 16);
  }
}

// --- the kernel ------------------------------------------------------------------------------------------------------

template <class T, class Out>
DEVFN void gemm(const TensorMap& map_a, const TensorMap& map_b, const TensorMap& map_c, Out* c, const uchar* bias,
                const GemmArgs& args) {
  extern __shared__ __align__(1024) uchar smem[];  // the swizzle counts from multiples of 1024
  Memory memory(smem_address(smem));
  uint warpgroup = threadIdx.x / 128, rank = SPLIT > 1 ? cluster_rank() : 0;
  uint first = blockIdx.x / SPLIT, stride = gridDim.x / SPLIT, tiles = args.tiles_m * args.tiles_n * args.batch;
  Depth depth(args.k, rank);

  if (threadIdx.x == 0) {
    prefetch_map(map_a);
    prefetch_map(map_b);
    if (STAGED) prefetch_map(map_c);
    for (uint s = 0; s < STAGES; s++) {
      mbarrier_init(memory.full + s * 8, 1);
      mbarrier_init(memory.empty + s * 8, CONSUMERS);
    }
    fence_async_shared();
  }
  __syncthreads();
  GRID_WAIT;

  if (warpgroup == 0) {
    registers_give<COPY_REGISTERS>();
    if (threadIdx.x == 0) {
      Cursor at(1);  // every stage is empty
      for (uint tile = first; tile < tiles; tile += stride) {
        TileOrigin o = tile_origin(args, TM, TN, tile, BAND);
        uint za = args.a_bs ? uint(o.batch) : 0, zb = args.b_bs ? uint(o.batch) : 0;  // one matrix may serve all
        for (uint kb = depth.first; kb < depth.end; kb++) {
          mbarrier_wait(memory.empty + at.stage * 8, at.parity);
          load_stage(map_a, map_b, memory.stages + at.stage * STAGE_BYTES, memory.full + at.stage * 8, o, za, zb,
                     kb * TILE_K);
          at.next();
        }
      }
      GRID_RELEASE;
    }
    __syncwarp();
    if (SPLIT > 1) {
      cluster_arrive_relaxed();
      cluster_wait();
      cluster_arrive_relaxed();
      cluster_wait();
    }
  } else {
    registers_take<MULTIPLY_REGISTERS[TILE]>();
    uint part = warpgroup - 1, ring = 0;
    Cursor at(0);
    for (uint tile = first; tile < tiles; tile += stride) {
      float d[SUMS];
      multiply<T>(d, memory, at, depth, part);
      if constexpr (SPLIT == 1) {
        store_sums(d, map_c, c, bias, args, tile_origin(args, TM, TN, tile, BAND), memory, part, ring);
      } else {
        publish(d, memory, part);
        cluster_arrive();
        cluster_wait();
        store_shares(c, bias, args, tile_origin(args, TM, TN, tile, BAND), memory, part, rank);
        cluster_arrive_relaxed();  // no block leaves while another reads its sums
        cluster_wait();
      }
    }
    if (STAGED && threadIdx.x % 128 == 0) tma_wait_all();  // shared memory must outlive the copies
  }
}

#if FC_SPLIT > 1
#define CLUSTER __cluster_dims__(SPLIT, 1, 1)
#else
#define CLUSTER
#endif

// The operands of every GEMM, then what the copy engine knows of A, B and C.
#define GEMM_WGMMA(name, T, Out)                                                                                       \
  extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, RESIDENT[TILE])                                        \
      name(const T*, const T*, Out* c, const uchar* bias, const __grid_constant__ GemmArgs args,                       \
           const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,                           \
           const __grid_constant__ TensorMap map_c) {                                                                  \
    gemm<T, Out>(map_a, map_b, map_c, c, bias, args);                                                                  \
  }

// Each entry takes the compiler a while, so the builder names the one it wants.
#ifdef ENTRY_gemm_wgmma_bf16_f32
GEMM_WGMMA(gemm_wgmma_bf16_f32, bfloat, float)
#endif
#ifdef ENTRY_gemm_wgmma_bf16_bf16
GEMM_WGMMA(gemm_wgmma_bf16_bf16, bfloat, bfloat)
#endif
#ifdef ENTRY_gemm_wgmma_bf16_f16
GEMM_WGMMA(gemm_wgmma_bf16_f16, bfloat, half)
#endif
#ifdef ENTRY_gemm_wgmma_f16_f32
GEMM_WGMMA(gemm_wgmma_f16_f32, half, float)
#endif
#ifdef ENTRY_gemm_wgmma_f16_f16
GEMM_WGMMA(gemm_wgmma_f16_f16, half, half)
#endif
#ifdef ENTRY_gemm_wgmma_f16_bf16
GEMM_WGMMA(gemm_wgmma_f16_bf16, half, bfloat)
#endif
