// Sixteen bytes of memory as floats. Metal has no half8, so a vector access is a uint4 taken apart with as_type, which
// every compiler turns into one 128-bit instruction.
#pragma once

template <typename T>
DEVFN void unpack16(uint4 u, thread float* v) {
  float4 a;
  if constexpr (sizeof(T) == 2) {
    a = vcast<float4>(as_type<vec<T, 4>>(uint2(u.x, u.y)));
    const float4 b = vcast<float4>(as_type<vec<T, 4>>(uint2(u.z, u.w)));
    v[4] = b.x;
    v[5] = b.y;
    v[6] = b.z;
    v[7] = b.w;
  } else {
    a = as_type<float4>(u);
  }
  v[0] = a.x;
  v[1] = a.y;
  v[2] = a.z;
  v[3] = a.w;
}

// Rounds each float to T, to nearest even.
template <typename T>
DEVFN uint4 pack16(const thread float* v) {
  if constexpr (sizeof(T) == 2) {
    uint2 lo = as_type<uint2>(vcast<vec<T, 4>>(float4(v[0], v[1], v[2], v[3])));
    uint2 hi = as_type<uint2>(vcast<vec<T, 4>>(float4(v[4], v[5], v[6], v[7])));
    return uint4(lo.x, lo.y, hi.x, hi.y);
  } else {
    return as_type<uint4>(float4(v[0], v[1], v[2], v[3]));
  }
}

// COUNT floats from 16-byte aligned memory.
template <typename T, uint COUNT>
DEVFN void load_floats(const device T* p, thread float* v) {
  const device uint4* q = (const device uint4*)p;
  for (uint i = 0; i < COUNT * sizeof(T) / 16; i++) unpack16<T>(q[i], v + i * (16 / sizeof(T)));
}
