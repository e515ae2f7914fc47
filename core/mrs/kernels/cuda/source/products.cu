// Products of up to three matrices with the same tokens: out = x @ weights.T + bias + added.
//
// Options of the compiler: FIRST and SECOND, the formats of the matrices (formats.h); TILES, the
// tiles of 8 tokens that a block computes; IS_WHOLE, whether the columns are whole tiles of 256;
// OUT, the type of `out` and `added` (values.h); SHARED_BYTES, the shared memory of a block, of
// which the kernel uses as much as it can.
//
// A block of 8 warps computes 128 rows, 16 in each warp, and one of `parts` parts of the columns.
// It reads a tile of its weights and of x after the other through a ring of copies in shared
// memory, which begin before the kernel that makes x is done. The blocks of other parts leave their
// sums in `partial`, and the last one adds them all up, in the order of the columns. So the order
// of all sums depends on the shape of the matrices alone, not on the number of tokens or on who is
// fast.
#include "ptx.h"

#include "values.h"

#include "formats.h"

constexpr int WARPS = 8, THREADS = 32 * WARPS, GROUP_ROWS = 16 * WARPS;
constexpr int SUMS_STRIDE = GROUP_ROWS + 4; // spreads over the banks of shared memory
constexpr int MOST_STAGES = 6;

struct MatrixOf {
  const char *data;
  int rows, is_second; // `is_second`: of the format SECOND
};

struct Products {
  MatrixOf matrices[3];
  const char *x, *sums; // as prepare.cu writes them
  const float *factors; // of the tokens
  const float *bias;    // of all rows, or null
  const void *added;    // as `out`, or null
  void *out;            // (tokens, all rows)
  float *partial;       // (parts, groups, tokens, GROUP_ROWS), if there is more than one part
  u32 *arrived;         // a counter of 0 for each group and pass; left as it was
  int columns, tokens, parts, all_rows;
};

template <class F, int NT> struct Block {
  static constexpr int HALVES = F::STEP / 128, TOKENS = 8 * NT;
  static constexpr int TOKEN_BYTES = F::TOKEN_BYTES, ROW_BYTES = BF16::ROW_BYTES;
  static constexpr int WEIGHT_BYTES = WARPS * F::BYTES, X_BYTES = HALVES * TOKENS * TOKEN_BYTES;
  static constexpr int STAGE_BYTES =
      WEIGHT_BYTES + X_BYTES + (F::HAS_SUMS ? TOKENS * SUM_BYTES : 0);
  static constexpr int FITTING = SHARED_BYTES / STAGE_BYTES;
  static constexpr int STAGES = FITTING < MOST_STAGES ? FITTING : MOST_STAGES;
  static_assert(STAGES >= 2, "SHARED_BYTES is too small");
  static_assert(TOKENS * SUMS_STRIDE * 4 + 16 <= SHARED_BYTES, "SHARED_BYTES is too small");

  const Products &task;
  const char *weights;    // what this lane copies next
  const char *x, *sums;   // what this thread copies next
  int first_token, count; // tokens of this block
  int thread, lane;
  int weights_at, x_at, sums_at; // where in a stage this thread's copies go
  int rows_at, places[4], runs_at; // and where it reads weights, activations and their sums

  // Start copies of a step's weights to a stage: the steps in their order.
  DEVICE void copy_weights(char *stage, int step) {
    const int left = IS_WHOLE ? F::STEP : task.columns - step * F::STEP;
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
        const char *first = is_there ? weights + quarter * 64 : task.x;
        const char *second = is_there ? others + quarter * 64 : task.x;
        copy16_or_zeros(to + quarter * 64, first, is_there ? 16 : 0);
        copy16_or_zeros(to + quarter * 64 + 8 * ROW_BYTES, second, is_there ? 16 : 0);
      }
    }
    weights += 256;
  }

  // Start copies of a step's activations; all threads of the block share them.
  DEVICE void copy_x(char *stage) {
    char *to = stage + x_at;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
#pragma unroll
      for (int i = 0; i < TOKENS; i += THREADS / 16)
        copy16_if(i + thread / 16 < count, to + (half * TOKENS + i) * TOKEN_BYTES, x + i * 256);
      x += (u64)task.tokens * 256;
    }
    if (F::HAS_SUMS) {
      copy16_if(thread < count * 4, stage + sums_at, sums);
      sums += (u64)task.tokens * SUM_BYTES;
    }
  }

  // Multiply the steps from `first` to `end` - 1. Lanes read more tokens than there are: each token
  // is a column of the result of its own, and those are not written.
  DEVICE void multiply(float *total, int first, int end) {
    char *const memory = shared_memory(), *const last = memory + (STAGES - 1) * STAGE_BYTES;
    for (int s = 0; s < STAGES - 1; s++)
      if (first + s < end) copy_weights(memory + s * STAGE_BYTES, first + s);
    wait_for_kernel_before();
    for (int s = 0; s < STAGES - 1; s++) {
      if (first + s < end) copy_x(memory + s * STAGE_BYTES);
      end_group();
    }
    char *stage = memory, *free = last;
#pragma unroll 1
    for (int step = first; step < end; step++) {
      wait_for_groups<STAGES - 2>();
      wait_for_block(); // all copies of this step are there, and all warps are done with `free`
      if (step + STAGES - 1 < end) {
        copy_weights(free, step + STAGES - 1);
        copy_x(free);
      }
      end_group();
      const Activations<NT, TOKEN_BYTES> own = {
          {stage + places[0], stage + places[1], stage + places[2], stage + places[3]},
          stage + runs_at};
      F::template multiply<NT>(stage + rows_at, own, total, lane);
      free = stage;
      stage = stage == last ? memory : stage + STAGE_BYTES;
    }
    start_kernel_after();
    wait_for_groups<0>();
    wait_for_block();
  }

  // The sums of all parts go to `out`.
  DEVICE void finish(const float *total, int rows, int first_row, int out_row) const {
    float *sums = (float *)shared_memory();
    const int g = lane / 4, t = lane % 4, warp = thread / 32;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++) {
      const int token = i / 4 * 8 + 2 * t + i % 2, row = warp * 16 + i / 2 % 2 * 8 + g;
      sums[token * SUMS_STRIDE + row] = total[i];
    }
    wait_for_block();
    const u64 stride = (u64)gridDim.x * task.tokens * GROUP_ROWS;
    float *partial = task.partial + ((u64)blockIdx.x * task.tokens + first_token) * GROUP_ROWS;
    if (task.parts > 1) {
      float *own = partial + blockIdx.y * stride;
      for (int i = threadIdx.x; i < count * GROUP_ROWS; i += THREADS)
        own[i] = sums[i / GROUP_ROWS * SUMS_STRIDE + i % GROUP_ROWS];
      publish();
      wait_for_block();
      u32 *is_last = (u32 *)(sums + TOKENS * SUMS_STRIDE);
      if (threadIdx.x == 0) {
        u32 *arrived = task.arrived + blockIdx.z * gridDim.x + blockIdx.x;
        *is_last = add_one(arrived) == (u32)task.parts - 1;
        if (*is_last) *arrived = 0;
      }
      wait_for_block();
      if (!*is_last) return;
      publish();
    }
    for (int i = threadIdx.x; i < count * GROUP_ROWS; i += THREADS) {
      const int token = i / GROUP_ROWS, row = i % GROUP_ROWS;
      if (first_row + row >= rows) continue;
      float sum = sums[token * SUMS_STRIDE + row];
      if (task.parts > 1) {
        sum = load_fresh(partial + i);
        for (int part = 1; part < task.parts; part++)
          sum += load_fresh(partial + part * stride + i);
      }
      sum *= task.factors[first_token + token];
      const int column = out_row + first_row + row;
      const u64 at = (u64)(first_token + token) * task.all_rows + column;
      if (task.bias) sum += task.bias[column];
      if (task.added) sum += OUT::read(task.added, at);
      OUT::write(task.out, at, sum);
    }
  }
};

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
  const char *weights = matrix.data;
  if (F::IS_DENSE)
    weights += (row + lane / 4) * columns * 2 + first_tile * 512 + lane % 4 * 16;
  else
    weights += row / 16 * (u64)(columns / 32) * (F::BYTES / 8) + (u64)first_tile * F::BYTES +
               lane * 16;
  const u64 before = (u64)first_tile * task.tokens;
  const int own_bytes = F::IS_DENSE ? lane / 4 * BF16::ROW_BYTES + lane % 4 * 16 : lane * 16;
  Own block = {task,
               weights,
               task.x + (before * 2 + first_token + thread / 16) * 256 + thread % 16 * 16,
               task.sums + (before + first_token) * SUM_BYTES + thread * 16,
               first_token,
               left < 8 * NT ? left : 8 * NT,
               thread,
               lane,
               warp * F::BYTES + own_bytes,
               Own::WEIGHT_BYTES + thread / 16 * F::TOKEN_BYTES + thread % 16 * 16,
               Own::WEIGHT_BYTES + Own::X_BYTES + thread * 16,
               warp * F::BYTES,
               {},
               Own::WEIGHT_BYTES + Own::X_BYTES + lane * 16};
  keep(block.weights_at);
  keep(block.x_at);
  keep(block.sums_at);
  keep(block.rows_at);
  keep(block.runs_at);
#pragma unroll
  for (int v = 0; v < 4; v++) {
    block.places[v] = Own::WEIGHT_BYTES + (F::IS_DENSE ? F::place(v, lane)
                      : lane / 4 * F::TOKEN_BYTES + F::place(v, lane % 4));
    keep(block.places[v]);
  }
  float total[4 * NT] = {};
  block.multiply(total, first_tile * STEPS, end_tile * STEPS);
  block.finish(total, matrix.rows, group * GROUP_ROWS, out_row);
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
  for (int next = 1; next < 3; next++) {
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
