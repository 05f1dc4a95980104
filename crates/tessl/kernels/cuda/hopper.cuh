// PTX that only Hopper has (sm_90a): one instruction per function, nothing else. Shared memory is addressed by the
// 32-bit window address of smem_address(); a barrier is 8 bytes of it.
#pragma once

// What the copy engine knows about one operand, encoded by the host (device/cuda/tensor_map.rs). Passed as a
// __grid_constant__ parameter, never copied.
struct alignas(128) TensorMap {
  ulong words[16];
};

// --- barriers that count arrivals and bytes --------------------------------------------------------------------------

// A fresh barrier is in phase 0, which is not complete: waiting for parity 1 returns at once.
DEVFN void mbarrier_init(uint bar, uint arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// One arrival, and so many bytes to wait for. Bytes filled in for elements outside the tensor count too.
DEVFN void mbarrier_expect(uint bar, uint bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

DEVFN void mbarrier_arrive(uint bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }

// Whether the phase with this parity is complete; may sleep for a while before it says no.
DEVFN bool mbarrier_try(uint bar, uint parity) {
  uint done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// Makes what this thread wrote to shared memory (barriers too) visible to the copy engine and to wgmma.
DEVFN void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVFN void mbarrier_wait(uint bar, uint parity) {
  while (!mbarrier_try(bar, parity)) {
  }
}

// Position in a ring of stages, each with a barrier; the parity flips when it comes round.
template <uint STAGES>
struct RingCursor {
  uint stage = 0, parity;
  GPU_MEMBER explicit RingCursor(uint p) : parity(p) {}
  GPU_MEMBER void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// A barrier of some warps of the block; ids 1 to 15.
DEVFN void barrier_sync(uint id, uint threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// The same without waiting: `threads` counts those that arrive and those that wait.
DEVFN void barrier_arrive(uint id, uint threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// --- the copy engine -------------------------------------------------------------------------------------------------

DEVFN void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Box at (x, y, z), x contiguous, to shared memory; its bytes arrive at `bar`. Outside the tensor: zeros.
DEVFN void tma_load(uint dst, const TensorMap& map, uint x, uint y, uint z, uint bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
      ::"r"(dst), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(bar)
      : "memory");
}

// The same in four dimensions.
DEVFN void tma_load(uint dst, const TensorMap& map, uint x, uint y, uint z, uint w, uint bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
      ::"r"(dst), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar)
      : "memory");
}

// Box from shared memory to (x, y, z); what lies outside the tensor is not written.
DEVFN void tma_store(const TensorMap& map, uint x, uint y, uint z, uint src) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
               ::"l"(&map), "r"(x), "r"(y), "r"(z), "r"(src)
               : "memory");
}

// Closes the group of stores that this thread has begun since the last call.
DEVFN void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but this thread's newest PENDING groups have read their shared memory.
template <uint PENDING>
DEVFN void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Waits until this thread's stores are done.
DEVFN void tma_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// --- clusters --------------------------------------------------------------------------------------------------------

DEVFN uint cluster_rank() {
  uint rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Publishes this thread's writes to the cluster; every thread of every block arrives.
DEVFN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }

// Publishes nothing, and so waits for nothing (the form above is a fence for the whole device).
DEVFN void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

DEVFN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The address, in the cluster's window, of the same place in the shared memory of block `rank`.
DEVFN uint cluster_address(uint address, uint rank) {
  uint there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

DEVFN float4 cluster_load(uint address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// --- shared memory ---------------------------------------------------------------------------------------------------

DEVFN void shared_store(uint address, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

DEVFN void shared_store(uint address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

// Four 8x8 matrices of 16-bit elements, the counterpart of ldmatrix_x4.
DEVFN void stmatrix_x4(uint address, const uint (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// Two floats rounded to nearest even, `lo` in the lower half; the last parameter only selects the type.
DEVFN uint pack_pair(float lo, float hi, bfloat) {
  uint r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

DEVFN uint pack_pair(float lo, float hi, half) {
  uint r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// --- registers -------------------------------------------------------------------------------------------------------

// Every warp of the warpgroup gives up registers ..
template <uint COUNT>
DEVFN void registers_give() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// .. or waits until so many are free and takes them.
template <uint COUNT>
DEVFN void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// --- wgmma -----------------------------------------------------------------------------------------------------------

// Before the first wgmma of a batch: orders it after what the threads did to the accumulators.
DEVFN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVFN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING batches are unfinished; a stage may be refilled when its batch is done.
template <uint PENDING>
DEVFN void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps what follows from reading an accumulator before the wait that stands above.
DEVFN void wgmma_settle(float& d) { asm volatile("" : "+f"(d)::"memory"); }

// Keeps what computes a register operand before the fence that stands below.
DEVFN void wgmma_settle(uint& a) { asm volatile("" : "+r"(a)::"memory"); }

// A tile in shared memory with the 128-byte swizzle, aligned to 1024 bytes. K-major (rows of 64 k): `leading` is not
// used. MN-major (rows of 64 m or n): `leading` is the distance to the next 64. Both: 1024 bytes to the next 8 rows.
// Added to the result: bytes / 16.
DEVFN ulong matrix_descriptor(uint address, uint leading) {
  return ulong((address & 0x3ffff) >> 4) | ulong(leading >> 4) << 16 | ulong(1024 >> 4) << 32 | 1ull << 62;
}

// d (+)= a b: a [64, 16], b [16, N], d [64, N] in f32; `keep` 0 forgets the old d. With g = lane / 4, t = lane % 4, d[i] is
// row 16 * (warp % 4) + g + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * t + i % 2.
#define WGMMA_NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_48 WGMMA_NAMES_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_56 WGMMA_NAMES_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_NAMES_64 WGMMA_NAMES_56 \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_80 WGMMA_NAMES_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_NAMES_96 WGMMA_NAMES_80 \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_128 WGMMA_NAMES_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_D32(i) WGMMA_D8(i), WGMMA_D8(i + 8), WGMMA_D8(i + 16), WGMMA_D8(i + 24)

#define WGMMA(T, COUNT, SHAPE, A, B, KEEP, A_MN_, B_MN_, ...)                                                      \
  template <uint A_MN, uint B_MN>                                                                                  \
  DEVFN void wgmma(float (&d)[COUNT], ulong a, ulong b, uint keep, T) {                                            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " KEEP ", 0; wgmma.mma_async.sync.aligned." SHAPE                 \
                 " {" WGMMA_NAMES_##COUNT "}, " A ", " B ", p, 1, 1, " A_MN_ ", " B_MN_ "; }"                      \
                 : __VA_ARGS__                                                                                     \
                 : "l"(a), "l"(b), "r"(keep), "n"(A_MN), "n"(B_MN));                                               \
  }
#define WGMMA_TYPES(COUNT, N, ...)                                                        \
  WGMMA(bfloat, COUNT, "m64n" N "k16.f32.bf16.bf16", __VA_ARGS__)                         \
  WGMMA(half, COUNT, "m64n" N "k16.f32.f16.f16", __VA_ARGS__)

WGMMA_TYPES(32, "64", "%32", "%33", "%34", "%35", "%36", WGMMA_D32(0))
WGMMA_TYPES(48, "96", "%48", "%49", "%50", "%51", "%52", WGMMA_D32(0), WGMMA_D8(32), WGMMA_D8(40))
WGMMA_TYPES(56, "112", "%56", "%57", "%58", "%59", "%60", WGMMA_D32(0), WGMMA_D8(32), WGMMA_D8(40), WGMMA_D8(48))
WGMMA_TYPES(64, "128", "%64", "%65", "%66", "%67", "%68", WGMMA_D32(0), WGMMA_D32(32))
WGMMA_TYPES(80, "160", "%80", "%81", "%82", "%83", "%84", WGMMA_D32(0), WGMMA_D32(32), WGMMA_D8(64), WGMMA_D8(72))
WGMMA_TYPES(96, "192", "%96", "%97", "%98", "%99", "%100", WGMMA_D32(0), WGMMA_D32(32), WGMMA_D32(64))
WGMMA_TYPES(128, "256", "%128", "%129", "%130", "%131", "%132", WGMMA_D32(0), WGMMA_D32(32), WGMMA_D32(64), WGMMA_D32(96))

// d += a b with a in registers: with g and t as above, a[0] has row g, columns 2t and 2t + 1; a[1] row g + 8; a[2] and
// a[3] these rows at columns 2t + 8 and on. A pair of neighbours of d, packed, is in its place.
#define WGMMA_RS(T, COUNT, SHAPE, A, B, B_MN_, ...)                                                                \
  template <uint B_MN>                                                                                             \
  DEVFN void wgmma_rs(float (&d)[COUNT], const uint (&a)[4], ulong b, T) {                                         \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned." SHAPE                        \
                 " {" WGMMA_NAMES_##COUNT "}, {" A "}, " B ", p, 1, 1, " B_MN_ "; }"                               \
                 : __VA_ARGS__                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(B_MN));                                 \
  }
#define WGMMA_RS_TYPES(COUNT, N, ...)                                                     \
  WGMMA_RS(bfloat, COUNT, "m64n" N "k16.f32.bf16.bf16", __VA_ARGS__)                      \
  WGMMA_RS(half, COUNT, "m64n" N "k16.f32.f16.f16", __VA_ARGS__)

WGMMA_RS_TYPES(32, "64", "%32, %33, %34, %35", "%36", "%37", WGMMA_D32(0))
WGMMA_RS_TYPES(48, "96", "%48, %49, %50, %51", "%52", "%53", WGMMA_D32(0), WGMMA_D8(32), WGMMA_D8(40))
WGMMA_RS_TYPES(64, "128", "%64, %65, %66, %67", "%68", "%69", WGMMA_D32(0), WGMMA_D32(32))
WGMMA_RS_TYPES(96, "192", "%96, %97, %98, %99", "%100", "%101", WGMMA_D32(0), WGMMA_D32(32), WGMMA_D32(64))
WGMMA_RS_TYPES(128, "256", "%128, %129, %130, %131", "%132", "%133", WGMMA_D32(0), WGMMA_D32(32), WGMMA_D32(64), WGMMA_D32(96))
