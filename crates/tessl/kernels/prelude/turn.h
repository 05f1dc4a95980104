// Turning pairs of elements by an angle.
#pragma once

// Sine and cosine of `angle` / 2^64 turns. The nearest quarter turn is taken off; what is left, at most pi / 4, goes
// through the polynomials of Cephes' sinf and cosf. Absolute error of each below 2^-23.
DEVFN void turn(ulong angle, thread float& s, thread float& c) {
  const uint quarter = uint((angle + 0x2000000000000000ul) >> 62);
  const int rest = int(uint((angle - (ulong(quarter) << 62)) >> 32));
  const float a = float(rest) * 1.46291807926715968e-9f;
  const float z = a * a;
  float sine = fma(-1.9515295891e-4f, z, 8.3321608736e-3f);
  sine = fma(sine, z, -1.6666654611e-1f);
  sine = fma(sine * z, a, a);
  float cosine = fma(2.443315711809948e-5f, z, -1.388731625493765e-3f);
  cosine = fma(cosine, z, 4.166664568298827e-2f);
  cosine = fma(cosine * z, z, fma(-0.5f, z, 1.0f));
  // The sine is negative in quarters 2 and 3, the cosine in 1 and 2.
  const bool swap = (quarter & 1) != 0;
  s = as_type<float>(as_type<uint>(swap ? cosine : sine) ^ ((quarter & 2) << 30));
  c = as_type<float>(as_type<uint>(swap ? sine : cosine) ^ (((quarter + 1) & 2) << 30));
}

DEVFN void rotate(thread float& x0, thread float& x1, ulong angle) {
  float s, c;
  turn(angle, s, c);
  const float y0 = x0 * c - x1 * s;
  x1 = x1 * c + x0 * s;
  x0 = y0;
}
