// Activations in global memory: float32, float16 or bf16; and what caches have, too, e4m3.
#pragma once

constexpr int RUN = 16; // columns that a thread reads together

struct Float32 {
  static constexpr int BYTES = 4;
  static DEVICE float read(const void *p, u64 i) { return ((const float *)p)[i]; }
  static DEVICE void write(void *p, u64 i, float f) { ((float *)p)[i] = f; }
  // N values, 4 or 8, to a multiple of as many.
  template <int N> static DEVICE void write_some(void *p, u64 i, const float *f) {
#pragma unroll
    for (int n = 0; n < N; n += 4)
      *(Words4 *)((float *)p + i + n) = {bits_of_float(f[n]), bits_of_float(f[n + 1]),
                                         bits_of_float(f[n + 2]), bits_of_float(f[n + 3])};
  }
  // A run from value i on, which begins at a multiple of 16 bytes.
  static DEVICE void read_run(float *values, const void *p, u64 i) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const Words4 four = ((const Words4 *)((const float *)p + i))[n];
      values[4 * n + 0] = float_of_bits(four.x);
      values[4 * n + 1] = float_of_bits(four.y);
      values[4 * n + 2] = float_of_bits(four.z);
      values[4 * n + 3] = float_of_bits(four.w);
    }
  }
};

// Types of 16 bits, of which `Bits` makes floats and the other way round.
template <class Bits> struct Sixteen {
  static constexpr int BYTES = 2;
  static DEVICE float read(const void *p, u64 i) { return Bits::to_float(((const u16 *)p)[i]); }
  static DEVICE void write(void *p, u64 i, float f) { ((u16 *)p)[i] = (u16)Bits::of_float(f); }
  template <int N> static DEVICE void write_some(void *p, u64 i, const float *f) {
    u32 words[N / 2];
#pragma unroll
    for (int n = 0; n < N / 2; n++)
      words[n] = Bits::of_float(f[2 * n]) | Bits::of_float(f[2 * n + 1]) << 16;
    if (N == 8)
      *(Words4 *)((u16 *)p + i) = {words[0], words[1], words[N / 2 - 2], words[N / 2 - 1]};
    else
      *(Words2 *)((u16 *)p + i) = {words[0], words[1]};
  }
  static DEVICE void read_run(float *values, const void *p, u64 i) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const Words4 eight = ((const Words4 *)((const u16 *)p + i))[n];
      const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int k = 0; k < 4; k++) {
        values[8 * n + 2 * k] = Bits::to_float(words[k] & 0xffff);
        values[8 * n + 2 * k + 1] = Bits::to_float(words[k] >> 16);
      }
    }
  }
};

struct HalfBits {
  static DEVICE float to_float(u32 bits) { return float_of_half(bits); }
  static DEVICE u32 of_float(float f) { return half_of_float(f); }
};
struct BFloatBits {
  static DEVICE float to_float(u32 bits) { return float_of_bits(bits << 16); }
  static DEVICE u32 of_float(float f) { return bfloat_of_float(f); }
};
typedef Sixteen<HalfBits> Float16;
typedef Sixteen<BFloatBits> BFloat16;

// A sign, 4 bits of exponent and 3 of mantissa, without infinities (e4m3fn); the largest is 448.
struct Float8 {
  static DEVICE void write(void *p, u64 i, float f) { ((u8 *)p)[i] = (u8)of_float(f); }
  static DEVICE u32 of_float(float f) {
    const u32 bits = bits_of_float(f), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return sign | 0x7f; // no number
    if (rest < 0x3c800000) { // below 2**-6: a multiple of 2**-9, rounded by a sum without room
      const float multiple = float_of_bits(rest) * 512.0f + 8388608.0f;
      return sign | (bits_of_float(multiple) - 0x4b000000);
    }
    const u32 rounded = rest + 0x7ffff + (rest >> 20 & 1); // 20 bits of the mantissa are lost
    const u32 code = (rounded >> 20) - (120 << 3);
    return sign | (code > 0x7e ? 0x7e : code);
  }
};
