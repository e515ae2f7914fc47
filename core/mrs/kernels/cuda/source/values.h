// Activations in global memory: float32, float16 or bf16.
#pragma once

struct Float32 {
  typedef float Stored;
  static DEVICE float read(const void *p, u64 i) { return ((const float *)p)[i]; }
  static DEVICE void write(void *p, u64 i, float f) { ((float *)p)[i] = f; }
};
struct Float16 {
  static DEVICE float read(const void *p, u64 i) { return float_of_half(((const u16 *)p)[i]); }
  static DEVICE void write(void *p, u64 i, float f) { ((u16 *)p)[i] = (u16)half_of_float(f); }
};
struct BFloat16 {
  static DEVICE float read(const void *p, u64 i) {
    return float_of_bits((u32)((const u16 *)p)[i] << 16);
  }
  static DEVICE void write(void *p, u64 i, float f) { ((u16 *)p)[i] = (u16)bfloat_of_float(f); }
};
