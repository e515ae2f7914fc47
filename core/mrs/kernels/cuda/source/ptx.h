// The instructions that C++ has no word for. Tests replace this file by one for CPUs, which
// emulates them: so what follows it has to use no other feature of a GPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct __align__(8) Words2 {
  u32 x, y;
};
struct __align__(16) Words4 {
  u32 x, y, z, w;
};

#define DEVICE __device__ __forceinline__
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)

// The shared memory of the block, of the size that the launch names.
DEVICE char *shared_memory() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}

// Sums += weights (16 x 16) times tokens (16 x 8), in float32.
DEVICE void multiply_f16(float *sums, const u32 *a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void multiply_bf16(float *sums, const u32 *a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 rows of 16 bytes: lanes 8 n to 8 n + 7 name the rows of matrix n in shared
// memory. Word n of lane (g, t) is word t of row g of matrix n.
DEVICE void load_matrices(u32 *words, const char *row) {
  u32 from = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}

// Two float16 in a word each: a * b + c, a * b, a + b.
DEVICE u32 fma2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
DEVICE u32 mul2(u32 a, u32 b) {
  u32 d;
  asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
DEVICE u32 add2(u32 a, u32 b) {
  u32 d;
  asm("add.rn.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// (a & mask) | bits, in one instruction.
DEVICE u32 masked_or(u32 a, u32 mask, u32 bits) {
  u32 d;
  asm("lop3.b32 %0,%1,%2,%3,0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}

// Four bytes of the eight of a and b, which the digits of `chosen` name.
DEVICE u32 bytes_of(u32 a, u32 b, u32 chosen) {
  u32 d;
  asm("prmt.b32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(chosen));
  return d;
}

DEVICE float float_of_half(u32 bits) {
  float f;
  asm("cvt.f32.f16 %0,%1;" : "=f"(f) : "h"((u16)bits));
  return f;
}
DEVICE u32 half_of_float(float f) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0,%1;" : "=h"(bits) : "f"(f));
  return bits;
}
DEVICE u32 bfloat_of_float(float f) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0,%1;" : "=h"(bits) : "f"(f));
  return bits;
}
// Two floats, the first in the lower half.
DEVICE u32 halves_of(float first, float second) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(d) : "f"(second), "f"(first));
  return d;
}
DEVICE u32 bfloats_of(float first, float second) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(d) : "f"(second), "f"(first));
  return d;
}
DEVICE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 bits_of_float(float f) { return __float_as_uint(f); }
DEVICE float inverse_root(float f) { return rsqrtf(f); }
DEVICE float exponential(float f) { return __expf(f); }
DEVICE float larger(float a, float b) { return fmaxf(a, b); }
DEVICE float magnitude(float f) { return fabsf(f); }
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// The compiler does not compute the value anew where it could keep it.
DEVICE void keep(int &value) { asm volatile("" : "+r"(value)); }

// A copy of 16 bytes to shared memory that the thread does not wait for.
DEVICE void copy16(void *shared, const void *global) {
  u32 to = (u32)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16;" ::"r"(to), "l"(global)
               : "memory");
}
// The same, if `is_wanted`: without a branch, which would cost more.
DEVICE void copy16_if(bool is_wanted, void *shared, const void *global) {
  u32 to = (u32)__cvta_generic_to_shared(shared);
  asm volatile("{ .reg .pred p; setp.ne.u32 p,%2,0;\n"
               "@p cp.async.cg.shared.global.L2::128B [%0],[%1],16; }" ::"r"(to),
               "l"(global), "r"((u32)is_wanted)
               : "memory");
}
// The same of the first `bytes` (0 or 16) of them; zeros for the rest.
DEVICE void copy16_or_zeros(void *shared, const void *global, u32 bytes) {
  u32 to = (u32)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}
// The copies of a thread since the last call are a group.
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of the thread but the last `others`.
template <int others> DEVICE void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(others) : "memory");
}

DEVICE void wait_for_block() { __syncthreads(); }
DEVICE float value_of_lane(float f, int lane_distance) {
  return __shfl_xor_sync(0xffffffffu, f, lane_distance);
}

// What this thread wrote is seen by whoever sees what it writes after it.
DEVICE void publish() { __threadfence(); }
DEVICE u32 add_one(u32 *counter) { return atomicAdd(counter, 1u); }
DEVICE float load_fresh(const float *p) {
  float f;
  asm volatile("ld.global.cg.f32 %0,[%1];" : "=f"(f) : "l"(p));
  return f;
}

// The kernel before this one in the stream may still run until here, if the launch allowed it.
DEVICE void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void start_kernel_after() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
