// Weights in fragment order as ordinary rows: some adjacent ones, for products of many tokens by
// cuBLAS, or chosen ones, for an embedding.
//
// Options of the compiler: FIRST, the format (formats.h); OUT, the type of `out` (values.h).
//
// A warp decodes a tile of 16 rows; for a chosen row only the lanes that have it do.
#include "ptx.h"

#include "values.h"

#include "formats.h"

constexpr int WARPS = 8, THREADS = 32 * WARPS;

struct Decoding {
  const char *data;
  const long long *ids; // of chosen rows, or null
  void *out;            // (rows, columns)
  int first_row, columns;
};

// A grid of (16 rows, or chosen ones; eight tiles).
KERNEL(THREADS, 2) decode(const Decoding task) {
  wait_for_kernel_before();
  start_kernel_after();
  const int lane = threadIdx.x % 32, tile = blockIdx.y * WARPS + threadIdx.x / 32;
  const int columns = task.columns, left = columns - tile * 256;
  if (left <= 0) return;
  const u64 row = task.ids ? (u64)task.ids[blockIdx.x] : (u64)task.first_row + blockIdx.x * 16;
  const char *weights = task.data + row / 16 * (u64)(columns / 32) * (FIRST::BYTES / 8) +
                        (u64)tile * FIRST::BYTES;
  const int own = row % 16;
  if (task.ids && lane / 4 != own % 8) return;
  const int blocks = left < 256 ? left / 32 : 8;
#pragma unroll 2
  for (int run = 0; run < FIRST::RUNS_OF_TILE * blocks / 8; run++) {
    float values[2][FIRST::RUN_OF];
    FIRST::decode(values, weights, run, lane);
    const u64 column = tile * 256 + FIRST::column(run, lane % 4, blocks);
    if (task.ids) {
      OUT::write_some<FIRST::RUN_OF>(task.out, blockIdx.x * (u64)columns + column,
                                     values[own / 8]);
    } else {
      const u64 first = blockIdx.x * 16ull + lane / 4;
      OUT::write_some<FIRST::RUN_OF>(task.out, first * columns + column, values[0]);
      OUT::write_some<FIRST::RUN_OF>(task.out, (first + 8) * columns + column, values[1]);
    }
  }
}
