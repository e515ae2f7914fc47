// The RMS norm of rows, added to others if there are any: out = norm(x) + added.
//
// Options of the compiler: X, the type of all rows (values.h). A block has a row.
#include "ptx.h"

#include "values.h"

constexpr int WARPS = 8, THREADS = 32 * WARPS;

struct Norm {
  const void *x;       // (tokens, columns)
  const float *weight; // of the columns
  const void *added;   // as x, or null
  void *out;
  int columns;
  float eps;
};

// A grid of tokens.
KERNEL(THREADS, 1) normalize(const Norm task) {
  start_kernel_after();
  wait_for_kernel_before();
  const u64 first = (u64)blockIdx.x * task.columns;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < task.columns; i += THREADS) {
    const float x = X::read(task.x, first + i);
    squares = fused(x, x, squares);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) squares += value_of_lane(squares, distance);
  float *of_warps = (float *)shared_memory();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = squares;
  wait_for_block();
  squares = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++) squares += of_warps[warp];
  const float root = inverse_root(squares / task.columns + task.eps);
  for (int i = threadIdx.x; i < task.columns; i += THREADS) {
    float x = X::read(task.x, first + i) * root * task.weight[i];
    if (task.added) x += X::read(task.added, first + i);
    X::write(task.out, first + i, x);
  }
}
