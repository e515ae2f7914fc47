// How the lanes of a warp read 16 rows of weights in each format, and multiply them.
//
// Rows of a matrix are multiplied 16 at a time, as the operand A of `mma.m16n8k16`, and tokens 8 at
// a time, as B. Which columns the 16 positions of an instruction stand for is free, if A and B
// agree. So a lane (g = lane / 4, t = lane % 4) has rows g and g + 8, and of each tile of 256
// columns
//
//   formats with blocks of 256 columns   the columns 64 t to 64 t + 63: those of two or four
//                                        sub-blocks, whose scales it needs and no others;
//   formats with blocks of 32 columns    4 of each 16 columns: then all positions of an instruction
//                                        share the scale of a row, which multiplies the sums.
//
// `multiply` adds the products of a step to `total`: for tokens 8 n + 2 t and the next one, of row
// g in total[4 n] and total[4 n + 1], and of row g + 8 in the other two. The order of these sums is
// the same for any number of tokens.
//
// x are float16 of tokens (for bf16 weights, bf16 in the order of the columns), 256 bytes for each
// half of a tile: `unit` says where four columns are. `sums` has for each lane's four
// runs of 16 columns their sums, in two float16 each, the second of which is what is missing in the
// first.
//
// `decode` gives RUN_OF weights of each of a lane's two rows, adjacent columns of a tile from
// `column` on: in RUNS_OF_TILE runs, the whole tile.
//
// A code in the lowest bits of the float16 1024 makes it 1024 + code, with no conversion (Kim et
// al. 2022, https://arxiv.org/abs/2211.10017); higher bits of a word are read in place by smaller
// powers of two. The lanes' parts of a product are those of the PTX ISA, "Matrix Fragments for
// mma.m16n8k16": https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

constexpr int SUM_BYTES = 64; // of the sums of a token and tile
constexpr u32 MINUS_1024 = 0xe400e400u, MINUS_64 = 0xd400d400u, MINUS_4 = 0xc400c400u;

// Where the four columns 4 j + 0 to 3 of quarter t of a tile are within a half.
DEVICE int unit(int j, int t) { return (j & 7) * 32 + ((t ^ j ^ (j >> 2 & 1)) & 3) * 8; }

// Both halves of the word are byte `index` of bytes, as float16. `minus` is twice the float16
// -1024, less an offset of the bytes.
template <int index> DEVICE u32 twice(u32 bytes, u32 minus) {
  return add2(bytes_of(bytes, 0x64, 0x4040 + 0x0101 * index), minus);
}
// The halves are two bytes.
template <int first, int second> DEVICE u32 pair(u32 bytes, u32 minus) {
  return add2(bytes_of(bytes, 0x64, 0x4040 + 0x0100 * second + first), minus);
}

template <int NT> DEVICE void clear(float (*sums)[4]) {
#pragma unroll
  for (int n = 0; n < NT; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
}

// total += first * sums of row g, second * sums of row g + 8.
template <int NT>
DEVICE void add_scaled(float *total, float (*sums)[4], float first, float second) {
#pragma unroll
  for (int n = 0; n < NT; n++) {
    total[4 * n + 0] = fused(first, sums[n][0], total[4 * n + 0]);
    total[4 * n + 1] = fused(first, sums[n][1], total[4 * n + 1]);
    total[4 * n + 2] = fused(second, sums[n][2], total[4 * n + 2]);
    total[4 * n + 3] = fused(second, sums[n][3], total[4 * n + 3]);
  }
}

// sums += a * the sums of runs of 16 columns, where a has a pair of runs for each of two rows.
template <int NT> DEVICE void multiply_sums(float (*sums)[4], const u32 *a, const char *x) {
#pragma unroll
  for (int n = 0; n < NT; n++) {
    const Words4 runs = *(const Words4 *)(x + n * 8 * SUM_BYTES);
    multiply_f16(sums[n], a, runs.x, runs.y);
    multiply_f16(sums[n], a, runs.z, runs.w);
  }
}

// What a lane reads of the activations of a step: units, from four places that `F::place` names, so
// that all further distances are constants.
template <int NT, int TOKEN_BYTES> struct Activations {
  const char *places[4], *sums;
  DEVICE Words2 at(int n, int half, int place, int distance) const {
    return *(const Words2 *)(places[place & 3] + (half * NT + n) * 8 * TOKEN_BYTES + distance);
  }
};

// Word `index` of those that each lane has, four at a time.
DEVICE u32 word_of_lane(const char *words, int index, int lane) {
  return ((const u32 *)words)[(index / 4 * 32 + lane) * 4 + index % 4];
}
// Where the code of column e of four begins, in two halves of a word.
DEVICE int place_of_four(int e) { return e % 2 * 16 + e / 2 * 8; }

DEVICE u32 word(const Words4 *values, int index) {
  const Words4 v = values[index / 4];
  return index % 4 == 0 ? v.x : index % 4 == 1 ? v.y : index % 4 == 2 ? v.z : v.w;
}

// Blocks of 256 columns with sub-blocks of 32, that have a scale and a minimum of 6 bits each.
//
// A tile: 16 words of codes for each lane, four at a time; for Q5_K, four words of fifth bits; a
// word of the low 4 bits of scales and minima; 16 bits of their high bits; and d and -dmin of 16
// rows.
template <bool HAS_FIFTH> struct SixBitScales {
  static constexpr int STEP = 256, CODES = 2048, FIFTH = HAS_FIFTH ? 512 : 0;
  static constexpr int BYTES = CODES + FIFTH + 256;
  static constexpr int TOKEN_BYTES = 256 + 32; // 32 bytes spread tokens over the banks
  static constexpr bool HAS_SUMS = true, IS_DENSE = false;

  static DEVICE int place(int v, int t) { return (v ^ t) * 8; }

  static constexpr int RUN_OF = 8, RUNS_OF_TILE = 8;
  static DEVICE int column(int run, int t, int blocks) { return 64 * t + 8 * run; }
  static DEVICE void decode(float (*values)[RUN_OF], const char *w, int run, int lane) {
    const char *scales = w + CODES + FIFTH;
    const u32 low = ((const u32 *)scales)[lane], high = ((const u16 *)(scales + 128))[lane];
#pragma unroll
    for (int hi = 0; hi < 2; hi++) {
      const int byte = run / 4 * 2 + hi;
      const u32 scale = (low >> 8 * byte & 15) | (high >> 2 * byte & 3) << 4;
      const u32 minimum = (low >> (8 * byte + 4) & 15) | (high >> (8 + 2 * byte) & 3) << 4;
      const u32 d = ((const u32 *)(scales + 192))[lane / 4 + 8 * hi];
      const float factor = float_of_half(d) * (float)scale;
      const float base = float_of_half(d >> 16) * (float)minimum;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int j = 2 * run + i / 4, e = i % 4;
        u32 code = word_of_lane(w, j, lane) >> (place_of_four(e) + 4 * hi) & 15;
        if (HAS_FIFTH) {
          const int k = j % 4, pair = e / 2 ? (hi ? 12 + k : k) : (hi ? 8 + k : 4 + k);
          code |= (word_of_lane(w + CODES, j / 4, lane) >> (pair + e % 2 * 16) & 1) << 4;
        }
        values[hi][i] = fused(factor, (float)code, base);
      }
    }
  }

  template <int NT>
  static DEVICE void multiply(const char *w, Activations<NT, TOKEN_BYTES> x, float *total,
                              int lane) {
    const int g = lane >> 2;
    Words4 codes[4], fifth = {};
#pragma unroll
    for (int i = 0; i < 4; i++) codes[i] = ((const Words4 *)w)[i * 32 + lane];
    if (HAS_FIFTH) fifth = ((const Words4 *)(w + CODES))[lane];
    const char *scales = w + CODES + FIFTH;
    const u32 low = ((const u32 *)scales)[lane], high = ((const u16 *)(scales + 128))[lane];
    const u32 *d = (const u32 *)(scales + 192);
    const u32 first = d[g], second = d[g + 8];
    // Bytes 0 to 3: sub-block 2 t of rows g and g + 8, then sub-block 2 t + 1.
    const u32 scale = (low & 0x0f0f0f0f) | (high << 4 & 0x30) | (high << 10 & 0x3000) |
                      (high << 16 & 0x300000) | (high << 22 & 0x30000000);
    const u32 minimum = (low >> 4 & 0x0f0f0f0f) | (high >> 4 & 0x30) | (high << 2 & 0x3000) |
                        (high << 8 & 0x300000) | (high << 14 & 0x30000000);
    float sums[NT][4];
    clear<NT>(sums);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const u32 a = half ? twice<2>(scale, MINUS_1024) : twice<0>(scale, MINUS_1024);
      const u32 b = half ? twice<3>(scale, MINUS_1024) : twice<1>(scale, MINUS_1024);
      const u32 a_zero = mul2(a, MINUS_1024), b_zero = mul2(b, MINUS_64);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const u32 q = word(codes, half * 8 + j), q8 = q >> 8;
        // 1024 + code of row g, 64 + code of row g + 8
        u32 v[4] = {masked_or(q, 0x000f000f, 0x64006400), masked_or(q, 0x00f000f0, 0x54005400),
                    masked_or(q8, 0x000f000f, 0x64006400), masked_or(q8, 0x00f000f0, 0x54005400)};
        if (HAS_FIFTH) {
          const u32 f = word(&fifth, half * 2 + j / 4);
          const int k = j % 4;
          v[0] = masked_or(f >> k, 0x00100010, v[0]);
          v[1] = masked_or(f >> k, 0x01000100, v[1]);
          v[2] = masked_or(f << (4 - k), 0x00100010, v[2]);
          v[3] = masked_or(f >> (4 + k), 0x01000100, v[3]);
        }
        // Codes times scales are at most 31 * 63: exact.
        const u32 weights[4] = {fma2(v[0], a, a_zero), fma2(v[1], b, b_zero), fma2(v[2], a, a_zero),
                                fma2(v[3], b, b_zero)};
#pragma unroll
        for (int n = 0; n < NT; n++) {
          const Words2 tokens = x.at(n, half, j ^ j / 4, j * 32);
          multiply_f16(sums[n], weights, tokens.x, tokens.y);
        }
      }
    }
    const u32 minima[4] = {twice<0>(minimum, MINUS_1024), twice<1>(minimum, MINUS_1024),
                           twice<2>(minimum, MINUS_1024), twice<3>(minimum, MINUS_1024)};
    add_scaled<NT>(total, sums, float_of_half(first), float_of_half(second));
    clear<NT>(sums);
    multiply_sums<NT>(sums, minima, x.sums);
    add_scaled<NT>(total, sums, float_of_half(first >> 16), float_of_half(second >> 16));
  }
};
typedef SixBitScales<false> Q4_K;
typedef SixBitScales<true> Q5_K;

// Blocks of 256 columns with sub-blocks of 16, that have a scale of 8 bits; weights are
// d * scale * (low + 16 * high - 32).
//
// A tile: 16 words of low bits for each lane, four at a time; 8 words of the two high bits; 8
// scales, with 128 added; and d of 16 rows.
struct Q6_K {
  static constexpr int STEP = 256, LOW = 2048, HIGH = 1024, BYTES = LOW + HIGH + 256 + 32;
  static constexpr int TOKEN_BYTES = 256 + 32; // 32 bytes spread tokens over the banks
  static constexpr bool HAS_SUMS = true, IS_DENSE = false;

  static DEVICE int place(int v, int t) { return (v ^ t) * 8; }

  static constexpr int RUN_OF = 8, RUNS_OF_TILE = 8;
  static DEVICE int column(int run, int t, int blocks) { return 64 * t + 8 * run; }
  static DEVICE void decode(float (*values)[RUN_OF], const char *w, int run, int lane) {
    const u8 *scales = (const u8 *)(w + LOW + HIGH) + lane * 8;
    const u16 *d = (const u16 *)(w + LOW + HIGH + 256);
#pragma unroll
    for (int hi = 0; hi < 2; hi++) {
      const float scale = (float)((int)scales[4 * hi + run / 2] - 128);
      const float factor = float_of_half(d[lane / 4 + 8 * hi]) * scale;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int j = 2 * run + i / 4, place = place_of_four(i % 4);
        const u32 low = word_of_lane(w, j, lane) >> (place + 4 * hi) & 15;
        const u32 high = word_of_lane(w + LOW, j / 2, lane) >> (place + j % 2 * 4 + 2 * hi) & 3;
        values[hi][i] = factor * (float)((int)(low | high << 4) - 32);
      }
    }
  }

  template <int NT>
  static DEVICE void multiply(const char *w, Activations<NT, TOKEN_BYTES> x, float *total,
                              int lane) {
    const int g = lane >> 2;
    Words4 lows[4], highs[2];
#pragma unroll
    for (int i = 0; i < 4; i++) lows[i] = ((const Words4 *)w)[i * 32 + lane];
#pragma unroll
    for (int i = 0; i < 2; i++) highs[i] = ((const Words4 *)(w + LOW))[i * 32 + lane];
    const Words2 scales = ((const Words2 *)(w + LOW + HIGH))[lane]; // of row g, of row g + 8
    const u16 *d = (const u16 *)(w + LOW + HIGH + 256);
    // Sixteenths of the products of row g, as codes are read without shifts.
    const float first = float_of_half(d[g]), second = float_of_half(d[g + 8]);
    constexpr u32 MINUS_1152 = 0xe480e480u;
    float low_sums[NT][4], high_sums[NT][4];
    clear<NT>(low_sums);
    clear<NT>(high_sums);
#pragma unroll
    for (int run = 0; run < 4; run++) {
      const u32 chosen = 0x4040 + 0x0101 * run;
      const u32 a = add2(bytes_of(scales.x, 0x64, chosen), MINUS_1152);
      const u32 b = add2(bytes_of(scales.y, 0x64, chosen), MINUS_1152);
      const u32 a64 = mul2(a, MINUS_64), b64 = mul2(b, MINUS_64);
      const u32 a4 = mul2(a, MINUS_4), b4 = mul2(b, MINUS_4);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int j = run * 4 + k;
        const u32 q = word(lows, j), q8 = q >> 8;
        // 64 + code / 16 of row g, 64 + code of row g + 8
        const u32 low[4] = {fma2(masked_or(q, 0x000f000f, 0x54005400), a, a64),
                            fma2(masked_or(q, 0x00f000f0, 0x54005400), b, b64),
                            fma2(masked_or(q8, 0x000f000f, 0x54005400), a, a64),
                            fma2(masked_or(q8, 0x00f000f0, 0x54005400), b, b64)};
        const u32 h = word(highs, j / 2), h8 = h >> 8;
        u32 high[4];
        if (j % 2 == 0) { // 64 + code / 16 of row g, 64 + code / 4 of row g + 8
          high[0] = fma2(masked_or(h, 0x00030003, 0x54005400), a, a64);
          high[1] = fma2(masked_or(h, 0x000c000c, 0x54005400), b, b64);
          high[2] = fma2(masked_or(h8, 0x00030003, 0x54005400), a, a64);
          high[3] = fma2(masked_or(h8, 0x000c000c, 0x54005400), b, b64);
        } else { // 4 + the same
          high[0] = fma2(masked_or(h, 0x00300030, 0x44004400), a, a4);
          high[1] = fma2(masked_or(h, 0x00c000c0, 0x44004400), b, b4);
          high[2] = fma2(masked_or(h8, 0x00300030, 0x44004400), a, a4);
          high[3] = fma2(masked_or(h8, 0x00c000c0, 0x44004400), b, b4);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
          const Words2 tokens = x.at(n, j / 8, j ^ j / 4 % 2, j % 8 * 32);
          multiply_f16(low_sums[n], low, tokens.x, tokens.y);
          multiply_f16(high_sums[n], high, tokens.x, tokens.y);
        }
      }
    }
    add_scaled<NT>(total, low_sums, 16.0f * first, second);
    add_scaled<NT>(total, high_sums, 256.0f * first, 64.0f * second);
    const u32 runs[4] = {pair<0, 1>(scales.x, MINUS_1152), pair<0, 1>(scales.y, MINUS_1152),
                         pair<2, 3>(scales.x, MINUS_1152), pair<2, 3>(scales.y, MINUS_1152)};
    clear<NT>(low_sums);
    multiply_sums<NT>(low_sums, runs, x.sums);
    add_scaled<NT>(total, low_sums, -32.0f * first, -32.0f * second);
  }
};

// Blocks of 32 columns with a scale. A tile has the even blocks of its 256 columns and then the odd
// ones. A block: 4 words of codes for each lane (Q4_0: 2), with 128 added (Q4_0: 8); then d of rows
// g and g + 8, for each g.
template <int WORDS> struct OneScale {
  static constexpr int STEP = 256, CODES = 128 * WORDS, BLOCK = CODES + 32, BYTES = 8 * BLOCK;
  static constexpr int TOKEN_BYTES = 256 + 32;
  static constexpr bool HAS_SUMS = false, IS_DENSE = false;

  static DEVICE int place(int v, int t) { return t * 32 + (v ^ t) * 8; }

  static constexpr int RUN_OF = 4, RUNS_OF_TILE = 16;
  // Of a tile of so many blocks, of which the even ones come first.
  static DEVICE int column(int run, int t, int blocks) {
    const int even = (blocks + 1) / 2, at = run / 2;
    return (at < even ? 2 * at : 2 * (at - even) + 1) * 32 + run % 2 * 16 + t * 4;
  }
  static DEVICE void decode(float (*values)[RUN_OF], const char *w, int run, int lane) {
    const char *block = w + run / 2 * BLOCK, *codes = block + lane * (4 * WORDS);
    const u16 *d = (const u16 *)(block + CODES) + lane / 4 * 2;
#pragma unroll
    for (int hi = 0; hi < 2; hi++) {
      const float factor = float_of_half(d[hi]);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int code;
        if (WORDS == 4) {
          const u32 word = ((const u32 *)codes)[run % 2 * 2 + e / 2];
          code = (int)(word >> (16 * hi + e % 2 * 8) & 255) - 128;
        } else {
          const u32 word = ((const u32 *)codes)[run % 2];
          code = (int)(word >> (place_of_four(e) + 4 * hi) & 15) - 8;
        }
        values[hi][e] = factor * (float)code;
      }
    }
  }

  template <int NT>
  static DEVICE void multiply(const char *w, Activations<NT, TOKEN_BYTES> x, float *total,
                              int lane) {
    const char *codes = w + lane * (4 * WORDS), *scales = w + CODES + (lane >> 2) * 4;
// With 64 tokens, registers would run out.
#pragma unroll(NT == 8 ? 1 : 2)
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int block = half * 4 + i;
        const u32 d = *(const u32 *)(scales + block * BLOCK);
        u32 weights[2][4];
        if (WORDS == 4) {
          const Words4 q = *(const Words4 *)(codes + block * BLOCK);
          read_bytes(weights[0], q.x, q.y);
          read_bytes(weights[1], q.z, q.w);
        } else {
          const Words2 q = *(const Words2 *)(codes + block * BLOCK);
          read_nibbles(weights[0], q.x);
          read_nibbles(weights[1], q.y);
        }
        float sums[NT][4];
        clear<NT>(sums);
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
          for (int n = 0; n < NT; n++) {
            const Words2 tokens = x.at(n, half, i ^ m, m * 128);
            multiply_f16(sums[n], weights[m], tokens.x, tokens.y);
          }
        }
        add_scaled<NT>(total, sums, float_of_half(d), float_of_half(d >> 16));
      }
    }
  }

  static DEVICE void read_bytes(u32 *weights, u32 left, u32 right) {
    constexpr u32 MINUS_1152 = 0xe480e480u;
    weights[0] = add2(bytes_of(left, 0x64646464, 0x4140), MINUS_1152);
    weights[1] = add2(bytes_of(left, 0x64646464, 0x4342), MINUS_1152);
    weights[2] = add2(bytes_of(right, 0x64646464, 0x4140), MINUS_1152);
    weights[3] = add2(bytes_of(right, 0x64646464, 0x4342), MINUS_1152);
  }

  static DEVICE void read_nibbles(u32 *weights, u32 q) {
    constexpr u32 MINUS_1032 = 0xe408e408u, MINUS_72 = 0xd480d480u;
    const u32 q8 = q >> 8;
    weights[0] = add2(masked_or(q, 0x000f000f, 0x64006400), MINUS_1032);
    weights[1] = add2(masked_or(q, 0x00f000f0, 0x54005400), MINUS_72);
    weights[2] = add2(masked_or(q8, 0x000f000f, 0x64006400), MINUS_1032);
    weights[3] = add2(masked_or(q8, 0x00f000f0, 0x54005400), MINUS_72);
  }
};
typedef OneScale<4> Q8_0;
typedef OneScale<2> Q4_0;

// Rows one after another, as torch has them: for each of 8 steps of 16 columns, `load_matrices`
// gives a lane the columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of rows, or of tokens.
struct BF16 {
  static constexpr int STEP = 128, ROW_BYTES = 256 + 16, BYTES = 16 * ROW_BYTES;
  static constexpr int TOKEN_BYTES = 256 + 16; // 16 bytes spread rows over the banks
  static constexpr bool HAS_SUMS = false, IS_DENSE = true;

  // One place: that of the 16 bytes that the lane names for `load_matrices`.
  static DEVICE int place(int v, int lane) { return lane % 8 * TOKEN_BYTES + lane / 8 * 16; }

  template <int NT>
  static DEVICE void multiply(const char *w, Activations<NT, TOKEN_BYTES> x, float *total,
                              int lane) {
    float(*sums)[4] = (float(*)[4])total;
    const char *rows = w + lane % 16 * ROW_BYTES + lane / 16 * 16;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
      u32 left[4], right[4];
      load_matrices(left, rows + pair * 64);
      load_matrices(right, rows + pair * 64 + 32);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        u32 tokens[4];
        load_matrices(tokens, x.places[0] + n * 8 * TOKEN_BYTES + pair * 64);
        multiply_bf16(sums[n], left, tokens[0], tokens[1]);
        multiply_bf16(sums[n], right, tokens[2], tokens[3]);
      }
    }
  }
};
