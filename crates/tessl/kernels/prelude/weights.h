// Rows of quantised weights, decoded 32 at a time. docs/numerics.md has a block of each format, byte by byte.
#pragma once

namespace quant {

// Weights decoded at once.
constant constexpr uint RUN = 32;

// Rows of one quantised matrix.
struct Weights {
  const device uchar* codes;
  const device uchar* scales;
  const device uchar* biases;
};

// Element `at` of an array of f32 (0), f16 (1) or bf16 (2).
DEVFN float factor(const device uchar* array, uint type, ulong at) {
  if (type == 1) return float(((const device half*)array)[at]);
  if (type == 2) return float(((const device bfloat*)array)[at]);
  return ((const device float*)array)[at];
}

DEVFN float f16_at(const device uchar* p) { return float(*(const device half*)p); }
DEVFN float signed_byte(uint b) { return float(int(b << 24) >> 24); }

// Sixteen bytes from memory that is aligned to ALIGN bytes, as four words.
template <uint ALIGN>
DEVFN void load_bytes16(const device uchar* p, thread uint* u) {
  if constexpr (ALIGN == 16) {
    const uint4 v = *(const device uint4*)p;
    u[0] = v.x;
    u[1] = v.y;
    u[2] = v.z;
    u[3] = v.w;
  } else if constexpr (ALIGN == 4) {
    for (uint i = 0; i < 4; i++) u[i] = ((const device uint*)p)[i];
  } else {
    const device ushort* h = (const device ushort*)p;
    for (uint i = 0; i < 4; i++) u[i] = uint(h[2 * i]) | uint(h[2 * i + 1]) << 16;
  }
}

DEVFN uint load_word2(const device uchar* p) {
  const device ushort* h = (const device ushort*)p;
  return uint(h[0]) | uint(h[1]) << 16;
}

// Scale (part 0) or minimum (part 1) `j` of the eight pairs of six bits in the 12 bytes after d and dmin.
DEVFN float six_bits(const device uchar* pairs, uint j, uint part) {
  if (j < 4) return float(uint(pairs[j + 4 * part]) & 63u);
  const uint low = uint(pairs[j + 4]) >> (4 * part) & 15u;
  return float(low | uint(pairs[j - 4 + 4 * part]) >> 6 << 4);
}

// run_<code>(w, .., i, out) decodes run i of the row at w. Factors that lie apart have element type `type`, and `group` weights
// share one.
DEVFN void run_affine4(Weights w, uint type, uint group, uint i, thread float* out) {
  uint u[4];
  load_bytes16<16>(w.codes + ulong(i) * 16, u);
  const uint g = i * RUN / group;
  const float s = factor(w.scales, type, g), b = factor(w.biases, type, g);
  for (uint e = 0; e < RUN; e++) out[e] = s * float(u[e / 8] >> (4 * (e % 8)) & 15u) + b;
}

DEVFN void run_affine8(Weights w, uint type, uint group, uint i, thread float* out) {
  uint u[8];
  load_bytes16<16>(w.codes + ulong(i) * 32, u);
  load_bytes16<16>(w.codes + ulong(i) * 32 + 16, u + 4);
  const uint g = i * RUN / group;
  const float s = factor(w.scales, type, g), b = factor(w.biases, type, g);
  for (uint e = 0; e < RUN; e++) out[e] = s * float(u[e / 4] >> (8 * (e % 4)) & 255u) + b;
}

DEVFN void run_signed4(Weights w, uint type, uint group, uint i, thread float* out) {
  uint u[4];
  load_bytes16<16>(w.codes + ulong(i) * 16, u);
  const float s = factor(w.scales, type, i * RUN / group);
  for (uint e = 0; e < RUN; e++) out[e] = s * float(int(u[e / 8] << (28 - 4 * (e % 8))) >> 28);
}

DEVFN void run_q8(Weights w, uint type, uint group, uint i, thread float* out) {
  uint u[8];
  load_bytes16<16>(w.codes + ulong(i) * 32, u);
  load_bytes16<16>(w.codes + ulong(i) * 32 + 16, u + 4);
  const float s = factor(w.scales, type, i * RUN / group);
  for (uint e = 0; e < RUN; e++) out[e] = s * signed_byte(u[e / 4] >> (8 * (e % 4)));
}

// Weight e of a block of 32 nibbles: low halves first.
DEVFN uint nibble(const thread uint* u, uint e) { return u[e % 16 / 4] >> (8 * (e % 4) + 4 * (e / 16)) & 15u; }

DEVFN void run_q4_0(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 18;
  uint u[4];
  load_bytes16<2>(block + 2, u);
  const float d = f16_at(block);
  for (uint e = 0; e < RUN; e++) out[e] = d * (float(nibble(u, e)) - 8.0f);
}

DEVFN void run_q4_1(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 20;
  uint u[4];
  load_bytes16<4>(block + 4, u);
  const float d = f16_at(block), m = f16_at(block + 2);
  for (uint e = 0; e < RUN; e++) out[e] = d * float(nibble(u, e)) + m;
}

DEVFN void run_q5_0(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 22;
  uint u[4];
  load_bytes16<2>(block + 6, u);
  const uint fifth = load_word2(block + 2);
  const float d = f16_at(block);
  for (uint e = 0; e < RUN; e++) out[e] = d * (float(nibble(u, e) | (fifth >> e & 1u) << 4) - 16.0f);
}

DEVFN void run_q5_1(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 24;
  uint u[4];
  load_bytes16<4>(block + 8, u);
  const uint fifth = *(const device uint*)(block + 4);
  const float d = f16_at(block), m = f16_at(block + 2);
  for (uint e = 0; e < RUN; e++) out[e] = d * float(nibble(u, e) | (fifth >> e & 1u) << 4) + m;
}

DEVFN void run_q8_0(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i) * 34;
  uint u[8];
  load_bytes16<2>(block + 2, u);
  load_bytes16<2>(block + 18, u + 4);
  const float d = f16_at(block);
  for (uint e = 0; e < RUN; e++) out[e] = d * signed_byte(u[e / 4] >> (8 * (e % 4)));
}

DEVFN void run_q4_k(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i / 8) * 144;
  const uint j = i % 8, shift = 4 * (j % 2);
  uint u[8];
  load_bytes16<16>(block + 16 + j / 2 * 32, u);
  load_bytes16<16>(block + 32 + j / 2 * 32, u + 4);
  const float s = f16_at(block) * six_bits(block + 4, j, 0), m = f16_at(block + 2) * six_bits(block + 4, j, 1);
  for (uint e = 0; e < RUN; e++) out[e] = s * float(u[e / 4] >> (8 * (e % 4) + shift) & 15u) - m;
}

DEVFN void run_q5_k(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i / 8) * 176;
  const uint j = i % 8, shift = 4 * (j % 2);
  uint u[8], fifth[8];
  load_bytes16<16>(block + 16, fifth);
  load_bytes16<16>(block + 32, fifth + 4);
  load_bytes16<16>(block + 48 + j / 2 * 32, u);
  load_bytes16<16>(block + 64 + j / 2 * 32, u + 4);
  const float s = f16_at(block) * six_bits(block + 4, j, 0), m = f16_at(block + 2) * six_bits(block + 4, j, 1);
  for (uint e = 0; e < RUN; e++) {
    const uint low = u[e / 4] >> (8 * (e % 4) + shift) & 15u;
    out[e] = s * float(low | (fifth[e / 4] >> (8 * (e % 4) + j) & 1u) << 4) - m;
  }
}

DEVFN void run_q6_k(Weights w, uint i, thread float* out) {
  const device uchar* block = w.codes + ulong(i / 8) * 210;
  const uint part = i % 8 / 4, p = i % 4;
  const device uchar* low = block + 64 * part + 32 * (p % 2);
  const device uchar* high = block + 128 + 32 * part;
  const float d = f16_at(block + 208);
  const uint scales = load_word2(block + 192 + i % 8 / 2 * 4) >> (16 * (i % 2));
  for (uint j = 0; j < 2; j++) {
    uint u[4], h[4];
    load_bytes16<2>(low + 16 * j, u);
    load_bytes16<2>(high + 16 * j, h);
    const float s = d * signed_byte(scales >> (8 * j));
    for (uint e = 0; e < 16; e++) {
      const uint at = 8 * (e % 4);
      const uint q = (u[e / 4] >> (at + 4 * (p / 2)) & 15u) | (h[e / 4] >> (at + 2 * p) & 3u) << 4;
      out[16 * j + e] = s * (float(q) - 32.0f);
    }
  }
}

// Run i of the row at w, coded as number `format` of QFormat.
DEVFN void decode(uint format, Weights w, uint type, uint group, uint i, thread float* out) {
  if (format == 0) run_affine4(w, type, group, i, out);
  if (format == 1) run_affine8(w, type, group, i, out);
  if (format == 2) run_signed4(w, type, group, i, out);
  if (format == 3) run_q8(w, type, group, i, out);
  if (format == 4) run_q4_0(w, i, out);
  if (format == 5) run_q4_1(w, i, out);
  if (format == 6) run_q5_0(w, i, out);
  if (format == 7) run_q5_1(w, i, out);
  if (format == 8) run_q8_0(w, i, out);
  if (format == 9) run_q4_k(w, i, out);
  if (format == 10) run_q5_k(w, i, out);
  if (format == 11) run_q6_k(w, i, out);
}

// Row `at` of a matrix whose rows of codes have `bytes` bytes and whose rows of factors have `groups` elements.
DEVFN Weights row_of(const device uchar* codes, const device uchar* scales, const device uchar* biases, ulong bytes,
                     uint type, uint groups, uint at) {
  const ulong first = ulong(at) * groups * (type == 0 ? 4 : 2);
  Weights w;
  w.codes = codes + at * bytes;
  w.scales = scales + first;
  w.biases = biases + first;
  return w;
}

// The sum of the products of RUN weights with as many elements of a row of x, which starts on 16 bytes if `wide`.
template <typename X>
DEVFN float dot_run(bool wide, const thread float* w, const device X* x) {
  constexpr uint E = 16 / sizeof(X);
  float sum = 0.0f;
#pragma unroll
  for (uint i = 0; i < RUN; i += E) {
    float v[E];
    if (wide) {
      load_floats<X, E>(x + i, v);
    } else {
      for (uint e = 0; e < E; e++) v[e] = float(x[i + e]);
    }
    for (uint e = 0; e < E; e++) sum += w[i + e] * v[e];
  }
  return sum;
}

// Rows of a coded cache are signed bytes, with one scale each.
//
// Codes i .. i + 3 of a row of n as floats; 0 beyond its end. `wide`: the row starts on 16 bytes.
DEVFN float4 codes4(const device uchar* row, uint i, uint n, bool wide) {
  uint word = 0;
  if (wide && i + 4 <= n) {
    word = *(const device uint*)(row + i);
  } else {
    for (uint e = 0; e < 4; e++) word |= i + e < n ? uint(row[i + e]) << (8 * e) : 0u;
  }
  return float4(signed_byte(word), signed_byte(word >> 8), signed_byte(word >> 16), signed_byte(word >> 24));
}

// The code of x where one over the scale is `inverse`. x * inverse is below 128: adding 1.5 * 2^23 rounds it to the nearest
// whole number, ties to even.
DEVFN uchar code_of(float x, float inverse) {
  const float whole = x * inverse + 12582912.0f - 12582912.0f;
  return uchar(uint(int(whole)) & 255u);
}

}  // namespace quant
