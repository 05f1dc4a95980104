// Activation functions, one definition for every kernel and device. Inputs and results are float; NaN gives NaN.
#pragma once

// By exp(-|x|): no overflow, and full relative accuracy in both tails, down to the smallest normal float.
DEVFN float sigmoid(float x) {
  float e = precise::exp(x < 0.0f ? x : -x);
  float s = 1.0f / (1.0f + e);
  return x < 0.0f ? e * s : s;
}

// tanh(x) = sign(x) (1 - e) / (1 + e), e = exp(-2|x|). Saturates to +-1 and never gives NaN from overflow, as the
// (t - 1) / (t + 1) form does above 45. Absolute error below 1.5e-7; relative accuracy is lost near 0.
DEVFN float tanh_saturating(float x) {
  float e = precise::exp(x < 0.0f ? 2.0f * x : -2.0f * x);
  float t = (1.0f - e) / (1.0f + e);
  return x < 0.0f ? -t : t;
}

// MSL has no erf. Two minimax polynomials (N. Juffa): below 0.9277 of erf itself, above of log(1 - erf).
// Absolute error below 1.2e-7 everywhere.
DEVFN float erf_f32(float x) {
  float t = x < 0.0f ? -x : x;
  float s = x * x;
  if (t > 0.927734375f) {
    float r = fma(-1.72853470e-5f, t, 3.83197126e-4f);
    float u = fma(-3.88396438e-3f, t, 2.42546219e-2f);
    r = fma(r, s, u);
    r = fma(r, t, -1.06777877e-1f);
    r = fma(r, t, -6.34846687e-1f);
    r = fma(r, t, -1.28717512e-1f);
    r = fma(r, t, -t);
    r = 1.0f - precise::exp(r);
    return x < 0.0f ? -r : r;
  }
  float r = fma(-5.96761703e-4f, s, 4.99119423e-3f);
  r = fma(r, s, -2.67681349e-2f);
  r = fma(r, s, 1.12819925e-1f);
  r = fma(r, s, -3.76125336e-1f);
  r = fma(r, s, 1.28379166e-1f);
  return fma(r, x, x);
}

// Written so that NaN falls through: the comparison is false for it.
DEVFN float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Below -150 the exact value of the next three is a denormal or zero; the constant keeps -inf from becoming inf * 0.
DEVFN float silu(float x) { return x < -150.0f ? -0.0f : x * sigmoid(x); }

// x/2 (1 + erf(x / sqrt 2)). Absolute error below 1.2e-7 |x|.
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
