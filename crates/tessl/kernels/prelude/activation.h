// Activation functions, one definition for every kernel and device. Inputs and results are float; NaN gives NaN.
#pragma once

// By exp(-|x|): no overflow, and full relative accuracy in both tails, down to the smallest normal float.
DEVFN float sigmoid(float x) {
  float e = precise::exp(x < 0.0f ? x : -x);
  float s = 1.0f / (1.0f + e);
  return x < 0.0f ? e * s : s;
}

// 1 / d for d in [1, 2], within 1 ulp: a linear guess and three Newton steps. An IEEE division is a call of a slow path,
// around which registers spill.
DEVFN float reciprocal_1_2(float d) {
  float r = fma(-0.470588235f, d, 1.411764706f);
  r = fma(r, fma(-d, r, 1.0f), r);
  r = fma(r, fma(-d, r, 1.0f), r);
  return fma(r, fma(-d, r, 1.0f), r);
}

// Below 0.625: tanh(x) = x + x^3 P(x^2), our own fit (smallest largest error on Chebyshev points, coefficients rounded to
// f32); above: sign(x) (1 - e) / (1 + e), e = exp(-2|x|). Saturates to +-1 and never gives NaN from overflow, as the
// (t - 1) / (t + 1) form does above 45. Relative error below 10 * 2^-24.
DEVFN float tanh_saturating(float x) {
  const float s = x * x;
  if (s < 0.390625f) {
    float p = fma(-5.71703864e-3f, s, 2.06505805e-2f);
    p = fma(p, s, -5.37434965e-2f);
    p = fma(p, s, 1.33314908e-1f);
    p = fma(p, s, -3.33332837e-1f);
    return fma(x * s, p, x);
  }
  const float e = precise::exp(x < 0.0f ? 2.0f * x : -2.0f * x);
  const float t = (1.0f - e) * reciprocal_1_2(1.0f + e);
  return x < 0.0f ? -t : t;
}

// MSL has no erf. Below 1: erf(x) = x + x P(x^2); above: erf(x) = 1 - exp(-Q(x)), and 1 from 4 on. P and Q are our own
// fits (smallest largest error on Chebyshev points, coefficients rounded to f32). Absolute error below 7.2e-8.
DEVFN float erf_f32(float x) {
  float t = x < 0.0f ? -x : x;
  if (t >= 1.0f) {
    float q = fma(2.16867593e-05f, t, -4.41335258e-04f);
    q = fma(q, t, 4.20455588e-03f);
    q = fma(q, t, -2.52082404e-02f);
    q = fma(q, t, 1.08418547e-01f);
    q = fma(q, t, 6.33219898e-01f);
    q = fma(q, t, 1.12957835f);
    q = fma(q, t, -1.88036909e-04f);
    float r = t >= 4.0f ? 1.0f : 1.0f - precise::exp(-q);
    return x < 0.0f ? -r : r;
  }
  float s = x * x;
  float p = fma(7.64711731e-05f, s, -7.94235617e-04f);
  p = fma(p, s, 5.17974934e-03f);
  p = fma(p, s, -2.68485919e-02f);
  p = fma(p, s, 1.12834305e-01f);
  p = fma(p, s, -3.76126051e-01f);
  p = fma(p, s, 1.28379151e-01f);
  return fma(p, x, x);
}

// Written so that NaN falls through: the comparison is false for it.
DEVFN float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Below -150 the exact value of the next three is a denormal or zero; the constant keeps -inf from becoming inf * 0.
DEVFN float silu(float x) { return x < -150.0f ? -0.0f : x * sigmoid(x); }

// x/2 (1 + erf(x / sqrt 2)). Absolute error below 1e-7 |x|.
DEVFN float gelu_erf(float x) { return x < -150.0f ? -0.0f : 0.5f * x * (1.0f + erf_f32(x * 0.707106781f)); }

// x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), which is x sigmoid(2u): one exponential and no cancellation.
// Relative error within (10 + 5 |2u|) 2^-24.
DEVFN float gelu_tanh(float x) {
  return x < -150.0f ? -0.0f : x * sigmoid(1.595769122f * fma(0.044715f * x * x, x, x));
}

// Numbers of tessl::Activation.
DEVFN float activate(uint kind, float x) {
  switch (kind) {
    case 1: return relu(x);
    case 2: return silu(x);
    case 3: return gelu_erf(x);
    case 4: return gelu_tanh(x);
    default: return x;
  }
}
