// PTX used by the CUDA kernels: one instruction per function, nothing else. Shared memory is addressed by the 32-bit
// window address of smem_address(). cp.async and ldmatrix need sm_80.
#pragma once

DEVFN uint smem_address(const void* p) { return uint(__cvta_generic_to_shared(p)); }

// Copies `bytes` (0 to 16) from global memory and fills the rest of the 16 with zeros. No byte beyond is read.
DEVFN void cp_async_16(uint dst, const void* src, uint bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

// The same for 8 bytes.
DEVFN void cp_async_8(uint dst, const void* src, uint bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

// The same for 4 bytes.
DEVFN void cp_async_4(uint dst, const void* src, uint bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

// Closes the group of copies that this thread has begun since the last call; a group may be empty.
DEVFN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's newest groups are unfinished. Other threads see the data after a barrier.
template <uint PENDING>
DEVFN void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8x8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned) and
// receives from matrix j, in r[j], elements (l / 4, 2 (l % 4)) and the next one.
DEVFN void ldmatrix_x4(uint (&r)[4], uint address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same with each matrix transposed on the way.
DEVFN void ldmatrix_x4_trans(uint (&r)[4], uint address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d += a b with a [16, 16], b [16, 8], d [16, 8] in f32. With g = lane / 4 and t = lane % 4: a holds rows g, g + 8 of
// columns 2t.. then rows g, g + 8 of columns 2t + 8..; b holds rows 2t.. and 2t + 8.. of column g; d holds (g, 2t),
// (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
DEVFN void mma_16x8x16(float (&d)[4], const uint (&a)[4], uint b0, uint b1, bfloat) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same for f16 operands; the last parameter only selects the type.
DEVFN void mma_16x8x16(float (&d)[4], const uint (&a)[4], uint b0, uint b1, half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x with a relative error below 2^-22; results below the normal range are 0.
DEVFN float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x within 1 ulp; 0 for infinity.
DEVFN float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
