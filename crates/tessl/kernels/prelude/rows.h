// Walking the rows of strided operands. A row is numbered in 32 bits; where it starts needs 64.
#pragma once

// Offset of row r, whose index splits into (outermost, middle, innermost). 64-bit division is a long subroutine on
// every GPU; plans keep rows below 2^32, and only the products need 64 bits. With one row axis r2 is the largest uint,
// so that nothing is divided at all.
DEVFN ulong row_offset(uint row, uint r1, uint r2, ulong s0, ulong s1, ulong s2) {
  if (row < r2) return row * s2;
  const uint outer = row / r2;
  return outer / r1 * s0 + outer % r1 * s1 + row % r2 * s2;
}

// COUNT floats, each rounded to T to nearest even, to 16-byte aligned memory.
template <typename T, uint COUNT>
DEVFN void store_floats(device T* p, const thread float* v) {
  device uint4* q = (device uint4*)p;
  for (uint i = 0; i < COUNT * sizeof(T) / 16; i++) q[i] = pack16<T>(v + i * (16 / sizeof(T)));
}

// A thread's place among the vectors of all rows of an element-wise kernel. Steps are data of the plan, so that walking
// takes no division. The argument block A has rows, vectors, step_rows and step_vectors.
struct MapCursor {
  ulong row;
  uint at;
};

template <typename A>
DEVFN MapCursor map_first(constant A& p, uint thread_index) {
  MapCursor c;
  c.row = thread_index / p.vectors;
  c.at = thread_index % p.vectors;
  return c;
}

template <typename A>
DEVFN void map_next(thread MapCursor& c, constant A& p) {
  c.row += p.step_rows;
  c.at += p.step_vectors;
  if (c.at >= p.vectors) {
    c.at -= p.vectors;
    c.row++;
  }
}

// Element `i` of the row of a cursor, in each operand.
DEVFN ulong map_a(MapCursor c, constant MapArgs& p, uint i) {
  return row_offset(uint(c.row), p.r1, p.r2, p.a_s0, p.a_s1, p.a_s2) + i;
}
DEVFN ulong map_b(MapCursor c, constant MapArgs& p, uint i) {
  return row_offset(uint(c.row), p.r1, p.r2, p.b_s0, p.b_s1, p.b_s2) + i;
}
DEVFN ulong map_y(MapCursor c, constant MapArgs& p, uint i) {
  return row_offset(uint(c.row), p.r1, p.r2, p.y_s0, p.y_s1, p.y_s2) + i;
}

// 1 / sqrt(v). One Newton step makes the 2 ulp of rsqrt one ulp; an IEEE division and root would be calls of slow
// paths, around which registers spill. At 0, infinity and NaN the step has no meaning and rsqrt is exact.
DEVFN float inverse_root(float v) {
  const float r = precise::rsqrt(v);
  const float refined = fma(0.5f * r, fma(-v * r, r, 1.0f), r);
  return v > 0.0f && v < INFINITY ? refined : r;
}

// Where a token of a cache is kept: in which sequence or page, and in which of its slots; or the fault that it has no place.
constant constexpr uint KV_NO_PAGE = 1, KV_OVERFLOW = 2;
struct KvPlace {
  ulong outer, slot;
  uint fault;
  ulong index, value;
};

// Token t of sequence b at `position`. A ring keeps position p in slot p % capacity; pages keep slot s in row s % page of page
// table[b, s / page]. The argument block A has ring, capacity, page, pages, width, tokens and table_s.
template <typename A>
DEVFN KvPlace kv_place(uint b, uint t, ulong position, const device uint* table, constant A& p) {
  KvPlace at = {b, position, 0, 0, 0};
  if (p.ring != 0) {
    at.slot = position % p.capacity;
  } else if (position >= p.capacity) {
    at.fault = KV_OVERFLOW;
    at.index = ulong(b) * p.tokens + t;
    at.value = position;
  }
  if (p.page == 0 || at.fault != 0) return at;
  const ulong i = at.slot / p.page;
  at.outer = table[b * p.table_s + i];
  at.slot %= p.page;
  if (at.outer < p.pages) return at;
  at.fault = KV_NO_PAGE;
  at.index = ulong(b) * p.width + i;
  at.value = at.outer;
  return at;
}
