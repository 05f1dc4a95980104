// top_k:   the k largest elements of each row and their indices, largest first; NaN before all numbers, of equal ones the
//          lowest index first
// sample:  one token of each row of logits, drawn with probability exp(t[i]) / sum, among those that are kept
//          t = logit, then softcap * tanh(t / softcap), then divided by (t > 0) or multiplied with the penalty where the
//          token is among the previous ones, then t / temperature; temperature 0 takes the largest
//          kept: the top_k largest; of these the fewest largest whose probabilities reach top_p; weight at least min_p
//
// Layout      rows of n elements, unit stride inside; three row strides for each operand (see TopKArgs, SampleArgs).
// Grid        `groups` threadgroups of 256; group g walks rows g, g + groups, ..  One row is one threadgroup's work.
// Order       elements are ordered by a key of 32 bits that grows with the value, then by the lowest index. A limit is
//             found digit by digit: a histogram of 8 bits, the digit where the number (or the mass) is reached, and so on.
// Accumulate  weights exp(t - max) are integers in units of 2^-31; their sums are exact, whatever the order. A histogram
//             of masses keeps 11, 11 and 10 bits apart, so that up to 2^21 elements fit 32-bit counters.
// Random      Philox4x32-10, counter (position, row, 0, 0), key = seed; 24 bits of the first word times the mass of what
//             is kept name the token, in order of indices.
// Faults      sample: a previous token outside of the row (kind 1; the largest uint is none), a NaN among the logits or a
//             parameter outside its domain (kind 4, the value's bits); the row's token is not written.

constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint INDEX_OUT_OF_RANGE = 1, BAD_VALUE = 4;
constant constexpr uint NAN_KEY = 0xffffffff;
// Parameters that may come from memory, as bits of from_memory and per_row.
constant constexpr uint TEMPERATURE = 0, TOP_K = 1, TOP_P = 2, MIN_P = 3, PENALTY = 4, SEED = 5, POSITION = 6;

// Grows with v; the two zeros are one, and so are all NaN, which come last.
DEVFN uint order_key(float v) {
  if (v != v) return NAN_KEY;
  const uint bits = as_type<uint>(v + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

DEVFN float key_value(uint key) { return as_type<float>((key >> 31) != 0 ? key ^ 0x80000000u : ~key); }

// A place in the order: key, then the inverted index. What is not below it is kept.
struct Limit {
  uint key;
  uint inverse;
};

DEVFN bool keeps(Limit limit, uint key, uint i) { return key > limit.key || (key == limit.key && ~i >= limit.inverse); }

// Whether the digits before `digit` (8 bits each, the key's first) are those of the limit.
DEVFN bool agrees(Limit limit, uint key, uint i, uint digit) {
  if (digit == 0) return true;
  if (digit < 4) return key >> (32 - 8 * digit) == limit.key >> (32 - 8 * digit);
  if (digit == 4) return key == limit.key;
  return key == limit.key && ~i >> (64 - 8 * digit) == limit.inverse >> (64 - 8 * digit);
}

DEVFN uint digit_of(uint key, uint i, uint digit) {
  return (digit < 4 ? key >> (24 - 8 * digit) : ~i >> (56 - 8 * digit)) & 255;
}

DEVFN void set_digit(thread Limit& limit, uint digit, uint value) {
  if (digit < 4) limit.key |= value << (24 - 8 * digit);
  else limit.inverse |= value << (56 - 8 * digit);
}

// Elements as they are.
template <typename T>
struct Plain {
  const device T* x;
  float at(uint i) const { return float(x[i]); }
};

// Elements as sampling sees them.
template <typename T>
struct Scores {
  const device T* x;
  device atomic_uint* seen;
  bool penalised;
  float softcap, inverse_softcap, penalty, inverse_temperature;
  float at(uint i) const {
    float t = float(x[i]);
    if (softcap > 0.0f) t = softcap * tanh_saturating(t * inverse_softcap);
    if (penalised && (atomic_load_explicit(seen + i / 32, memory_order_relaxed) >> i % 32 & 1) != 0) {
      t = t > 0.0f ? t / penalty : t * penalty;
    }
    return t * inverse_temperature;
  }
};

// The weight of t among scores of which `most` is the largest, also where that is infinite.
DEVFN float weight_of(float t, float most) { return t == most ? 1.0f : precise::exp(t - most); }

DEVFN uint mass_of(float weight) { return uint(weight * 2147483648.0f); }

DEVFN uint group_max(uint v, threadgroup uint* part, uint lane, uint sg) {
  v = simd_max(v);
  if (lane == 0) part[sg] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint most = part[0];
  for (uint i = 1; i < SIMDGROUPS; i++) most = max(most, part[i]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return most;
}

// The largest key of a row, and the first index that has it.
template <typename S>
DEVFN Limit largest(S s, uint n, threadgroup uint* part, uint tid, uint lane, uint sg) {
  uint most = 0;
  for (uint i = tid; i < n; i += THREADS) most = max(most, order_key(s.at(i)));
  Limit first;
  first.key = group_max(most, part, lane, sg);
  uint inverse = 0;
  for (uint i = tid; i < n; i += THREADS) {
    if (order_key(s.at(i)) == first.key) inverse = max(inverse, ~i);
  }
  first.inverse = group_max(inverse, part, lane, sg);
  return first;
}

// The digit at which `need` is reached from above, given what this thread's digit has and what is above it.
DEVFN void tell_digit(ulong above, ulong mine, ulong need, threadgroup ulong* found, uint tid) {
  if (above < need && need <= above + mine) {
    found[0] = tid;
    found[1] = above;
    found[2] = mine;
  }
}

// Fills in the digits of the limit from `digit` on, so that `need` of the elements that agree so far are kept.
template <typename S>
DEVFN void limit_number(S s, uint n, thread Limit& limit, uint digit, ulong need, threadgroup atomic_uint* counts,
                        threadgroup ulong* found, uint tid) {
  for (; digit < 8; digit++) {
    atomic_store_explicit(counts + tid, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < n; i += THREADS) {
      const uint key = order_key(s.at(i));
      if (agrees(limit, key, i, digit)) atomic_fetch_add_explicit(counts + digit_of(key, i, digit), 1u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong above = 0;
    for (uint b = tid + 1; b < 256; b++) above += atomic_load_explicit(counts + b, memory_order_relaxed);
    tell_digit(above, atomic_load_explicit(counts + tid, memory_order_relaxed), need, found, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    set_digit(limit, digit, uint(found[0]));
    need -= found[1];
    if (found[2] == need) break;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

DEVFN ulong mass_in(threadgroup atomic_uint* counts, uint b) {
  return atomic_load_explicit(counts + b, memory_order_relaxed) +
         (ulong(atomic_load_explicit(counts + 256 + b, memory_order_relaxed)) << 11) +
         (ulong(atomic_load_explicit(counts + 512 + b, memory_order_relaxed)) << 22);
}

// The limit at which the elements that `kept` keeps reach `share` (in units of 2^-24) of their mass.
template <typename S>
DEVFN Limit limit_mass(S s, uint n, Limit kept, float most, uint share, threadgroup atomic_uint* counts,
                       threadgroup ulong* found, uint tid) {
  Limit limit;
  limit.key = limit.inverse = 0;
  ulong need = 0;
  for (uint digit = 0; digit < 4; digit++) {
    for (uint part = 0; part < 3; part++) atomic_store_explicit(counts + part * 256 + tid, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < n; i += THREADS) {
      const float t = s.at(i);
      const uint key = order_key(t);
      const uint mass = mass_of(weight_of(t, most));
      if (mass != 0 && keeps(kept, key, i) && agrees(limit, key, i, digit)) {
        threadgroup atomic_uint* slot = counts + digit_of(key, i, digit);
        atomic_fetch_add_explicit(slot, mass & 2047, memory_order_relaxed);
        atomic_fetch_add_explicit(slot + 256, mass >> 11 & 2047, memory_order_relaxed);
        atomic_fetch_add_explicit(slot + 512, mass >> 22, memory_order_relaxed);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong above = 0;
    for (uint b = tid + 1; b < 256; b++) above += mass_in(counts, b);
    const ulong mine = mass_in(counts, tid);
    if (digit == 0) {
      if (tid == 0) found[3] = above + mine;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const ulong total = found[3];
      need = max(ulong(share) * (total >> 24) + (ulong(share) * (total & 0xffffff) >> 24), ulong(1));
    }
    tell_digit(above, mine, need, found, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    set_digit(limit, digit, uint(found[0]));
    need -= found[1];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  // Equal elements have equal masses: as many of them as are needed, the first ones.
  const ulong each = mass_of(weight_of(key_value(limit.key), most));
  limit_number(s, n, limit, 4, (need + each - 1) / each, counts, found, tid);
  return limit;
}

template <typename T>
DEVFN void top_k_rows(const device T* x, device T* values, device uint* indices, constant TopKArgs& p,
                      threadgroup atomic_uint* counts, threadgroup ulong* found, threadgroup uint* keys,
                      threadgroup uint* places, uint group, uint tid) {
  GRID_RELEASE;
  GRID_WAIT;
  for (ulong r = group; r < p.rows; r += p.groups) {
    const uint row = uint(r);
    Plain<T> s;
    s.x = x + row_offset(row, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    Limit limit;
    limit.key = limit.inverse = 0;
    limit_number(s, p.n, limit, 0, p.k, counts, found, tid);
    if (tid == 0) atomic_store_explicit(counts, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < p.n; i += THREADS) {
      const uint key = order_key(s.at(i));
      if (keeps(limit, key, i)) {
        const uint slot = atomic_fetch_add_explicit(counts, 1u, memory_order_relaxed);
        keys[slot] = key;
        places[slot] = i;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Each of the k elements counts those before it.
    if (tid < p.k) {
      const uint key = keys[tid], i = places[tid];
      uint rank = 0;
      for (uint other = 0; other < p.k; other++) {
        rank += keys[other] > key || (keys[other] == key && places[other] < i) ? 1 : 0;
      }
      values[row_offset(row, p.r1, p.r2, p.v_s0, p.v_s1, p.v_s2) + rank] = s.x[i];
      indices[row_offset(row, p.r1, p.r2, p.i_s0, p.i_s1, p.i_s2) + rank] = i;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// The first word of Philox4x32-10 for the counter (position, row, 0, 0).
DEVFN uint philox(uint position, uint row, uint key0, uint key1) {
  uint c0 = position, c1 = row, c2 = 0, c3 = 0;
  for (uint round = 0; round < 10; round++) {
    const ulong a = ulong(c0) * 0xD2511F53u, b = ulong(c2) * 0xCD9E8D57u;
    c0 = uint(b >> 32) ^ c1 ^ key0;
    c1 = uint(b);
    c2 = uint(a >> 32) ^ c3 ^ key1;
    c3 = uint(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c0;
}

// Where the parameter `which` of a row lies in its operand, and whether it is read there.
DEVFN bool in_memory(constant SampleArgs& p, uint which) { return (p.from_memory >> which & 1) != 0; }
DEVFN ulong param_at(constant SampleArgs& p, uint which, uint row) { return (p.per_row >> which & 1) != 0 ? row : 0; }

DEVFN float param(const device float* values, constant SampleArgs& p, uint which, uint row, float given) {
  return in_memory(p, which) ? values[param_at(p, which, row)] : given;
}
DEVFN uint param(const device uint* values, constant SampleArgs& p, uint which, uint row, uint given) {
  return in_memory(p, which) ? values[param_at(p, which, row)] : given;
}

// Marks the previous tokens of a row as bits; whether one of them was outside of it.
DEVFN bool mark_previous(const device uint* previous, device atomic_uint* seen, constant SampleArgs& p, uint row,
                         STATUS_PARAMS, threadgroup uint* part, uint tid, uint lane, uint sg) {
  for (uint i = tid; i < (p.n + 31) / 32; i += THREADS) atomic_store_explicit(seen + i, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_device);
  const ulong start = row_offset(row, p.r1, p.r2, p.p_s0, p.p_s1, p.p_s2);
  uint bad = 0;
  for (uint j = tid; j < p.previous; j += THREADS) {
    const uint token = previous[start + j];
    if (token < p.n) {
      atomic_fetch_or_explicit(seen + token / 32, 1u << token % 32, memory_order_relaxed);
    } else if (token != 0xffffffff) {
      const bool negative = p.is_signed != 0 && (token >> 31) != 0;
      FAULT(INDEX_OUT_OF_RANGE, ulong(row) * p.previous + j,
            negative ? ulong(token) | 0xffffffff00000000ul : ulong(token));
      bad = 1;
    }
  }
  threadgroup_barrier(mem_flags::mem_device);
  return group_max(bad, part, lane, sg) != 0;
}

// The token of a row whose largest score is `most`, from the elements that are kept.
template <typename S>
DEVFN uint draw(S s, uint n, Limit limit, float most, float min_p, uint random, threadgroup ulong* sums,
                threadgroup ulong* found, uint tid) {
  const uint segment = (n + THREADS - 1) / THREADS;
  const uint first = min(tid * segment, n), end = min(first + segment, n);
  ulong mine = 0;
  for (uint i = first; i < end; i++) {
    const float t = s.at(i), weight = weight_of(t, most);
    if (weight >= min_p && keeps(limit, order_key(t), i)) mine += mass_of(weight);
  }
  sums[tid] = mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ulong before = 0, total = 0;
  for (uint other = 0; other < THREADS; other++) {
    if (other == tid) before = total;
    total += sums[other];
  }
  const ulong share = random >> 8;
  const ulong target = share * (total >> 24) + (share * (total & 0xffffff) >> 24);
  if (before <= target && target < before + mine) {
    uint i = first;
    for (;; i++) {
      const float t = s.at(i), weight = weight_of(t, most);
      if (weight >= min_p && keeps(limit, order_key(t), i)) before += mass_of(weight);
      if (before > target) break;
    }
    found[0] = i;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint token = uint(found[0]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return token;
}

template <typename T>
DEVFN void sample_rows(const device T* x, const device uint* previous, const device float* temperatures,
                       const device uint* top_ks, const device float* top_ps, const device float* min_ps,
                       const device float* penalties, const device uint* seeds, const device uint* positions,
                       device uint* y, device atomic_uint* bits, constant SampleArgs& p, STATUS_PARAMS,
                       threadgroup atomic_uint* counts, threadgroup ulong* sums, threadgroup ulong* found,
                       threadgroup uint* part, uint group, uint tid, uint lane, uint sg) {
  GRID_RELEASE;
  GRID_WAIT;
  for (ulong r = group; r < p.rows; r += p.groups) {
    const uint row = uint(r);
    const float temperature = param(temperatures, p, TEMPERATURE, row, p.temperature);
    const uint top_k = param(top_ks, p, TOP_K, row, p.top_k);
    const float top_p = param(top_ps, p, TOP_P, row, p.top_p);
    const float min_p = param(min_ps, p, MIN_P, row, p.min_p);
    const float penalty = param(penalties, p, PENALTY, row, p.penalty);
    const bool heat = temperature >= 0.0f && temperature < INFINITY;
    const bool tail = top_p > 0.0f && top_p <= 1.0f, least = min_p >= 0.0f && min_p <= 1.0f;
    const bool force = penalty > 0.0f && penalty < INFINITY;
    if (!(heat && tail && least && force)) {
      const float bad = !heat ? temperature : !tail ? top_p : !least ? min_p : penalty;
      if (tid == 0) FAULT(BAD_VALUE, row, as_type<uint>(bad));
      continue;
    }
    Scores<T> s;
    s.x = x + row_offset(row, p.r1, p.r2, p.x_s0, p.x_s1, p.x_s2);
    s.seen = bits + r * ((p.n + 31) / 32);
    s.penalised = p.previous != 0;
    s.softcap = p.softcap;
    s.inverse_softcap = p.inverse_softcap;
    s.penalty = penalty;
    s.inverse_temperature = temperature > 0.0f ? 1.0f / temperature : 1.0f;
    if (s.penalised && mark_previous(previous, s.seen, p, row, STATUS_PASS, part, tid, lane, sg)) continue;
    const Limit first = largest(s, p.n, part, tid, lane, sg);
    if (first.key == NAN_KEY) {
      if (tid == 0) FAULT(BAD_VALUE, r * p.n + ~first.inverse, as_type<uint>(s.at(~first.inverse)));
      continue;
    }
    uint token = ~first.inverse;
    if (temperature > 0.0f) {
      const float most = key_value(first.key);
      Limit limit;
      limit.key = limit.inverse = 0;
      if (top_k != 0 && top_k < p.n) limit_number(s, p.n, limit, 0, top_k, counts, found, tid);
      if (top_p < 1.0f) limit = limit_mass(s, p.n, limit, most, uint(top_p * 16777216.0f), counts, found, tid);
      const ulong seed_at = 2 * param_at(p, SEED, row);
      const uint seed0 = in_memory(p, SEED) ? seeds[seed_at] : p.seed_low;
      const uint seed1 = in_memory(p, SEED) ? seeds[seed_at + 1] : p.seed_high;
      const uint random = philox(param(positions, p, POSITION, row, p.position), row, seed0, seed1);
      token = draw(s, p.n, limit, most, min_p, random, sums, found, tid);
    }
    if (tid == 0) y[row_offset(row, p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2)] = token;
  }
}

KERNEL(top_k_f32, 256, IN(float, x, 0), OUT(float, values, 1), OUT(uint, indices, 2), ARGS(TopKArgs, p, 3)) {
  TG(atomic_uint, counts, 256);
  TG(ulong, found, 4);
  TG(uint, keys, THREADS);
  TG(uint, places, THREADS);
  top_k_rows<float>(x, values, indices, p, counts, found, keys, places, gpu_tg.x, gpu_tid.x);
}

KERNEL(top_k_f16, 256, IN(half, x, 0), OUT(half, values, 1), OUT(uint, indices, 2), ARGS(TopKArgs, p, 3)) {
  TG(atomic_uint, counts, 256);
  TG(ulong, found, 4);
  TG(uint, keys, THREADS);
  TG(uint, places, THREADS);
  top_k_rows<half>(x, values, indices, p, counts, found, keys, places, gpu_tg.x, gpu_tid.x);
}

KERNEL(top_k_bf16, 256, IN(bfloat, x, 0), OUT(bfloat, values, 1), OUT(uint, indices, 2), ARGS(TopKArgs, p, 3)) {
  TG(atomic_uint, counts, 256);
  TG(ulong, found, 4);
  TG(uint, keys, THREADS);
  TG(uint, places, THREADS);
  top_k_rows<bfloat>(x, values, indices, p, counts, found, keys, places, gpu_tg.x, gpu_tid.x);
}

KERNEL(sample_f32, 256, IN(float, x, 0), IN(uint, previous, 1), IN(float, temperature, 2), IN(uint, top_k, 3),
       IN(float, top_p, 4), IN(float, min_p, 5), IN(float, penalty, 6), IN(uint, seed, 7), IN(uint, position, 8),
       OUT(uint, y, 9), OUT(atomic_uint, bits, 10), ARGS(SampleArgs, p, 11), STATUS(12)) {
  TG(atomic_uint, counts, 768);
  TG(ulong, sums, THREADS);
  TG(ulong, found, 4);
  TG(uint, part, SIMDGROUPS);
  sample_rows<float>(x, previous, temperature, top_k, top_p, min_p, penalty, seed, position, y, bits, p, STATUS_PASS,
                   counts, sums, found, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(sample_f16, 256, IN(half, x, 0), IN(uint, previous, 1), IN(float, temperature, 2), IN(uint, top_k, 3),
       IN(float, top_p, 4), IN(float, min_p, 5), IN(float, penalty, 6), IN(uint, seed, 7), IN(uint, position, 8),
       OUT(uint, y, 9), OUT(atomic_uint, bits, 10), ARGS(SampleArgs, p, 11), STATUS(12)) {
  TG(atomic_uint, counts, 768);
  TG(ulong, sums, THREADS);
  TG(ulong, found, 4);
  TG(uint, part, SIMDGROUPS);
  sample_rows<half>(x, previous, temperature, top_k, top_p, min_p, penalty, seed, position, y, bits, p, STATUS_PASS,
                   counts, sums, found, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}

KERNEL(sample_bf16, 256, IN(bfloat, x, 0), IN(uint, previous, 1), IN(float, temperature, 2), IN(uint, top_k, 3),
       IN(float, top_p, 4), IN(float, min_p, 5), IN(float, penalty, 6), IN(uint, seed, 7), IN(uint, position, 8),
       OUT(uint, y, 9), OUT(atomic_uint, bits, 10), ARGS(SampleArgs, p, 11), STATUS(12)) {
  TG(atomic_uint, counts, 768);
  TG(ulong, sums, THREADS);
  TG(ulong, found, 4);
  TG(uint, part, SIMDGROUPS);
  sample_rows<bfloat>(x, previous, temperature, top_k, top_p, min_p, penalty, seed, position, y, bits, p, STATUS_PASS,
                   counts, sums, found, part, gpu_tg.x, gpu_tid.x, gpu_lane, gpu_sg);
}
