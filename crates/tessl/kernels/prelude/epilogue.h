// The end of a product on Metal, one definition for every GEMM kernel.
#pragma once

// Finishes one element of C; `at` is its offset. C is not read where beta is 0, bias not touched where p.bias is 0.
template <typename O>
DEVFN void finish(float acc, device O* c, ulong at, const device float* bias, bool bias_f32, uint row, uint col,
                  constant GemmArgs& p) {
  float t = p.alpha * acc;
  if (p.beta != 0.0f) t += p.beta * float(c[at]);
  if (p.bias != 0) {
    const uint i = p.bias == 1 ? col : row;
    t += bias_f32 ? bias[i] : float(((const device O*)bias)[i]);
  }
  c[at] = O(activate(p.activation, t));
}
