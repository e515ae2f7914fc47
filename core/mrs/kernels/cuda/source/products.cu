// Products of up to three matrices with the same tokens: out = norm(x) @ weights.T + bias + added, or
// activation(norm(x) @ gate.T) * (norm(x) @ up.T).
//
// Options of the compiler: FIRST and SECOND, the formats of the matrices (formats.h); TILES, the
// tiles of 8 tokens that a block computes; IS_WHOLE, whether the columns are whole tiles of 256; X
// and OUT, the types of x, and of `out` and `added` (values.h); HAS_NORM, an RMS norm; ACTIVATION
// (activations.h), if the matrices are a gate and what it multiplies; SHARED_BYTES, the shared
// memory of a block, of which the kernel uses as much as it can.
//
// A block of 8 warps computes 128 rows, 16 in each warp, and one of `parts` parts of the columns.
// It reads a tile of its weights and of x after the other through a ring of copies in shared
// memory, of which those of weights begin before the kernel that makes x is done. The blocks of
// other parts leave their sums in `partial`, and the last one adds them all up, in the order of the
// columns. So the order of all sums depends on the shape of the matrices alone, not on the number
// of tokens or on who is fast.
//
// `convert` makes the operand B of a tile of x. For weights of codes, it divides the values of a
// token and tile by a power of two, the factor, so that the largest is between 2**10 and 2**11 and
// all that matter are float16; they are rounded to its 11 bits, of which bf16 has 8. For each run
// of 16 columns there is the sum of these values, as two float16. For bf16 weights values are
// rounded to bf16, and there is no factor. The root of a norm multiplies the sums of a token.
#include "ptx.h"

#include "values.h"

#include "activations.h"

#include "formats.h"

constexpr int WARPS = 8, THREADS = 32 * WARPS, GROUP_ROWS = 16 * WARPS;
constexpr int SUMS_STRIDE = GROUP_ROWS + 4; // spreads over the banks of shared memory
constexpr int MOST_STAGES = 6;
constexpr bool IS_GATED = ACTIVATION != NO_ACTIVATION;

struct MatrixOf {
  const char *data;
  int rows, is_second; // `is_second`: of the format SECOND
};

struct Products {
  MatrixOf matrices[3];
  const void *x;     // (tokens, columns)
  const float *norm; // of the columns
  const float *bias; // of all rows, or null
  const void *added; // as `out`, or null
  void *out;         // (tokens, all rows)
  float *partial;    // (parts, groups, tokens, GROUP_ROWS), with a gate twice: if there are parts
  float *squares;    // (parts, groups, tokens), with a norm
  u32 *arrived;      // a counter of 0 for each group and pass; left as it was
  int columns, tokens, parts, all_rows;
  float eps;
};

template <class F, int NT> struct Block {
  static constexpr int HALVES = F::STEP / 128, TOKENS = 8 * NT;
  static constexpr int TOKEN_BYTES = F::TOKEN_BYTES, ROW_BYTES = BF16::ROW_BYTES;
  // What `convert` makes comes first, and then the stages: weights, and x as it is.
  static constexpr int SUMS_AT = HALVES * TOKENS * TOKEN_BYTES;
  static constexpr int FACTORS_AT = SUMS_AT + (F::HAS_SUMS ? TOKENS * SUM_BYTES : 0);
  static constexpr int STAGES_AT = FACTORS_AT + TOKENS * 4;
  static constexpr int WEIGHT_BYTES = WARPS * F::BYTES, X_ROW_BYTES = F::STEP * X::BYTES;
  static constexpr int STAGE_BYTES = WEIGHT_BYTES + TOKENS * X_ROW_BYTES;
  static constexpr int FITTING = (SHARED_BYTES - STAGES_AT) / STAGE_BYTES;
  static constexpr int STAGES = FITTING < MOST_STAGES ? FITTING : MOST_STAGES;
  // Of x, a thread copies 16 bytes at a time, and converts runs of 16 columns.
  static constexpr int UNITS = X_ROW_BYTES / 16, TOKENS_AT_ONCE = THREADS / UNITS;
  static constexpr int RUNS = F::STEP / RUN;
  static constexpr int OWN_RUNS = TOKENS * RUNS < THREADS ? 1 : TOKENS * RUNS / THREADS;
  static_assert(STAGES >= 2, "SHARED_BYTES is too small");
  static_assert(TOKENS * (SUMS_STRIDE + 1) * 4 + 16 <= SHARED_BYTES, "SHARED_BYTES is too small");

  const Products &task;
  const char *weights, *second;  // what this lane copies next, and in the second round
  const char *x;                 // what this thread copies of the step
  u64 token_stride;              // bytes between the tokens that it copies
  int first_step, steps, rounds; // of the part; a gate takes a round of its own
  int first_token, count;        // tokens of this block
  int group, thread, lane;
  int weights_at, x_at;          // where in a stage this thread's copies go
  int rows_at, places[4], runs_at; // and where it reads weights, activations and their sums
  float squares[OWN_RUNS];

  // Start copies of the weights of a step of all rounds to a stage: the steps in their order.
  DEVICE void copy_weights(char *stage, int step) {
    if (IS_GATED && step == steps) weights = second;
    const int column = (first_step + (IS_GATED && step >= steps ? step - steps : step)) * F::STEP;
    const int left = IS_WHOLE ? F::STEP : task.columns - column;
    if (F::IS_DENSE)
      copy_rows(stage + weights_at, left);
    else if (left >= F::STEP)
      copy_tile(stage + weights_at);
    else
      copy_blocks(stage + weights_at, left / 32);
  }

  DEVICE void copy_tile(char *to) {
    constexpr int REST = F::BYTES / 512 * 512;
#pragma unroll
    for (int at = 0; at < REST; at += 512) copy16(to + at, weights + at);
    if (F::BYTES > REST) copy16_if(lane * 16 < F::BYTES - REST, to + REST, weights + REST);
    weights += F::BYTES;
  }

  // A last tile of fewer blocks: first the even ones; and zeros for those that are not there.
  DEVICE void copy_blocks(char *to, int blocks) {
    constexpr int HALF = F::BYTES / 2;
    const int even = (blocks + 1) / 2 * (F::BYTES / 8), odd = blocks / 2 * (F::BYTES / 8);
    for (int at = lane * 16; at < F::BYTES; at += 512) {
      const bool is_there = at < HALF ? at < even : at - HALF < odd;
      const char *from = weights - lane * 16 + at - (at < HALF ? 0 : HALF - even);
      copy16_or_zeros(to - lane * 16 + at, is_there ? from : task.x, is_there ? 16 : 0);
    }
  }

  // 128 columns of 16 rows, 32 columns of 8 rows at a time; zeros beyond the last column.
  DEVICE void copy_rows(char *to, int left) {
    const char *others = weights + (u64)task.columns * 16;
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
      if (IS_WHOLE) {
        copy16(to + quarter * 64, weights + quarter * 64);
        copy16(to + quarter * 64 + 8 * ROW_BYTES, others + quarter * 64);
      } else {
        const bool is_there = quarter * 32 + lane % 4 * 8 < left;
        const void *first = is_there ? weights + quarter * 64 : task.x;
        const void *other = is_there ? others + quarter * 64 : task.x;
        copy16_or_zeros(to + quarter * 64, first, is_there ? 16 : 0);
        copy16_or_zeros(to + quarter * 64 + 8 * ROW_BYTES, other, is_there ? 16 : 0);
      }
    }
    weights += 256;
  }

  // Start copies of a step's x; zeros beyond the last column, and nothing beyond the last token.
  DEVICE void copy_x(char *stage, int step) {
    const int own = IS_GATED && step >= steps ? step - steps : step;
    const char *from = x + (u64)own * X_ROW_BYTES;
    char *to = stage + x_at;
    const int column = (first_step + own) * F::STEP + thread % UNITS * (16 / X::BYTES);
    const bool is_there = IS_WHOLE || column < task.columns;
#pragma unroll
    for (int i = 0; i < TOKENS; i += TOKENS_AT_ONCE) {
      const bool is_wanted = i + thread / UNITS < count;
      if (IS_WHOLE)
        copy16_if(is_wanted, to + i * X_ROW_BYTES, from);
      else if (is_wanted)
        copy16_or_zeros(to + i * X_ROW_BYTES, is_there ? from : task.x, is_there ? 16 : 0);
      from += token_stride;
    }
  }

  // Make the operand of a stage's x. Whole warps have work or none.
  DEVICE void convert(const char *stage, int step) {
    char *const made = shared_memory();
    const bool is_second = IS_GATED && step >= steps;
#pragma unroll
    for (int k = 0; k < OWN_RUNS; k++) {
      const int index = thread + k * THREADS, token = index / RUNS, run = index % RUNS;
      if (TOKENS * RUNS < THREADS && index >= TOKENS * RUNS) break;
      float values[RUN];
      X::read_run(values, stage + WEIGHT_BYTES, token * F::STEP + run * RUN);
      if (HAS_NORM) {
        const int column = (first_step + (is_second ? step - steps : step)) * F::STEP + run * RUN;
        float norm[RUN];
        if (IS_WHOLE || column + RUN <= task.columns) {
          Float32::read_run(norm, task.norm, column);
        } else {
#pragma unroll
          for (int i = 0; i < RUN; i++)
            norm[i] = column + i < task.columns ? task.norm[column + i] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < RUN; i++) {
          if (!is_second) squares[k] = fused(values[i], values[i], squares[k]);
          values[i] *= norm[i];
        }
      }
      float scale = 1.0f;
      if (!F::IS_DENSE) {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < RUN; i++) most = larger(most, magnitude(values[i]));
#pragma unroll
        for (int distance = 1; distance < RUNS; distance *= 2)
          most = larger(most, value_of_lane(most, distance));
        // 2**exponent is the power of two that is not above the largest value.
        int exponent = (int)(bits_of_float(most) >> 23) - 127;
        exponent = exponent < -100 ? -100 : exponent > 120 ? 120 : exponent;
        scale = float_of_bits((u32)(127 + 10 - exponent) << 23);
        if (run == 0)
          ((float *)(made + FACTORS_AT))[token] = float_of_bits((u32)(127 - 10 + exponent) << 23);
      }
      u32 pairs[RUN / 2];
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < RUN; i += 2) {
        const float first = values[i] * scale, second = values[i + 1] * scale;
        pairs[i / 2] = F::IS_DENSE ? bfloats_of(first, second) : halves_of(first, second);
        if (F::HAS_SUMS) sum += first + second;
      }
      // Four columns at a time: of quarter t of a tile the units `first` and on.
      const int t = run / 4, first = run % 4 * 4;
      char *own = made + token * TOKEN_BYTES;
      if (!F::IS_DENSE) own += first / 8 * (TOKENS * TOKEN_BYTES);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const Words2 four = {pairs[2 * i], pairs[2 * i + 1]};
        *(Words2 *)(own + (F::IS_DENSE ? run * 32 + i * 8 : unit(first + i, t))) = four;
      }
      if (F::HAS_SUMS) {
        u16 *of_run = (u16 *)(made + SUMS_AT + token * SUM_BYTES + t * 16);
        const u32 high = half_of_float(sum);
        of_run[first / 4] = (u16)high;
        of_run[4 + first / 4] = (u16)half_of_float(sum - float_of_half(high));
      }
    }
  }

  // Multiply all steps. Lanes read more tokens than there are: each token is a column of the result
  // of its own, and those are not written.
  DEVICE void multiply(float *total) {
    char *const made = shared_memory(), *const memory = made + STAGES_AT;
    char *const last = memory + (STAGES - 1) * STAGE_BYTES;
    const int end = steps * rounds;
    for (int s = 0; s < STAGES - 1; s++)
      if (s < end) copy_weights(memory + s * STAGE_BYTES, s);
    wait_for_kernel_before();
    for (int s = 0; s < STAGES - 1; s++) {
      if (s < end) copy_x(memory + s * STAGE_BYTES, s);
      end_group();
    }
    const Activations<NT, TOKEN_BYTES> own = {
        {made + places[0], made + places[1], made + places[2], made + places[3]}, made + runs_at};
    const float *factors = (const float *)(made + FACTORS_AT) + lane % 4 * 2;
    char *stage = memory, *free = last;
#pragma unroll 1
    for (int step = 0; step < end; step++) {
      wait_for_groups<STAGES - 2>();
      wait_for_block(); // all copies of this step are there, and all warps are done with `free`
      if (step + STAGES - 1 < end) {
        copy_weights(free, step + STAGES - 1);
        copy_x(free, step + STAGES - 1);
      }
      end_group();
      convert(stage, step);
      wait_for_block();
      if (IS_GATED && step == steps) keep_gate(total);
      if (F::IS_DENSE) {
        F::template multiply<NT>(stage + rows_at, own, total, lane);
      } else {
        float of_tile[4 * NT] = {};
        F::template multiply<NT>(stage + rows_at, own, of_tile, lane);
#pragma unroll
        for (int n = 0; n < 4 * NT; n++)
          total[n] = fused(of_tile[n], factors[n / 4 * 8 + n % 2], total[n]);
      }
      free = stage;
      stage = stage == last ? memory : stage + STAGE_BYTES;
    }
    start_kernel_after();
    wait_for_groups<0>();
    wait_for_block();
  }

  // The partial sums of a round: (tokens, GROUP_ROWS) of a part and group.
  DEVICE float *partial_of(int part, int round) const {
    const u64 index = ((u64)part * gridDim.x + blockIdx.x) * (IS_GATED ? 2 : 1) + round;
    return task.partial + (index * task.tokens + first_token) * GROUP_ROWS;
  }

  // Put the sums of the gate aside, and begin anew.
  DEVICE void keep_gate(float *total) const {
    float *own = partial_of(blockIdx.y, 0);
    const int g = lane / 4, t = lane % 4, warp = thread / 32;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++) {
      const int token = i / 4 * 8 + 2 * t + i % 2, row = warp * 16 + i / 2 % 2 * 8 + g;
      if (token < count) own[token * GROUP_ROWS + row] = total[i];
      total[i] = 0.0f;
    }
  }

  // The squares of each token of this part, or their sum over all parts, and then the roots.
  DEVICE void write_squares(float *roots) {
#pragma unroll
    for (int k = 0; k < OWN_RUNS; k++) {
      const int index = thread + k * THREADS;
      if (TOKENS * RUNS < THREADS && index >= TOKENS * RUNS) break;
      float sum = squares[k];
#pragma unroll
      for (int distance = 1; distance < RUNS; distance *= 2) sum += value_of_lane(sum, distance);
      if (index % RUNS == 0) roots[index / RUNS] = sum;
    }
  }

  // Sums of all parts, in their order.
  static DEVICE float sum_of_parts(const float *first, u64 stride, int parts) {
    float sum = load_fresh(first);
    for (int part = 1; part < parts; part++) sum += load_fresh(first + part * stride);
    return sum;
  }

  // The sums of all parts go to `out`.
  DEVICE void finish(const float *total, int rows, int out_row) {
    float *sums = (float *)shared_memory(), *roots = sums + TOKENS * SUMS_STRIDE;
    const int g = lane / 4, t = lane % 4, warp = thread / 32, first_row = group * GROUP_ROWS;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++) {
      const int token = i / 4 * 8 + 2 * t + i % 2, row = warp * 16 + i / 2 % 2 * 8 + g;
      sums[token * SUMS_STRIDE + row] = total[i];
    }
    if (HAS_NORM) write_squares(roots);
    wait_for_block();
    const u64 stride = partial_of(1, 0) - partial_of(0, 0);
    const u64 of_token = (u64)blockIdx.x * task.tokens + first_token;
    if (task.parts > 1) {
      float *own = partial_of(blockIdx.y, IS_GATED);
      for (int i = thread; i < count * GROUP_ROWS; i += THREADS)
        own[i] = sums[i / GROUP_ROWS * SUMS_STRIDE + i % GROUP_ROWS];
      if (HAS_NORM && thread < count)
        task.squares[(u64)blockIdx.y * gridDim.x * task.tokens + of_token + thread] = roots[thread];
      publish();
      wait_for_block();
      u32 *is_last = (u32 *)(roots + TOKENS);
      if (thread == 0) {
        u32 *arrived = task.arrived + blockIdx.z * gridDim.x + blockIdx.x;
        *is_last = add_one(arrived) == (u32)task.parts - 1;
        if (*is_last) *arrived = 0;
      }
      wait_for_block();
      if (!*is_last) return;
      publish();
    }
    if (HAS_NORM) {
      if (thread < count) {
        float sum = roots[thread];
        if (task.parts > 1)
          sum = sum_of_parts(task.squares + of_token + thread, (u64)gridDim.x * task.tokens,
                             task.parts);
        roots[thread] = inverse_root(sum / task.columns + task.eps);
      }
      wait_for_block();
    }
    for (int i = thread; i < count * GROUP_ROWS; i += THREADS) {
      const int token = i / GROUP_ROWS, row = i % GROUP_ROWS, column = out_row + first_row + row;
      if (first_row + row >= rows) continue;
      float sum = task.parts > 1 ? sum_of_parts(partial_of(0, IS_GATED) + i, stride, task.parts)
                                 : sums[token * SUMS_STRIDE + row];
      const float root = HAS_NORM ? roots[token] : 1.0f;
      sum *= root;
      if (IS_GATED) {
        float gate = sum_of_parts(partial_of(0, 0) + i, stride, task.parts) * root;
        if (task.bias) {
          gate += task.bias[column];
          sum += task.bias[rows + column];
        }
        sum *= activated(gate);
      } else if (task.bias) {
        sum += task.bias[column];
      }
      const u64 at = (u64)(first_token + token) * task.all_rows + column;
      if (task.added) sum += OUT::read(task.added, at);
      OUT::write(task.out, at, sum);
    }
  }
};

// What a lane copies of 16 rows of a matrix first.
template <class F> DEVICE const char *first_weights(const char *data, u64 row, int columns,
                                                    int first_tile, int lane) {
  if (F::IS_DENSE) return data + (row + lane / 4) * columns * 2 + first_tile * 512 + lane % 4 * 16;
  return data + row / 16 * (u64)(columns / 32) * (F::BYTES / 8) + (u64)first_tile * F::BYTES +
         lane * 16;
}

template <class F, int NT>
DEVICE void products_of(const Products &task, const MatrixOf &matrix, int group, int out_row) {
  typedef Block<F, NT> Own;
  constexpr int STEPS = 256 / F::STEP;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int first_token = blockIdx.z * 8 * NT, left = task.tokens - first_token;
  const int columns = task.columns, tiles = (columns + 255) / 256, part = blockIdx.y;
  const int first_tile = tiles * part / task.parts, end_tile = tiles * (part + 1) / task.parts;
  // A warp beyond the last rows repeats these, and does not write them.
  const int own_row = group * GROUP_ROWS + warp * 16;
  const u64 row = own_row < matrix.rows ? own_row : matrix.rows - 16;
  const int own_bytes = F::IS_DENSE ? lane / 4 * BF16::ROW_BYTES + lane % 4 * 16 : lane * 16;
  const u64 token_bytes = (u64)columns * X::BYTES;
  Own block = {task,
               first_weights<F>(matrix.data, row, columns, first_tile, lane),
               IS_GATED ? first_weights<F>(task.matrices[1].data, row, columns, first_tile, lane)
                        : nullptr,
               (const char *)task.x + (first_token + thread / Own::UNITS) * token_bytes +
                   (u64)first_tile * 256 * X::BYTES + thread % Own::UNITS * 16,
               Own::TOKENS_AT_ONCE * token_bytes,
               first_tile * STEPS,
               (end_tile - first_tile) * STEPS,
               IS_GATED ? 2 : 1,
               first_token,
               left < 8 * NT ? left : 8 * NT,
               group,
               thread,
               lane,
               warp * F::BYTES + own_bytes,
               Own::WEIGHT_BYTES + thread / Own::UNITS * Own::X_ROW_BYTES +
                   thread % Own::UNITS * 16,
               warp * F::BYTES,
               {},
               Own::SUMS_AT + lane * 16,
               {}};
  keep(block.weights_at);
  keep(block.x_at);
  keep(block.rows_at);
  keep(block.runs_at);
#pragma unroll
  for (int v = 0; v < 4; v++) {
    block.places[v] = F::IS_DENSE ? F::place(v, lane)
                                  : lane / 4 * F::TOKEN_BYTES + F::place(v, lane % 4);
    keep(block.places[v]);
  }
  float total[4 * NT] = {};
  block.multiply(total);
  block.finish(total, matrix.rows, out_row);
}

template <class A, class B> struct IsSame {
  static constexpr bool value = false;
};
template <class A> struct IsSame<A, A> {
  static constexpr bool value = true;
};

// A grid of (groups of all matrices, parts, passes over tokens).
KERNEL(THREADS, TILES <= 2 ? 2 : 1) products(const Products task) {
  int group = blockIdx.x, index = 0, out_row = 0;
  MatrixOf matrix = task.matrices[0];
#pragma unroll
  for (int next = 1; next < 3 && !IS_GATED; next++) {
    const int groups = (matrix.rows + GROUP_ROWS - 1) / GROUP_ROWS;
    if (index == next - 1 && group >= groups) {
      group -= groups;
      out_row += matrix.rows;
      matrix = task.matrices[next];
      index = next;
    }
  }
  if (IsSame<FIRST, SECOND>::value || !matrix.is_second)
    products_of<FIRST, TILES>(task, matrix, group, out_row);
  else
    products_of<SECOND, TILES>(task, matrix, group, out_row);
}
