// Activations as products.cu reads them, and what is computed on the way: an RMS norm, or
// silu(gate) * up.
//
// Options of the compiler: X, the type of the activations (values.h); HAS_NORM; IS_GATED: a row is
// a gate and then as many values that it multiplies; IS_BF16: the weights are bf16, else of codes.
//
// A block writes a token. For weights of codes, it divides the values by a power of two, the
// factor, so that the largest is between 2**10 and 2**11 and all that matter are float16; they are
// rounded to its 11 bits, of which bf16 has 8. For each run of 16 columns it writes the sum of
// these values, as two float16. For bf16 weights they are rounded to bf16, and the factor is 1.
//
//   values   (halves of tiles, tokens, 256 bytes): see formats.h; zeros beyond the last column
//   sums     (tiles, tokens, quarters, 2, 4 runs) float16
//   factors  (tokens) float32
#include "ptx.h"

#include "values.h"

#include "formats.h"

constexpr int THREADS = 256;

struct Preparation {
  const void *x;
  const float *norm; // of the columns
  char *values, *sums;
  float *factors;
  int columns, tokens;
  float eps;
};

// The values of 16 columns of a row, and zeros beyond the last one. Rows begin at multiples of 16
// bytes.
DEVICE void read_columns(float *values, const Preparation &task, u64 row, int column) {
  if (column + RUN <= task.columns) {
    X::read_run(values, task.x, row + column);
    return;
  }
#pragma unroll
  for (int i = 0; i < RUN; i++)
    values[i] = column + i < task.columns ? X::read(task.x, row + column + i) : 0.0f;
}

// Those of a token: of the gate times what it multiplies, or times the weights of the norm, too.
// Adds the squares of the values before the norm.
DEVICE float read_run(float *values, const Preparation &task, u64 token, int column) {
  const u64 row = token * task.columns * (IS_GATED ? 2 : 1);
  read_columns(values, task, row, column);
  float squares = 0.0f;
  if (IS_GATED) {
    float up[RUN];
    read_columns(up, task, row + task.columns, column);
#pragma unroll
    for (int i = 0; i < RUN; i++) values[i] = values[i] / (1.0f + exponential(-values[i])) * up[i];
  }
  if (HAS_NORM) {
    float norm[RUN];
    if (column + RUN <= task.columns) {
      Float32::read_run(norm, task.norm, column);
    } else {
#pragma unroll
      for (int i = 0; i < RUN; i++)
        norm[i] = column + i < task.columns ? task.norm[column + i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < RUN; i++) {
      squares = fused(values[i], values[i], squares);
      values[i] *= norm[i];
    }
  }
  return squares;
}

DEVICE float larger(float a, float b) { return a > b ? a : b; }

// The sum of all threads' `sum` and the largest `most`, in an order of sums that is always the
// same.
DEVICE void combine(float *sum, float *most) {
  float *of_warps = (float *)shared_memory();
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    *sum += value_of_lane(*sum, distance);
    *most = larger(*most, value_of_lane(*most, distance));
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    of_warps[2 * warp] = *sum;
    of_warps[2 * warp + 1] = *most;
  }
  wait_for_block();
  *sum = of_warps[0];
  *most = of_warps[1];
#pragma unroll
  for (int other = 1; other < THREADS / 32; other++) {
    *sum += of_warps[2 * other];
    *most = larger(*most, of_warps[2 * other + 1]);
  }
}

KERNEL(THREADS, 1) prepare(const Preparation task) {
  start_kernel_after(); // its blocks begin to read weights
  wait_for_kernel_before();
  const u64 token = blockIdx.x;
  const int runs = (task.columns + 255) / 256 * 16;
  float squares = 0.0f, most = 0.0f, values[RUN];
  for (int run = threadIdx.x; run < runs; run += THREADS) {
    squares += read_run(values, task, token, run * RUN);
#pragma unroll
    for (int i = 0; i < RUN; i++) most = larger(most, values[i] < 0.0f ? -values[i] : values[i]);
  }
  combine(&squares, &most);
  const float root = HAS_NORM ? inverse_root(squares / task.columns + task.eps) : 1.0f;
  // 2**exponent is the power of two that is not above the largest value.
  int exponent = (int)(bits_of_float(most * root) >> 23) - 127;
  exponent = IS_BF16 ? 10 : exponent < -100 ? -100 : exponent > 120 ? 120 : exponent;
  const float scale = float_of_bits((u32)(127 + 10 - exponent) << 23);
  if (threadIdx.x == 0) task.factors[token] = float_of_bits((u32)(127 - 10 + exponent) << 23);
  for (int run = threadIdx.x; run < runs; run += THREADS) {
    float sum = 0.0f;
    if (runs > THREADS) read_run(values, task, token, run * RUN); // else they still are there
    const int tile = run / 16, t = run / 4 % 4, first = run % 4 * 4; // unit of the tile's quarter
    const int which = IS_BF16 ? run / 8 : 2 * tile + first / 8;
    char *half = task.values + ((u64)which * task.tokens + token) * 256;
    u32 bits[RUN];
#pragma unroll
    for (int i = 0; i < RUN; i++) {
      values[i] *= root;
      bits[i] = IS_BF16 ? bfloat_of_float(values[i]) : half_of_float(values[i] * scale);
      if (!IS_BF16) sum += float_of_half(bits[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      Words2 four = {bits[4 * i] | bits[4 * i + 1] << 16, bits[4 * i + 2] | bits[4 * i + 3] << 16};
      *(Words2 *)(half + (IS_BF16 ? run % 8 * 32 + i * 8 : unit(first + i, t))) = four;
    }
    if (!IS_BF16) {
      u16 *own = (u16 *)(task.sums + ((u64)tile * task.tokens + token) * SUM_BYTES + t * 16);
      const u32 high = half_of_float(sum);
      own[first / 4] = (u16)high;
      own[4 + first / 4] = (u16)half_of_float(sum - float_of_half(high));
    }
  }
}
