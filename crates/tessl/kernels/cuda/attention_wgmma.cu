// Attention over tiles of queries for bf16 and f16 on Hopper; the formula is that of kernels/simt/attention.metal.
//
// Layout     as attention.metal, rows of `dim` <= SIZE elements, dim a multiple of 8, addresses and strides of 16 bytes.
// Grid       persistent blocks walk over tiles: a sequence, a query head, 64 * CONSUMERS queries. Key heads are taken in
//            sections whose keys and values stay in L2, the tiles that see the most keys first; see job_of().
// Block      warpgroup 0 copies: one thread fetches each tile's queries, and keys and values in blocks of BLOCK through a
//            ring of STAGES. Each other warpgroup has 64 queries with scores, weights and results in registers. It starts
//            the products q k^T of a block and weights v of the block before together, and finds the new weights while
//            the second one runs. Warpgroups take turns to start products (TURN), so that one weighs while another
//            multiplies.
// Accumulate f32 in the tensor core, from the last key to the first, in steps of 16. Weights are 2^(t - base): base is the
//            maximum, or up to 8 below it, so that results are scaled again only where the maximum grew by more; they are
//            rounded to the operands' type for the product with v and added up as f32. The same bits on every run.
// Error      of a weight: 2^-22 of exp2_fast and half a unit of the operands' type. Of tanh, for a softcap: 2^-20, relative.
// Tails      the copy engine fills with zeros beyond q, k, v. Keys that the whole tile does not see are cleared in v.
// Special    a key that a row does not see has weight 0, which would make NaN of a NaN or infinity in v. So a row whose
//            result is not finite, while its scores are, is computed again, key by key, and hidden keys are skipped.
// Faults     as attention.metal.

// Compiled by scripts/nvrtc_check.py; the tests of device/cuda compile every row of the table.
// arch: sm_90a
// after: simt/attention.metal
// variant: SIZE=64 CONSUMERS=3 BLOCK=96 STAGES=3 VEC16=1 CODED=0
// variant: SIZE=96 CONSUMERS=2 BLOCK=160 STAGES=2 VEC16=1 CODED=0
// variant: SIZE=128 CONSUMERS=2 BLOCK=160 STAGES=2 VEC16=1 CODED=0
// variant: SIZE=128 CONSUMERS=3 BLOCK=64 STAGES=3 VEC16=1 CODED=0
// variant: SIZE=192 CONSUMERS=2 BLOCK=112 STAGES=2 VEC16=1 CODED=0
// variant: SIZE=256 CONSUMERS=2 BLOCK=64 STAGES=2 VEC16=1 CODED=0

FCONST(uint, SIZE, 1);
FCONST(uint, CONSUMERS, 2);
FCONST(uint, BLOCK, 3);
FCONST(uint, STAGES, 4);

// As in device/cuda/tables/attention.rs.
constexpr uint TILE = 64 * CONSUMERS;
constexpr uint COPY_REGISTERS = CONSUMERS == 2 ? 24 : 32, MULTIPLY_REGISTERS = CONSUMERS == 2 ? 240 : 160;

constexpr uint PANELS = (SIZE + 63) / 64;  // of 64 elements: 128 bytes, the span of the swizzle
constexpr uint STEPS = SIZE / 16, KEY_STEPS = BLOCK / 16;
static_assert(SIZE % 32 == 0 && BLOCK % 16 == 0, "whole steps, and whole groups of columns to store");
constexpr uint PART_BYTES = 64 * 128, QUERY_PANEL = TILE * 128, KEY_PANEL = BLOCK * 128;
constexpr uint QUERY_BYTES = PANELS * QUERY_PANEL, KEY_BYTES = PANELS * KEY_PANEL;

// Keys and values of a section of heads, at most: half of L2.
constexpr ulong SECTION_BYTES = 24 << 20;
// Powers of two that the maximum may grow by before results are scaled.
constexpr float SLACK = 8.0f;
constexpr float LOG2_E = 1.44269504f;

// Named barriers: from TURN on one for each warpgroup's turn, from CLEARED on one for its own threads.
constexpr uint TURN = 1, CLEARED = TURN + CONSUMERS;

using Cursor = RingCursor<STAGES>;

// Shared memory of a block: queries, stages of keys, stages of values, barriers (8 bytes each).
struct Memory {
  uint queries, keys, values, bars;
  GPU_MEMBER explicit Memory(uint base) {
    queries = base;
    keys = queries + QUERY_BYTES;
    values = keys + STAGES * KEY_BYTES;
    bars = values + STAGES * KEY_BYTES;
  }
  GPU_MEMBER uint query_full(uint part) const { return bars + part * 8; }
  GPU_MEMBER uint query_empty(uint part) const { return bars + (CONSUMERS + part) * 8; }
  GPU_MEMBER uint key_full(uint stage) const { return bars + (2 * CONSUMERS + stage) * 8; }
  GPU_MEMBER uint key_empty(uint stage) const { return bars + (2 * CONSUMERS + STAGES + stage) * 8; }
  GPU_MEMBER uint value_full(uint stage) const { return bars + (2 * CONSUMERS + 2 * STAGES + stage) * 8; }
  GPU_MEMBER uint value_empty(uint stage) const { return bars + (2 * CONSUMERS + 3 * STAGES + stage) * 8; }
};

// A tile: queries first .. first + count - 1 of a sequence and one head. They see keys from low to high - 1, in `blocks`
// blocks from low on. Nothing is to be done where count is 0.
struct Job {
  Sequence s;
  uint head, first, count, low, high, blocks;
};

// The tile that the sequences' rows have at `tile`.
DEVFN void locate(Job& job, uint tile, const uint* starts, const uint* lengths, const uint* cu_q, const AttentionArgs& p) {
  for (uint b = 0; b < p.sequences; b++) {
    job.s = sequence_of(b, starts, lengths, cu_q, p);
    if (job.s.bad) continue;
    uint tiles = job.s.queries / TILE + (job.s.queries % TILE != 0);
    if (tile < tiles) {
      job.first = tile * TILE;
      job.count = min(TILE, job.s.queries - job.first);
      return;
    }
    tile -= tiles;
  }
  job.count = 0;
}

DEVFN Job job_of(uint index, const uint* starts, const uint* lengths, const uint* cu_q, const AttentionArgs& p) {
  Job job;
  if (p.packed) {
    job.head = index % p.heads;
    locate(job, index / p.heads, starts, lengths, cu_q, p);
  } else {
    uint tiles = p.queries / TILE + (p.queries % TILE != 0), pairs = p.sequences * p.heads;
    ulong bytes = ulong(p.keys) * SIZE * 4;
    uint section = uint(min(max(SECTION_BYTES / bytes, 1ull) * p.group, ulong(pairs)));
    uint begin = index / (section * tiles) * section, inside = index % (section * tiles);
    uint heads = min(section, pairs - begin), pair = begin + inside % heads;
    job.s = sequence_of(pair / p.heads, starts, lengths, cu_q, p);
    job.head = pair % p.heads;
    job.first = (tiles - 1 - inside / heads) * TILE;
    job.count = job.s.bad ? 0 : min(TILE, p.queries - job.first);
  }
  job.low = job.high = job.blocks = 0;
  if (job.count) {
    job.low = seen_by(job.s, job.first, p).x;
    job.high = max(seen_by(job.s, job.first + job.count - 1, p).y, job.low);
    job.blocks = (job.high - job.low + BLOCK - 1) / BLOCK;
  }
  return job;
}

// The work of a block in its round number `round`; rounds alternate in direction, which evens out what tiles cost.
DEVFN uint index_of(uint round) {
  return round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

// Reports sequences that cannot be used.
DEVFN void report(const uint* starts, const uint* lengths, const uint* cu_q, const AttentionArgs& p, STATUS_PARAMS) {
  if (!p.packed && !p.length_mode) return;
  for (uint b = 0; b < p.sequences; b++) {
    Sequence s = sequence_of(b, starts, lengths, cu_q, p);
    if (s.bad) FAULT(s.bad, s.place, s.value);
  }
}

// --- copies ----------------------------------------------------------------------------------------------------------

DEVFN void load_queries(const TensorMap& map, const Memory& memory, const Job& job, uint part, const AttentionArgs& p) {
  mbarrier_expect(memory.query_full(part), PANELS * PART_BYTES);
  uint row = uint(job.s.query) + job.first + part * 64;
#pragma unroll
  for (uint i = 0; i < PANELS; i++) {
    tma_load(memory.queries + i * QUERY_PANEL + part * PART_BYTES, map, i * 64, row, job.head,
             p.packed ? 0 : uint(job.s.index), memory.query_full(part));
  }
}

DEVFN void load_block(const TensorMap& map, uint to, uint full, const Job& job, uint key, const AttentionArgs& p) {
  mbarrier_expect(full, KEY_BYTES);
#pragma unroll
  for (uint i = 0; i < PANELS; i++) {
    tma_load(to + i * KEY_PANEL, map, i * 64, uint(job.s.key) + key, job.head / p.group,
             p.length_mode == 2 ? 0 : uint(job.s.index), full);
  }
}

// --- products --------------------------------------------------------------------------------------------------------

// Scores of 64 queries and a block of keys.
template <class T>
DEVFN void multiply_keys(float (&s)[BLOCK / 2], uint queries, uint keys) {
  ulong a = matrix_descriptor(queries, 16), b = matrix_descriptor(keys, 16);
#pragma unroll
  for (uint i = 0; i < STEPS; i++) {
    wgmma<0, 0>(s, a + (i / 4 * QUERY_PANEL + i % 4 * 32) / 16, b + (i / 4 * KEY_PANEL + i % 4 * 32) / 16, i, T());
  }
  wgmma_commit();
}

// Adds weights times values.
template <class T>
DEVFN void multiply_values(float (&o)[SIZE / 2], const uint (&w)[KEY_STEPS][4], uint values) {
  ulong b = matrix_descriptor(values, KEY_PANEL);
#pragma unroll
  for (uint i = 0; i < KEY_STEPS; i++) wgmma_rs<1>(o, w[i], b + i * 16 * 128 / 16, T());
  wgmma_commit();
}

template <uint N>
DEVFN void settle(float (&d)[N]) {
#pragma unroll
  for (uint i = 0; i < N; i++) wgmma_settle(d[i]);
}

// --- weights ---------------------------------------------------------------------------------------------------------

// What a thread knows of its two rows, g and g + 8 of its warp's sixteen: the keys they see, and the sums of weights
// relative to 2^base.
struct Rows {
  uint2 seen[2];
  float base[2], total[2], factor[2];
};

// Relative error below 2^-20: 1 - 2 / (e^2x + 1), or its series where that would cancel.
DEVFN float tanh_fast(float x) {
  float square = x * x;
  float series = fmaf(square, fmaf(square, fmaf(square, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f) * x;
  float quotient = fmaf(-2.0f, reciprocal_fast(exp2_fast(2.0f * LOG2_E * x) + 1.0f), 1.0f);
  return square < 0.0625f ? series : quotient;
}

// Scores that are not plain products: bent, or with a negative factor.
DEVFN void bend(float (&s)[BLOCK / 2], const AttentionArgs& p) {
  if (p.softcap > 0.0f) {
#pragma unroll
    for (uint i = 0; i < BLOCK / 2; i++) s[i] = p.softcap * tanh_fast(s[i] * p.scale * p.inverse_softcap);
  } else if (p.scale < 0.0f) {
#pragma unroll
    for (uint i = 0; i < BLOCK / 2; i++) s[i] = -s[i];
  }
}

// Hides what rows do not see of the keys from `key` on.
DEVFN void hide(float (&s)[BLOCK / 2], const Rows& rows, uint key) {
#pragma unroll
  for (uint r = 0; r < 2; r++) {
    uint first = key + gpu_lane % 4 * 2 - rows.seen[r].x, width = rows.seen[r].y - rows.seen[r].x;
#pragma unroll
    for (uint i = 0; i < BLOCK / 4; i++) {
      uint at = i / 2 * 4 + r * 2 + i % 2;
      if (first + i / 2 * 8 + i % 2 >= width) s[at] = -INFINITY;
    }
  }
}

// Scores to weights 2^(unit * score - base). Returns whether a base grew, and with it the factor of a row's results.
// NaN gets past the maximum and makes weights and total NaN.
DEVFN bool weigh(float (&s)[BLOCK / 2], Rows& rows, float unit) {
  bool grew = false;
#pragma unroll
  for (uint r = 0; r < 2; r++) {
    float top = s[r * 2];
#pragma unroll
    for (uint i = 1; i < BLOCK / 4; i++) top = fmaxf(top, s[i / 2 * 4 + r * 2 + i % 2]);
    top = fmaxf(top, simd_shuffle_xor(top, 1));
    top = fmaxf(top, simd_shuffle_xor(top, 2)) * unit;
    bool grows = top > rows.base[r] + SLACK;
    float base = grows ? top : rows.base[r];
    rows.factor[r] = grows ? exp2_fast(rows.base[r] - base) : 1.0f;
    rows.base[r] = base;
    grew |= grows;
    // Where nothing has been seen yet, the base is no number to subtract.
    float shift = base == -INFINITY ? 0.0f : base;
    float sums[2] = {};
#pragma unroll
    for (uint i = 0; i < BLOCK / 4; i++) {
      uint at = i / 2 * 4 + r * 2 + i % 2;
      s[at] = exp2_fast(fmaf(s[at], unit, -shift));
      sums[i % 2] += s[at];
    }
    rows.total[r] = fmaf(rows.total[r], rows.factor[r], sums[0] + sums[1]);
  }
  return __any_sync(~0u, grew);
}

DEVFN void rescale(float (&o)[SIZE / 2], const Rows& rows) {
#pragma unroll
  for (uint i = 0; i < SIZE / 2; i++) o[i] *= rows.factor[i / 2 % 2];
}

template <class T>
DEVFN void pack_weights(uint (&w)[KEY_STEPS][4], const float (&s)[BLOCK / 2]) {
#pragma unroll
  for (uint i = 0; i < BLOCK / 4; i++) {
    w[i / 4][i % 4] = pack_pair(s[2 * i], s[2 * i + 1], T());
    wgmma_settle(w[i / 4][i % 4]);
  }
}

// Zeros for the values of a block from key `count` on.
DEVFN void clear_values(uint values, uint count) {
#pragma unroll 1
  for (uint i = threadIdx.x % 128; i < (BLOCK - count) * 8 * PANELS; i += 128) {
    uint row = count + i / 8 % (BLOCK - count), panel = i / 8 / (BLOCK - count);
    shared_store(values + panel * KEY_PANEL + row * 128 + i % 8 * 16, float4(0.0f));
  }
  fence_async_shared();
}

// --- results ---------------------------------------------------------------------------------------------------------

// One over the sum of weights and the sink's, relative to 2^base; 0 where nothing is seen.
DEVFN float inverse_total(float base, float total, bool has_sink, float sink) {
  if (total == 0.0f) return 0.0f;
  if (!has_sink) return 1.0f / total;
  sink *= LOG2_E;
  if (sink > base) {
    float scale = precise::exp2(base - sink);
    return scale / (total * scale + 1.0f);
  }
  return 1.0f / (total + precise::exp2(sink - base));
}

// Word i of thread t of a quad becomes word t of thread i.
DEVFN void transpose(uint (&x)[4]) {
  uint t = gpu_lane % 4;
#pragma unroll
  for (uint m = 1; m < 4; m *= 2) {
    bool high = t & m;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      if (i & m) continue;
      uint got = simd_shuffle_xor(high ? x[i] : x[i + m], ushort(m));
      if (high) {
        x[i] = got;
      } else {
        x[i + m] = got;
      }
    }
  }
}

// One row by one warp, key by key.
template <class T>
DEVFN void attend_row(const T* q, const T* k, const T* v, const float* sinks, T* out, const Job& job, uint t,
                      const AttentionArgs& p) {
  const T* query = q + query_at(job.s, t, job.head, p);
  uint2 seen = seen_by(job.s, t, p);
  uint kv_head = job.head / p.group;
  float most = -INFINITY, total = 0.0f, sums[SIZE / 32] = {};
#pragma unroll 1
  for (uint first = seen.x; first < seen.y; first += 32) {
    float score = -INFINITY;
    if (first + gpu_lane < seen.y) {
      Place at = place_of(job.s, first + gpu_lane, nullptr, p);
      const T* key = k + (at.outer * p.k_b + at.inner * p.k_t + kv_head * p.k_h);
      float product = 0.0f;
#pragma unroll 1
      for (uint d = 0; d < p.dim; d++) product += float(query[d]) * float(key[d]);
      score = score_of(product, nullptr, 0, p);
    }
    float top = score;
    for (ushort m = 16; m; m >>= 1) top = larger(top, simd_shuffle_xor(top, m));
    top = larger(top, most);
    float shift = top == -INFINITY ? 0.0f : top, scale = precise::exp(most - shift);
    float weight = score == -INFINITY ? 0.0f : precise::exp(score - shift);
    most = top;
    total = total * scale + simd_sum(weight);
#pragma unroll
    for (uint i = 0; i < SIZE / 32; i++) sums[i] *= scale;
#pragma unroll 1
    for (uint u = 0; u < min(32u, seen.y - first); u++) {
      float w = simd_broadcast(weight, u);
      Place at = place_of(job.s, first + u, nullptr, p);
      const T* value = v + (at.outer * p.v_b + at.inner * p.v_t + kv_head * p.v_h);
#pragma unroll
      for (uint i = 0; i < SIZE / 32; i++) {
        if (i * 32 + gpu_lane < p.dim) sums[i] += w * float(value[i * 32 + gpu_lane]);
      }
    }
  }
  float factor = inverse_of(most, total, p.has_sinks != 0, p.has_sinks ? sinks[job.head * p.sink_s] : 0.0f);
  T* to = out + out_at(job.s, t, job.head, p);
#pragma unroll
  for (uint i = 0; i < SIZE / 32; i++) {
    if (i * 32 + gpu_lane < p.dim) to[i * 32 + gpu_lane] = T(sums[i] * factor);
  }
}

// Finishes and stores the rows of a warp. `row` is the thread's first one in the tile.
template <class T>
DEVFN void store_rows(const float (&o)[SIZE / 2], Rows& rows, const T* q, const T* k, const T* v, const float* sinks,
                      T* out, const Job& job, uint row, const AttentionArgs& p) {
  float sink = p.has_sinks ? sinks[job.head * p.sink_s] : 0.0f;
  uint again[2];
#pragma unroll
  for (uint r = 0; r < 2; r++) {
    float total = rows.total[r];
    total += simd_shuffle_xor(total, 1);
    total += simd_shuffle_xor(total, 2);
    float inverse = inverse_total(rows.base[r], total, p.has_sinks != 0, sink), test = 0.0f;
    bool inside = row + 8 * r < job.count;
#pragma unroll
    for (uint i = 0; i < SIZE / 4; i++) test = fmaf(o[i / 2 * 4 + r * 2 + i % 2], 0.0f, test);
    // A NaN among the scores makes the whole row NaN, as it should be; any other comes from v.
    bool odd = inside && test != 0.0f && total == total;
    again[r] = __ballot_sync(~0u, odd);
    if (again[r] >> (gpu_lane & ~3u) & 15) inside = false;
    T* to = out + out_at(job.s, job.first + row + 8 * r, job.head, p);
#pragma unroll
    for (uint c = 0; c < SIZE / 32; c++) {
      uint x[4];
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        uint at = (c * 4 + i) * 4 + r * 2;
        x[i] = pack_pair(o[at] * inverse, o[at + 1] * inverse, T());
      }
      transpose(x);
      uint column = (c * 4 + gpu_lane % 4) * 8;
      if (inside && column < p.dim) *(uint4*)(to + column) = uint4(x[0], x[1], x[2], x[3]);
    }
  }
  if ((again[0] | again[1]) == 0) return;
  uint first = row - gpu_lane / 4;
#pragma unroll 1
  for (uint i = 0; i < 16; i++) {
    if ((i < 8 ? again[0] : again[1]) >> (i % 8 * 4) & 15) {
      attend_row(q, k, v, sinks, out, job, job.first + first + i, p);
    }
  }
}

// Zeros for rows that see nothing.
template <class T>
DEVFN void store_nothing(T* out, const Job& job, uint part, const AttentionArgs& p) {
#pragma unroll 1
  for (uint i = threadIdx.x % 128; i < 64 * (SIZE / 8); i += 128) {
    uint row = part * 64 + i / (SIZE / 8), column = i % (SIZE / 8) * 8;
    if (row < job.count && column < p.dim) {
      *(uint4*)(out + out_at(job.s, job.first + row, job.head, p) + column) = uint4(0, 0, 0, 0);
    }
  }
}

// --- the kernel ------------------------------------------------------------------------------------------------------

template <class T>
DEVFN void attend(const T* q, const T* k, const T* v, const float* sinks, const uint* starts, const uint* lengths,
                  const uint* cu_q, T* out, const AttentionArgs& p, const TensorMap& map_q, const TensorMap& map_k,
                  const TensorMap& map_v, STATUS_PARAMS) {
  extern __shared__ __align__(1024) uchar smem[];  // the swizzle counts from multiples of 1024
  Memory memory(smem_address(smem));
  uint warpgroup = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    prefetch_map(map_q);
    prefetch_map(map_k);
    prefetch_map(map_v);
    for (uint i = 0; i < CONSUMERS; i++) {
      mbarrier_init(memory.query_full(i), 1);
      mbarrier_init(memory.query_empty(i), 1);
    }
    for (uint i = 0; i < STAGES; i++) {
      mbarrier_init(memory.key_full(i), 1);
      mbarrier_init(memory.key_empty(i), CONSUMERS);
      mbarrier_init(memory.value_full(i), 1);
      mbarrier_init(memory.value_empty(i), CONSUMERS);
    }
    fence_async_shared();
  }
  __syncthreads();
  GRID_WAIT;

  if (warpgroup == 0) {
    registers_give<COPY_REGISTERS>();
    if (threadIdx.x == 0) {
      Cursor at(1);  // everything is empty
      uint query_parity = 1;
      if (blockIdx.x == 0) report(starts, lengths, cu_q, p, STATUS_PASS);
      for (uint round = 0, index; (index = index_of(round)) < p.work; round++) {
        Job job = job_of(index, starts, lengths, cu_q, p);
        for (uint b = job.blocks; b-- > 0; at.next()) {
          bool fresh = b + 1 == job.blocks;
          if (fresh) {
            mbarrier_wait(memory.query_empty(0), query_parity);
            load_queries(map_q, memory, job, 0, p);
          }
          mbarrier_wait(memory.key_empty(at.stage), at.parity);
          load_block(map_k, memory.keys + at.stage * KEY_BYTES, memory.key_full(at.stage), job, job.low + b * BLOCK, p);
          if (fresh) {
            for (uint part = 1; part < CONSUMERS; part++) {
              mbarrier_wait(memory.query_empty(part), query_parity);
              load_queries(map_q, memory, job, part, p);
            }
            query_parity ^= 1;
          }
          mbarrier_wait(memory.value_empty(at.stage), at.parity);
          load_block(map_v, memory.values + at.stage * KEY_BYTES, memory.value_full(at.stage), job, job.low + b * BLOCK, p);
        }
      }
      GRID_RELEASE;
    }
  } else {
    registers_take<MULTIPLY_REGISTERS>();
    uint part = warpgroup - 1, next = part + 1 == CONSUMERS ? 0 : part + 1;
    bool leader = threadIdx.x % 128 == 0;
    uint row = part * 64 + threadIdx.x / 32 % 4 * 16 + gpu_lane / 4;
    uint queries = memory.queries + part * PART_BYTES;
    // Scores times this are powers of two. Not 0, so that what is hidden stays -infinity.
    float unit = p.softcap > 0.0f ? LOG2_E : fmaxf(fabsf(p.scale) * LOG2_E, __int_as_float(1));
    Cursor at(0), behind(0);  // of keys, and of values
    uint query_parity = 0;
    if (next == 0) barrier_arrive(TURN, 256);  // the first turn is the first warpgroup's
    for (uint round = 0, index; (index = index_of(round)) < p.work; round++) {
      Job job = job_of(index, starts, lengths, cu_q, p);
      if (job.count == 0) continue;
      if (job.blocks == 0) {
        store_nothing(out, job, part, p);
        continue;
      }
      Rows rows;
      uint last = job.first + job.count - 1;
#pragma unroll
      for (uint r = 0; r < 2; r++) {
        rows.seen[r] = seen_by(job.s, min(job.first + row + 8 * r, last), p);
        rows.base[r] = -INFINITY;
        rows.total[r] = 0.0f;
      }
      // Keys that all rows of this warpgroup see.
      uint from = seen_by(job.s, min(job.first + part * 64 + 63, last), p).x;
      uint to = seen_by(job.s, min(job.first + part * 64, last), p).y;
      uint key = job.low + (job.blocks - 1) * BLOCK;

      float o[SIZE / 2] = {}, s[BLOCK / 2];
      settle(o);
      uint w[KEY_STEPS][4];
      mbarrier_wait(memory.query_full(part), query_parity);
      query_parity ^= 1;
      barrier_sync(TURN + part, 256);
      mbarrier_wait(memory.key_full(at.stage), at.parity);
      wgmma_fence();
      multiply_keys<T>(s, queries, memory.keys + at.stage * KEY_BYTES);
      barrier_arrive(TURN + next, 256);
      wgmma_wait<0>();
      settle(s);
      if (leader) mbarrier_arrive(memory.key_empty(at.stage));
      at.next();
      bend(s, p);
      if (key < from || key + BLOCK > to) hide(s, rows, key);
      weigh(s, rows, unit);
      pack_weights<T>(w, s);
      if (key + BLOCK > job.high) {
        mbarrier_wait(memory.value_full(behind.stage), behind.parity);
        clear_values(memory.values + behind.stage * KEY_BYTES, job.high - key);
        barrier_sync(CLEARED + part, 128);
      }
#pragma unroll 1
      for (uint b = job.blocks - 1; b-- > 0;) {
        key -= BLOCK;
        barrier_sync(TURN + part, 256);
        mbarrier_wait(memory.key_full(at.stage), at.parity);
        wgmma_fence();
        multiply_keys<T>(s, queries, memory.keys + at.stage * KEY_BYTES);
        mbarrier_wait(memory.value_full(behind.stage), behind.parity);
        wgmma_fence();
        multiply_values<T>(o, w, memory.values + behind.stage * KEY_BYTES);
        barrier_arrive(TURN + next, 256);
        wgmma_wait<1>();
        settle(s);
        if (leader) mbarrier_arrive(memory.key_empty(at.stage));
        at.next();
        bend(s, p);
        if (key < from || key + BLOCK > to) hide(s, rows, key);
        // The branch keeps the compiler from waiting before it weighs.
        if (weigh(s, rows, unit)) {
          wgmma_wait<0>();
          settle(o);
          rescale(o, rows);
        } else {
          wgmma_wait<0>();
        }
        settle(s);
        if (leader) mbarrier_arrive(memory.value_empty(behind.stage));
        behind.next();
        settle(o);
        pack_weights<T>(w, s);
      }
      if (leader) mbarrier_arrive(memory.query_empty(part));
      mbarrier_wait(memory.value_full(behind.stage), behind.parity);
      wgmma_fence();
      multiply_values<T>(o, w, memory.values + behind.stage * KEY_BYTES);
      wgmma_wait<0>();
      settle(o);
      if (leader) mbarrier_arrive(memory.value_empty(behind.stage));
      behind.next();
      store_rows(o, rows, q, k, v, sinks, out, job_of(index, starts, lengths, cu_q, p), row, p);
    }
  }
}

// The operands of every attention, then what the copy engine knows of q, k and v, then the status block: STATUS(15).
#define ATTENTION_WGMMA(name, T)                                                                                       \
  extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                               \
      name(const T* q, const T* k, const T* v, const uchar*, const float* sinks, const uint* starts,                   \
           const uint* lengths, const uint*, const uint* cu_q, T* out, float*,                                         \
           const __grid_constant__ AttentionArgs p, const __grid_constant__ TensorMap map_q,                           \
           const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v, STATUS_PARAMS) {          \
    attend<T>(q, k, v, sinks, starts, lengths, cu_q, out, p, map_q, map_k, map_v, STATUS_PASS);                        \
  }

// Each entry takes the compiler a while, so the builder names the one it wants.
#ifdef ENTRY_attention_wgmma_bf16
ATTENTION_WGMMA(attention_wgmma_bf16, bfloat)
#endif
#ifdef ENTRY_attention_wgmma_f16
ATTENTION_WGMMA(attention_wgmma_f16, half)
#endif
