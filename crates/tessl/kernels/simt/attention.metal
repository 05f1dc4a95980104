// attention:  out[t, h] = sum_j w_j v[j, h / group] / (sum_j w_j + exp(sink[h] - m)),   w_j = exp(s_j - m)
//             s_j = scale * (q[t, h] . k[j, h / group]), then softcap * tanh(s_j / softcap) unless softcap is 0, then the
//             mask; m is the largest s_j or the sink; j runs over the keys that query t sees
//
// Layout      rows of `dim` elements, unit stride inside; strides for sequence (page), token and head (see AttentionArgs).
//             A row of work is a query and one of the heads that share a key head: row r is query r / group, head r % group.
// Grid        `groups` threadgroups of 128 walk over pieces of work: (part of the keys, key head, tile of rows).
// Accumulate  f32, keys in order inside a simdgroup or tile; sums are rescaled when the maximum grows. The order depends on
//             the number of keys and the plan alone.
// Variants    attention_rows: 4 rows, each simdgroup takes every fourth pair of keys; parts of the keys may be apart, and
//             attention_combine joins them in order. attention_tiles: tiles of rows by 32 keys, results in registers.
//             The last number is the largest head: 128, 256 or 512 elements; a smaller one leaves lanes idle.
// Access      VEC16: all rows of q, k, v and out start on 16 bytes, and four elements are accessed at once; else one.
// Coded       CODED: k and v are 8-bit codes, each row with a scale; a row is decoded as it is read (prelude/weights.h).
// Tail        elements from `dim` on and keys beyond the end count as 0 and as hidden.
// Special     a hidden key is skipped, not multiplied by 0: NaN in its k and v has no effect. NaN elsewhere makes its rows
//             NaN. A row that sees nothing is 0.
// Faults      a length or cumulative length above its capacity: kind 3, its place and value; a page outside of memory: kind
//             1, its place in the table. Rows that need it are not written.
// variant: VEC16=0 CODED=0
// variant: VEC16=1 CODED=0
// variant: VEC16=1 CODED=1
FCONST(bool, VEC16, 0);
FCONST(bool, CODED, 1);

constant constexpr uint THREADS = 128;
constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint INDEX_OUT_OF_RANGE = 1;
constant constexpr uint BAD_LENGTH = 3;
// Rows of a piece of attention_rows; keys of a tile of attention_tiles, and a row of weights, padded against conflicts.
constant constexpr uint ROWS = 4;
constant constexpr uint KEYS = 32;
constant constexpr uint PITCH = KEYS + 1;
// Elements of q and k that are staged at once.
constant constexpr uint DEPTH = 16;
// Parts of the keys of a sequence are multiples of this many.
constant constexpr uint UNIT = 64;

// A sequence: where its queries and keys start, how many there are, and where its first query stands.
struct Sequence {
  ulong index;
  ulong query;
  ulong row;
  ulong key;
  long first;
  uint queries;
  uint keys;
  uint bad;
  ulong place;
  ulong value;
};

// Some rows of a sequence.
struct Piece {
  Sequence s;
  uint first;
  uint count;
};

// The larger one; NaN before all numbers.
DEVFN float larger(float a, float b) { return a > b || a != a ? a : b; }

DEVFN Sequence sequence_of(uint b, const device uint* starts, const device uint* lengths, const device uint* cu_q,
                           constant AttentionArgs& p) {
  Sequence s;
  s.index = b;
  s.query = 0;
  s.queries = p.queries;
  s.key = 0;
  s.keys = p.keys;
  s.bad = 0;
  s.place = b;
  s.value = 0;
  if (p.packed != 0) {
    const uint begin = cu_q[b * p.cu_s], end = cu_q[(b + 1) * p.cu_s];
    s.query = begin;
    s.queries = end - begin;
    if (begin > end || end > p.queries) {
      s.bad = BAD_LENGTH;
      s.place = b + 1;
      s.value = end;
    }
  }
  if (p.length_mode == 1) {
    s.keys = lengths[b * p.length_s];
    if (s.bad == 0 && s.keys > p.keys) {
      s.bad = BAD_LENGTH;
      s.value = s.keys;
    }
  } else if (p.length_mode == 2) {
    const uint begin = lengths[b * p.length_s], end = lengths[(b + 1) * p.length_s];
    s.key = begin;
    s.keys = end - begin;
    if (s.bad == 0 && (begin > end || end > p.keys)) {
      s.bad = BAD_LENGTH;
      s.place = b + 1;
      s.value = end;
    }
  }
  s.row = p.packed == 0 ? ulong(b) * p.queries : s.query;
  s.first = 0;
  if (p.start_mode == 1) s.first = long(p.start);
  if (p.start_mode == 2) s.first = long(starts[b * p.start_s]);
  if (p.start_mode == 3) s.first = long(s.keys) - long(s.queries);
  return s;
}

// The rows of tile number `tile`. Wrong sequences are reported by thread 0; packed ones have no tiles then.
DEVFN Piece piece_of(ulong tile, const device uint* starts, const device uint* lengths, const device uint* cu_q,
                     constant AttentionArgs& p, uint tid, STATUS_PARAMS) {
  Piece piece;
  piece.first = 0;
  piece.count = 0;
  if (p.packed == 0) {
    const uint each = uint((ulong(p.queries) * p.group + p.tile - 1) / p.tile);
    piece.s = sequence_of(uint(tile) / each, starts, lengths, cu_q, p);
    piece.first = uint(tile) % each * p.tile;
    piece.count = min(p.tile, p.queries * p.group - piece.first);
    if (piece.s.bad != 0 && tid == 0) FAULT(piece.s.bad, piece.s.place, piece.s.value);
    return piece;
  }
  uint left = uint(tile);
  for (uint b = 0; b < p.sequences; b++) {
    piece.s = sequence_of(b, starts, lengths, cu_q, p);
    if (piece.s.bad != 0) {
      if (tid == 0) FAULT(piece.s.bad, piece.s.place, piece.s.value);
      continue;
    }
    const uint rows = piece.s.queries * p.group;
    const uint tiles = (rows + p.tile - 1) / p.tile;
    if (left < tiles) {
      piece.first = left * p.tile;
      piece.count = min(p.tile, rows - piece.first);
      return piece;
    }
    left -= tiles;
  }
  return piece;
}

// The first key that query t sees, and the one after the last.
DEVFN uint2 seen_by(Sequence s, uint t, constant AttentionArgs& p) {
  if (p.start_mode == 0) return uint2(0, s.keys);
  const long end = s.first + long(t) + 1;
  const long high = end < 0 ? 0 : end < long(s.keys) ? end : long(s.keys);
  const long start = p.window == 0 ? 0 : end - long(p.window);
  const long low = start < 0 ? 0 : start < high ? start : high;
  return uint2(uint(low), uint(high));
}

DEVFN ulong query_at(Sequence s, uint t, uint h, constant AttentionArgs& p) {
  return s.index * p.q_b + (s.query + t) * p.q_t + h * p.q_h;
}

DEVFN ulong out_at(Sequence s, uint t, uint h, constant AttentionArgs& p) {
  return s.index * p.o_b + (s.query + t) * p.o_t + h * p.o_h;
}

// Sequence or page, and token, of key j.
struct Place {
  ulong outer;
  ulong inner;
};

DEVFN Place place_of(Sequence s, uint j, const device uint* table, constant AttentionArgs& p) {
  Place at;
  at.outer = s.index;
  at.inner = s.key + j;
  if (p.page != 0) {
    at.outer = table[s.index * p.table_s + j / p.page];
    at.inner = j % p.page;
  }
  return at;
}

// Whether the pages of the keys low .. high - 1 are all in memory; the same answer in every thread. `flag` is one word.
DEVFN bool pages_exist(Sequence s, uint low, uint high, const device uint* table, constant AttentionArgs& p,
                       threadgroup uint* flag, uint tid, STATUS_PARAMS) {
  if (p.page == 0 || low >= high) return true;
  if (tid == 0) flag[0] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = low / p.page + tid; i <= (high - 1) / p.page; i += THREADS) {
    const uint page = table[s.index * p.table_s + i];
    if (page >= p.pages) {
      FAULT(INDEX_OUT_OF_RANGE, s.index * (p.keys / p.page) + i, page);
      flag[0] = 1;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const bool good = flag[0] == 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return good;
}

// The score of a product; -infinity where the mask hides the key, NaN or not.
DEVFN float score_of(float product, const device uchar* mask, ulong at, constant AttentionArgs& p) {
  float s = product * p.scale;
  if (p.softcap > 0.0f) s = p.softcap * tanh_saturating(s * p.inverse_softcap);
  float added = 0.0f;
  switch (p.mask) {
    case 1: return mask[at] != 0 ? s : -INFINITY;
    case 2: added = ((const device float*)mask)[at]; break;
    case 3: added = float(((const device half*)mask)[at]); break;
    case 4: added = float(((const device bfloat*)mask)[at]); break;
    default: return s;
  }
  return added == -INFINITY ? added : s + added;
}

// What multiplies results: one over the sum of exponentials and the sink's, relative to the maximum; 0 where nothing is
// seen.
DEVFN float inverse_of(float most, float sum, bool has_sink, float sink) {
  if (sum == 0.0f) return 0.0f;
  if (!has_sink) return 1.0f / sum;
  if (sink > most) {
    const float scale = precise::exp(most - sink);
    return scale / (sum * scale + 1.0f);
  }
  return 1.0f / (sum + precise::exp(sink - most));
}

// Elements i .. i + 3 of a row of n; 0 beyond its end.
template <typename T>
DEVFN float4 load4(const device T* row, uint i, uint n) {
  if (VEC16 && i + 4 <= n) return vcast<float4>(*(const device vec<T, 4>*)(row + i));
  return float4(i < n ? float(row[i]) : 0.0f, i + 1 < n ? float(row[i + 1]) : 0.0f,
                i + 2 < n ? float(row[i + 2]) : 0.0f, i + 3 < n ? float(row[i + 3]) : 0.0f);
}

// The same of row `at` of keys or values, whose scale is number `scale_at`.
template <typename T>
DEVFN float4 load_kv(const device T* rows, const device float* scales, ulong at, ulong scale_at, uint i, uint n) {
  if (CODED) return quant::codes4((const device uchar*)rows + at, i, n, VEC16) * scales[scale_at];
  return load4<T>(rows + at, i, n);
}

// Where the row of a place is, or its scale, by these strides.
DEVFN ulong kv_at(Place at, uint head, ulong outer, ulong inner, ulong by_head) {
  return at.outer * outer + at.inner * inner + head * by_head;
}

template <typename T>
DEVFN void store4(device T* row, uint i, uint n, float4 v) {
  if (VEC16 && i + 4 <= n) {
    *(device vec<T, 4>*)(row + i) = vcast<vec<T, 4>>(v);
    return;
  }
  if (i < n) row[i] = T(v.x);
  if (i + 1 < n) row[i + 1] = T(v.y);
  if (i + 2 < n) row[i + 2] = T(v.z);
  if (i + 3 < n) row[i + 3] = T(v.w);
}

DEVFN float dot4(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Where the parts of a row are: its maximum and sum, and its unscaled results. See CombineArgs.
DEVFN ulong state_at(ulong row, uint part, uint split) { return 2 * (row * split + part); }
DEVFN ulong part_at(ulong rows, ulong row, uint part, uint split, uint dim) {
  return 2 * rows * split + (row * split + part) * dim;
}

// `shared` has ROWS * SIZE floats; `state` maxima and sums of ROWS rows.
template <typename T, uint SIZE>
DEVFN void attend_rows(const device T* q, const device T* k, const device T* v, const device uchar* mask,
                       const device float* sinks, const device uint* starts, const device uint* lengths,
                       const device uint* table, const device uint* cu_q, device T* out, device float* parts,
                       const device float* k_scales, const device float* v_scales, constant AttentionArgs& p,
                       STATUS_PARAMS, threadgroup float* shared, threadgroup float* state,
                       threadgroup uint* flag, uint group, uint tid, uint lane, uint sg) {
  constexpr uint N = SIZE / 128;
  constexpr uint PAIR = 2;
  GRID_RELEASE;
  GRID_WAIT;
  for (ulong w = group; w < p.work; w += p.groups) {
    const uint part = uint(w % p.split);
    const uint head = uint(w / p.split % p.kv_heads);
    const Piece piece = piece_of(w / p.split / p.kv_heads, starts, lengths, cu_q, p, tid, STATUS_PASS);
    const Sequence s = piece.s;
    if (piece.count == 0) continue;

    uint low = 0, high = 0;
    bool good = s.bad == 0;
    if (good) {
      low = seen_by(s, piece.first / p.group, p).x;
      high = seen_by(s, (piece.first + piece.count - 1) / p.group, p).y;
      const uint count = high > low ? high - low : 0;
      const uint each = ((count + p.split - 1) / p.split + UNIT - 1) / UNIT * UNIT;
      low = min(low + part * each, high);
      high = min(low + each, high);
      good = pages_exist(s, low, high, table, p, flag, tid, STATUS_PASS);
    }
    if (!good) {
      // A negative sum: the row is not to be written.
      if (p.split > 1 && tid < piece.count) {
        const uint r = piece.first + tid;
        const ulong row = (s.row + r / p.group) * p.heads + head * p.group + r % p.group;
        parts[state_at(row, part, p.split) + 1] = -1.0f;
      }
      continue;
    }

    float4 query[ROWS][N], sums[ROWS][N];
    float most[ROWS], total[ROWS];
    uint2 seen[ROWS];
    ulong masked[ROWS];
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      // Rows beyond the last repeat it and are not stored.
      const uint row = piece.first + min(r, piece.count - 1);
      const uint t = row / p.group, h = head * p.group + row % p.group;
      const device T* from = q + query_at(s, t, h, p);
      seen[r] = seen_by(s, t, p);
      masked[r] = s.index * p.m_b + h * p.m_h + t * p.m_t;
      most[r] = -INFINITY;
      total[r] = 0.0f;
#pragma unroll
      for (uint i = 0; i < N; i++) {
        query[r][i] = load4<T>(from, i * 128 + lane * 4, p.dim);
        sums[r][i] = float4(0.0f);
      }
    }

    for (uint first = low + sg * PAIR; first < high; first += SIMDGROUPS * PAIR) {
      float scores[ROWS][PAIR];
      Place at[PAIR];
#pragma unroll
      for (uint u = 0; u < PAIR; u++) {
        const uint j = min(first + u, high - 1);
        at[u] = place_of(s, j, table, p);
        const ulong key = kv_at(at[u], head, p.k_b, p.k_t, p.k_h);
        const ulong key_scale = kv_at(at[u], head, p.ks_b, p.ks_t, p.ks_h);
        float products[ROWS];
#pragma unroll
        for (uint r = 0; r < ROWS; r++) products[r] = 0.0f;
#pragma unroll
        for (uint i = 0; i < N; i++) {
          const float4 x = load_kv<T>(k, k_scales, key, key_scale, i * 128 + lane * 4, p.dim);
#pragma unroll
          for (uint r = 0; r < ROWS; r++) products[r] += dot4(query[r][i], x);
        }
#pragma unroll
        for (uint r = 0; r < ROWS; r++) {
          const float product = simd_sum(products[r]);
          const bool hidden = first + u >= high || j < seen[r].x || j >= seen[r].y;
          scores[r][u] = hidden ? -INFINITY : score_of(product, mask, masked[r] + j * p.m_k, p);
        }
      }
#pragma unroll
      for (uint r = 0; r < ROWS; r++) {
        const float top = larger(scores[r][1], larger(scores[r][0], most[r]));
        // Where nothing has been seen yet, the maximum is no number to subtract.
        const float shift = top == -INFINITY ? 0.0f : top;
        const float scale = precise::exp(most[r] - shift);
        most[r] = top;
        total[r] *= scale;
#pragma unroll
        for (uint i = 0; i < N; i++) sums[r][i] = sums[r][i] * scale;
#pragma unroll
        for (uint u = 0; u < PAIR; u++) {
          // Below 0: hidden.
          scores[r][u] = scores[r][u] == -INFINITY ? -1.0f : precise::exp(scores[r][u] - shift);
          total[r] += scores[r][u] < 0.0f ? 0.0f : scores[r][u];
        }
      }
#pragma unroll
      for (uint u = 0; u < PAIR; u++) {
        const ulong value = kv_at(at[u], head, p.v_b, p.v_t, p.v_h);
        const ulong value_scale = kv_at(at[u], head, p.vs_b, p.vs_t, p.vs_h);
#pragma unroll
        for (uint i = 0; i < N; i++) {
          const float4 x = load_kv<T>(v, v_scales, value, value_scale, i * 128 + lane * 4, p.dim);
#pragma unroll
          for (uint r = 0; r < ROWS; r++) {
            if (!(scores[r][u] < 0.0f)) sums[r][i] = sums[r][i] + x * scores[r][u];
          }
        }
      }
    }

    // Simdgroups join what they have in turn.
    for (uint turn = 0; turn < SIMDGROUPS; turn++) {
      if (sg == turn) {
#pragma unroll
        for (uint r = 0; r < ROWS; r++) {
          float mine = 1.0f, theirs = 0.0f;
          if (turn > 0) {
            const float other = state[2 * r], count = state[2 * r + 1];
            const float top = larger(most[r], other);
            const float shift = top == -INFINITY ? 0.0f : top;
            mine = precise::exp(most[r] - shift);
            theirs = precise::exp(other - shift);
            most[r] = top;
            total[r] = total[r] * mine + count * theirs;
          }
          simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
          for (uint i = 0; i < N; i++) {
            threadgroup float4* slot = (threadgroup float4*)(shared + r * SIZE + i * 128 + lane * 4);
            const float4 x = sums[r][i] * mine;
            *slot = turn > 0 ? x + *slot * theirs : x;
          }
          if (lane == 0) {
            state[2 * r] = most[r];
            state[2 * r + 1] = total[r];
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // One simdgroup a row.
    if (sg < piece.count) {
      const uint r = piece.first + sg;
      const uint t = r / p.group, h = head * p.group + r % p.group;
      const float top = state[2 * sg], sum = state[2 * sg + 1];
      const ulong row = (s.row + t) * p.heads + h;
      const float sink = p.has_sinks != 0 ? sinks[h * p.sink_s] : 0.0f;
      const float factor = inverse_of(top, sum, p.has_sinks != 0, sink);
      for (uint i = lane * 4; i < p.dim; i += 128) {
        const float4 x = *(const threadgroup float4*)(shared + sg * SIZE + i);
        if (p.split == 1) {
          store4<T>(out + out_at(s, t, h, p), i, p.dim, x * factor);
        } else {
          device float* to = parts + part_at(ulong(p.sequences) * p.queries * p.heads, row, part, p.split, p.dim) + i;
          to[0] = x.x;
          if (i + 1 < p.dim) to[1] = x.y;
          if (i + 2 < p.dim) to[2] = x.z;
          if (i + 3 < p.dim) to[3] = x.w;
        }
      }
      if (p.split > 1 && lane == 0) {
        parts[state_at(row, part, p.split)] = top;
        parts[state_at(row, part, p.split) + 1] = sum;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// `weights` has TILE * PITCH floats, `stage` the larger of DEPTH * (TILE + 1 + PITCH) and 1024. A thread has R rows, four
// of 32 keys, and every eighth group of four elements of their results.
template <typename T, uint SIZE>
DEVFN void attend_tiles(const device T* q, const device T* k, const device T* v, const device uchar* mask,
                        const device float* sinks, const device uint* starts, const device uint* lengths,
                        const device uint* table, const device uint* cu_q, device T* out, const device float* k_scales,
                        const device float* v_scales, constant AttentionArgs& p, STATUS_PARAMS,
                        threadgroup float* weights, threadgroup float* stage, threadgroup uint* flag,
                        uint group, uint tid) {
  constexpr uint TILE = 8192 / SIZE;
  constexpr uint R = TILE / 16;
  constexpr uint N = SIZE / 32;
  constexpr uint VALUES = 1024 / SIZE;
  constexpr uint LOADS = (TILE * 4 + THREADS - 1) / THREADS;
  constexpr uint QUERY_PITCH = TILE + 1;
  threadgroup float* queries = stage;
  threadgroup float* keys = stage + DEPTH * QUERY_PITCH;
  const uint tx = tid & 7, ty = tid >> 3;
  GRID_RELEASE;
  GRID_WAIT;
  for (ulong w = group; w < p.work; w += p.groups) {
    const uint head = uint(w % p.kv_heads);
    // The last tiles of a sequence see the most keys: they go first.
    const Piece piece = piece_of(p.tiles - 1 - w / p.kv_heads, starts, lengths, cu_q, p, tid, STATUS_PASS);
    const Sequence s = piece.s;
    if (piece.count == 0 || s.bad != 0) continue;
    const uint low = seen_by(s, piece.first / p.group, p).x;
    const uint high = seen_by(s, (piece.first + piece.count - 1) / p.group, p).y;
    if (!pages_exist(s, low, high, table, p, flag, tid, STATUS_PASS)) continue;

    float4 sums[R][N];
    float most[R], total[R];
    uint2 seen[R];
    ulong masked[R];
#pragma unroll
    for (uint i = 0; i < R; i++) {
      // Rows beyond the last repeat it and are not stored.
      const uint row = piece.first + min(ty * R + i, piece.count - 1);
      const uint t = row / p.group, h = head * p.group + row % p.group;
      seen[i] = seen_by(s, t, p);
      masked[i] = s.index * p.m_b + h * p.m_h + t * p.m_t;
      most[i] = -INFINITY;
      total[i] = 0.0f;
#pragma unroll
      for (uint c = 0; c < N; c++) sums[i][c] = float4(0.0f);
    }
    ulong from[LOADS];
#pragma unroll
    for (uint i = 0; i < LOADS; i++) {
      const uint row = piece.first + min((tid >> 2) + i * 32, piece.count - 1);
      from[i] = query_at(s, row / p.group, head * p.group + row % p.group, p);
    }

    for (uint key0 = low; key0 < high; key0 += KEYS) {
      float scores[R][4];
#pragma unroll
      for (uint i = 0; i < R; i++) {
#pragma unroll
        for (uint x = 0; x < 4; x++) scores[i][x] = 0.0f;
      }
      const uint mine = key0 + (tid >> 2);
      const Place at = place_of(s, min(mine, high - 1), table, p);
      const ulong key = kv_at(at, head, p.k_b, p.k_t, p.k_h), key_scale = kv_at(at, head, p.ks_b, p.ks_t, p.ks_h);
      const uint quad = (tid & 3) * 4;
      for (uint d0 = 0; d0 < p.dim; d0 += DEPTH) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (uint i = 0; i < LOADS; i++) {
          const uint row = (tid >> 2) + i * 32;
          if (row < TILE) {
            const float4 x = load4<T>(q + from[i], d0 + quad, p.dim);
            queries[quad * QUERY_PITCH + row] = x.x;
            queries[(quad + 1) * QUERY_PITCH + row] = x.y;
            queries[(quad + 2) * QUERY_PITCH + row] = x.z;
            queries[(quad + 3) * QUERY_PITCH + row] = x.w;
          }
        }
        const float4 x = load_kv<T>(k, k_scales, key, key_scale, d0 + quad, p.dim);
        keys[quad * PITCH + (tid >> 2)] = x.x;
        keys[(quad + 1) * PITCH + (tid >> 2)] = x.y;
        keys[(quad + 2) * PITCH + (tid >> 2)] = x.z;
        keys[(quad + 3) * PITCH + (tid >> 2)] = x.w;
        threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll 4
        for (uint d = 0; d < DEPTH; d++) {
          float b[4];
#pragma unroll
          for (uint x = 0; x < 4; x++) b[x] = keys[d * PITCH + x * 8 + tx];
#pragma unroll
          for (uint i = 0; i < R; i++) {
            const float a = queries[d * QUERY_PITCH + ty * R + i];
#pragma unroll
            for (uint x = 0; x < 4; x++) scores[i][x] += a * b[x];
          }
        }
      }

#pragma unroll
      for (uint i = 0; i < R; i++) {
        float top = -INFINITY;
#pragma unroll
        for (uint x = 0; x < 4; x++) {
          const uint j = key0 + x * 8 + tx;
          const bool hidden = j < seen[i].x || j >= seen[i].y;
          scores[i][x] = hidden ? -INFINITY : score_of(scores[i][x], mask, masked[i] + j * p.m_k, p);
          top = larger(scores[i][x], top);
        }
        for (ushort m = 4; m > 0; m >>= 1) top = larger(top, simd_shuffle_xor(top, m));
        top = larger(top, most[i]);
        // Where nothing has been seen yet, the maximum is no number to subtract.
        const float shift = top == -INFINITY ? 0.0f : top;
        const float scale = precise::exp(most[i] - shift);
        most[i] = top;
        total[i] *= scale;
#pragma unroll
        for (uint c = 0; c < N; c++) sums[i][c] = sums[i][c] * scale;
#pragma unroll
        for (uint x = 0; x < 4; x++) {
          const bool hidden = scores[i][x] == -INFINITY;
          const float weight = precise::exp(scores[i][x] - shift);
          total[i] += hidden ? 0.0f : weight;
          // Below 0: hidden.
          weights[(ty * R + i) * PITCH + x * 8 + tx] = hidden ? -1.0f : weight;
        }
      }

      for (uint v0 = 0; v0 < KEYS; v0 += VALUES) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (uint n = 0; n < 2; n++) {
          const uint slot = tid + n * THREADS;
          const uint j = key0 + v0 + slot / (SIZE / 4), i = slot % (SIZE / 4) * 4;
          float4 x = float4(0.0f);
          if (j < high) {
            const Place at = place_of(s, j, table, p);
            const ulong value = kv_at(at, head, p.v_b, p.v_t, p.v_h);
            x = load_kv<T>(v, v_scales, value, kv_at(at, head, p.vs_b, p.vs_t, p.vs_h), i, p.dim);
          }
          *(threadgroup float4*)(stage + slot * 4) = x;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = 0; j < VALUES; j++) {
          float weight[R];
#pragma unroll
          for (uint i = 0; i < R; i++) weight[i] = weights[(ty * R + i) * PITCH + v0 + j];
#pragma unroll
          for (uint c = 0; c < N; c++) {
            const float4 x = *(const threadgroup float4*)(stage + j * SIZE + (c * 8 + tx) * 4);
#pragma unroll
            for (uint i = 0; i < R; i++) {
              if (!(weight[i] < 0.0f)) sums[i][c] = sums[i][c] + x * weight[i];
            }
          }
        }
      }
    }

#pragma unroll
    for (uint i = 0; i < R; i++) {
      float sum = total[i];
      for (ushort m = 4; m > 0; m >>= 1) sum += simd_shuffle_xor(sum, m);
      const uint row = ty * R + i;
      if (row < piece.count) {
        const uint r = piece.first + row;
        const uint t = r / p.group, h = head * p.group + r % p.group;
        const float sink = p.has_sinks != 0 ? sinks[h * p.sink_s] : 0.0f;
        const float factor = inverse_of(most[i], sum, p.has_sinks != 0, sink);
        device T* to = out + out_at(s, t, h, p);
#pragma unroll
        for (uint c = 0; c < N; c++) store4<T>(to, (c * 8 + tx) * 4, p.dim, sums[i][c] * factor);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// One simdgroup a row; parts in order.
template <typename T>
DEVFN void combine_rows(const device float* parts, const device float* sinks, device T* out, constant CombineArgs& p,
                        uint group, uint lane, uint sg) {
  GRID_RELEASE;
  GRID_WAIT;
  for (ulong row = group * SIMDGROUPS + sg; row < p.rows; row += p.groups * SIMDGROUPS) {
    float most = -INFINITY, total = 0.0f;
    bool good = true;
    for (uint i = 0; i < p.split; i++) {
      most = larger(parts[state_at(row, i, p.split)], most);
      good = good && !(parts[state_at(row, i, p.split) + 1] < 0.0f);
    }
    if (!good) continue;
    float sums[16];
#pragma unroll
    for (uint c = 0; c < 16; c++) sums[c] = 0.0f;
    for (uint i = 0; i < p.split; i++) {
      const float count = parts[state_at(row, i, p.split) + 1];
      // A part that saw nothing.
      if (count == 0.0f) continue;
      const float scale = precise::exp(parts[state_at(row, i, p.split)] - most);
      const device float* from = parts + part_at(p.rows, row, i, p.split, p.dim);
      total += count * scale;
#pragma unroll
      for (uint c = 0; c < 16; c++) {
        const uint d = c * 32 + lane;
        if (d < p.dim) sums[c] += from[d] * scale;
      }
    }
    const uint h = uint(row % p.heads);
    const ulong query = row / p.heads;
    const float sink = p.has_sinks != 0 ? sinks[h * p.sink_s] : 0.0f;
    const float factor = inverse_of(most, total, p.has_sinks != 0, sink);
    device T* to = out + (query / p.queries * p.o_b + query % p.queries * p.o_t + h * p.o_h);
#pragma unroll
    for (uint c = 0; c < 16; c++) {
      const uint d = c * 32 + lane;
      if (d < p.dim) to[d] = T(sums[c] * factor);
    }
  }
}

// Where ONE_ENTRY is defined, the one kernel that ENTRY_<name> names: each takes a second to compile.
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_f32_128)
KERNEL(attention_rows_f32_128, 128, IN(float, q, 0), IN(float, k, 1), IN(float, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(float, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 128);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<float, 128>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_f32_128)
KERNEL(attention_tiles_f32_128, 128, IN(float, q, 0), IN(float, k, 1), IN(float, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(float, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 64 * PITCH);
  TG(float, stage, 1568);
  TG(uint, flag, 1);
  attend_tiles<float, 128>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_f32_256)
KERNEL(attention_rows_f32_256, 128, IN(float, q, 0), IN(float, k, 1), IN(float, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(float, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 256);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<float, 256>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_f32_256)
KERNEL(attention_tiles_f32_256, 128, IN(float, q, 0), IN(float, k, 1), IN(float, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(float, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 32 * PITCH);
  TG(float, stage, 1056);
  TG(uint, flag, 1);
  attend_tiles<float, 256>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_f32_512)
KERNEL(attention_rows_f32_512, 128, IN(float, q, 0), IN(float, k, 1), IN(float, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(float, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 512);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<float, 512>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_f32_512)
KERNEL(attention_tiles_f32_512, 128, IN(float, q, 0), IN(float, k, 1), IN(float, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(float, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 16 * PITCH);
  TG(float, stage, 1024);
  TG(uint, flag, 1);
  attend_tiles<float, 512>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_combine_f32)
KERNEL(attention_combine_f32, 128, IN(float, parts, 0), IN(float, sinks, 1), OUT(float, out, 2),
       ARGS(CombineArgs, p, 3)) {
  combine_rows<float>(parts, sinks, out, p, gpu_tg.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_f16_128)
KERNEL(attention_rows_f16_128, 128, IN(half, q, 0), IN(half, k, 1), IN(half, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(half, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 128);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<half, 128>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_f16_128)
KERNEL(attention_tiles_f16_128, 128, IN(half, q, 0), IN(half, k, 1), IN(half, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(half, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 64 * PITCH);
  TG(float, stage, 1568);
  TG(uint, flag, 1);
  attend_tiles<half, 128>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_f16_256)
KERNEL(attention_rows_f16_256, 128, IN(half, q, 0), IN(half, k, 1), IN(half, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(half, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 256);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<half, 256>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_f16_256)
KERNEL(attention_tiles_f16_256, 128, IN(half, q, 0), IN(half, k, 1), IN(half, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(half, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 32 * PITCH);
  TG(float, stage, 1056);
  TG(uint, flag, 1);
  attend_tiles<half, 256>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_f16_512)
KERNEL(attention_rows_f16_512, 128, IN(half, q, 0), IN(half, k, 1), IN(half, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(half, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 512);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<half, 512>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_f16_512)
KERNEL(attention_tiles_f16_512, 128, IN(half, q, 0), IN(half, k, 1), IN(half, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(half, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 16 * PITCH);
  TG(float, stage, 1024);
  TG(uint, flag, 1);
  attend_tiles<half, 512>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_combine_f16)
KERNEL(attention_combine_f16, 128, IN(float, parts, 0), IN(float, sinks, 1), OUT(half, out, 2),
       ARGS(CombineArgs, p, 3)) {
  combine_rows<half>(parts, sinks, out, p, gpu_tg.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_bf16_128)
KERNEL(attention_rows_bf16_128, 128, IN(bfloat, q, 0), IN(bfloat, k, 1), IN(bfloat, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(bfloat, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 128);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<bfloat, 128>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_bf16_128)
KERNEL(attention_tiles_bf16_128, 128, IN(bfloat, q, 0), IN(bfloat, k, 1), IN(bfloat, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(bfloat, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 64 * PITCH);
  TG(float, stage, 1568);
  TG(uint, flag, 1);
  attend_tiles<bfloat, 128>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_bf16_256)
KERNEL(attention_rows_bf16_256, 128, IN(bfloat, q, 0), IN(bfloat, k, 1), IN(bfloat, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(bfloat, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 256);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<bfloat, 256>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_bf16_256)
KERNEL(attention_tiles_bf16_256, 128, IN(bfloat, q, 0), IN(bfloat, k, 1), IN(bfloat, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(bfloat, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 32 * PITCH);
  TG(float, stage, 1056);
  TG(uint, flag, 1);
  attend_tiles<bfloat, 256>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_rows_bf16_512)
KERNEL(attention_rows_bf16_512, 128, IN(bfloat, q, 0), IN(bfloat, k, 1), IN(bfloat, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(bfloat, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, shared, ROWS * 512);
  TG(float, state, 2 * ROWS);
  TG(uint, flag, 1);
  attend_rows<bfloat, 512>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, parts, k_scales, v_scales, p,
                       STATUS_PASS, shared, state, flag, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_tiles_bf16_512)
KERNEL(attention_tiles_bf16_512, 128, IN(bfloat, q, 0), IN(bfloat, k, 1), IN(bfloat, v, 2), IN(uchar, mask, 3),
       IN(float, sinks, 4), IN(uint, starts, 5), IN(uint, lengths, 6), IN(uint, table, 7), IN(uint, cu_q, 8),
       OUT(bfloat, out, 9), OUT(float, parts, 10), IN(float, k_scales, 11), IN(float, v_scales, 12),
       ARGS(AttentionArgs, p, 13), STATUS(14)) {
  TG(float, weights, 16 * PITCH);
  TG(float, stage, 1024);
  TG(uint, flag, 1);
  attend_tiles<bfloat, 512>(q, k, v, mask, sinks, starts, lengths, table, cu_q, out, k_scales, v_scales, p,
                        STATUS_PASS, weights, stage, flag, gpu_tg.x, gpu_tid.x);
}
#endif
#if !defined(ONE_ENTRY) || defined(ENTRY_attention_combine_bf16)
KERNEL(attention_combine_bf16, 128, IN(float, parts, 0), IN(float, sinks, 1), OUT(bfloat, out, 2),
       ARGS(CombineArgs, p, 3)) {
  combine_rows<bfloat>(parts, sinks, out, p, gpu_tg.x, gpu_lane, gpu_sg);
}
#endif
