// Kernels that use the words of the prelude, most of them wrong on purpose: executor.rs runs them on the simulator,
// and scripts/nvrtc_check.py compiles them for CUDA.
FCONST(uint, FACTOR, 0);

KERNEL(scale, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  const uint i = gpu_tg.x * 64 + gpu_tid.x;
  if (i < n) y[i] = float(i * FACTOR);
}

KERNEL(divergent_barrier, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  if (gpu_tid.x < n) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[gpu_tid.x] = 1.0f;
}

KERNEL(divergent_sum, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  float v = 1.0f;
  if (gpu_lane < n) v = simd_sum(v);
  y[gpu_tid.x] = v;
}

KERNEL(mixed_operations, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  y[gpu_tid.x] = gpu_lane < n ? simd_sum(1.0f) : simd_max(1.0f);
}

KERNEL(uninitialised, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  TG(float, t, 64);
  if (gpu_tid.x != n) t[gpu_tid.x] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[gpu_tid.x] = t[gpu_tid.x];
}

KERNEL(too_much_memory, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  TG(float, t, 8000);
  TG(float, u, 200);
  t[gpu_tid.x] = u[gpu_tid.x] = float(n);
  y[gpu_tid.x] = t[gpu_tid.x] + u[gpu_tid.x];
}

KERNEL(neighbour, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  TG(float, t, 64);
  t[gpu_tid.x] = float(gpu_tid.x);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[gpu_tid.x] = t[(gpu_tid.x + n) % 64] + simd_sum(float(gpu_lane)) + simd_shuffle_xor(float(gpu_lane), 1);
}

DEVFN bool in_range(uint i, uint n, uint at, STATUS_PARAMS) {
  if (i < n) return true;
  FAULT(7, at, i);
  return false;
}

KERNEL(bounded, 64, IN(uint, index, 0), OUT(float, y, 1), ARGS(uint, n, 2), STATUS(3)) {
  const uint i = index[gpu_tid.x];
  if (in_range(i, n, gpu_tid.x, STATUS_PASS)) y[gpu_tid.x] = float(i);
}

KERNEL(last_arriver, 64, SCRATCH(float, parts, 0), SCRATCH(atomic_uint, count, 1), OUT(float, y, 2), ARGS(uint, n, 3)) {
  TG(uint, last, 1);
  if (gpu_tid.x == 0) {
    parts[gpu_tg.x] = float(gpu_tg.x);
    FENCE_REL;
    last[0] = atomic_fetch_add_explicit(count, 1u, memory_order_relaxed) == n - 1 ? 1 : 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (last[0] != 0 && gpu_tid.x == 0) {
    FENCE_ACQ;
    float sum = 0.0f;
    for (uint i = 0; i < n; i++) sum += parts[i];
    y[0] = sum;
  }
}
