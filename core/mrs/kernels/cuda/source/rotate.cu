// Heads of queries and keys, normed and rotated by their positions: queries go to `queries`, keys
// and values to a cache in blocks.
//
// Options of the compiler: X, the type of the heads and of `queries`; CACHE, that of the cache
// (values.h); HAS_NORMS, an RMS norm of each query and key; IS_INTERLEAVED, whether the two values
// that rotate together are adjacent, else as far apart as there are pairs.
//
// A warp has a head of a token; its values beyond those of the pairs stay as they are.
#include "ptx.h"

#include "values.h"

constexpr int WARPS = 8, THREADS = 32 * WARPS;

struct Rotation {
  const void *heads;       // (tokens, queries + keys + values, dim)
  const float *cos, *sin;  // (tokens, pairs)
  const float *norms;      // (2, dim): of queries and of keys
  const long long *slots;  // of the tokens in the cache
  void *keys, *values;     // (blocks, kv_heads, block_tokens, dim), the last dimension contiguous
  void *queries;           // (tokens, query_heads, dim)
  long long key_strides[3], value_strides[3]; // of blocks, heads and tokens
  int query_heads, kv_heads, dim, pairs, block_tokens;
  float eps, largest; // the largest value of the cache's type
};

DEVICE float limited(float f, float largest) {
  return f > largest ? largest : f < -largest ? -largest : f;
}

// A grid of (eight heads, tokens).
KERNEL(THREADS, 2) rotate(const Rotation task) {
  start_kernel_after();
  wait_for_kernel_before();
  const int all_heads = task.query_heads + 2 * task.kv_heads, dim = task.dim;
  const int head = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= all_heads) return;
  const u64 token = blockIdx.y, from = (token * all_heads + head) * dim;
  const bool is_query = head < task.query_heads, is_value = head >= all_heads - task.kv_heads;
  float factor = 1.0f;
  const float *norm = task.norms + (is_query ? 0 : dim);
  if (HAS_NORMS && !is_value) {
    float squares = 0.0f;
    for (int i = lane; i < dim; i += 32) {
      const float x = X::read(task.heads, from + i);
      squares = fused(x, x, squares);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      squares += value_of_lane(squares, distance);
    factor = inverse_root(squares / dim + task.eps);
  }
  void *to = task.queries;
  u64 at = (token * task.query_heads + head) * dim;
  if (!is_query) {
    const long long slot = task.slots[token], block = slot / task.block_tokens;
    const long long offset = slot % task.block_tokens;
    const long long *strides = is_value ? task.value_strides : task.key_strides;
    const int kv_head = (head - task.query_heads) % task.kv_heads;
    to = is_value ? task.values : task.keys;
    at = block * strides[0] + kv_head * strides[1] + offset * strides[2];
  }
  for (int i = lane; i < dim; i += 32) {
    float x = X::read(task.heads, from + i);
    if (!is_value) {
      const bool is_rotated = i < 2 * task.pairs;
      const bool is_first = IS_INTERLEAVED ? i % 2 == 0 : i < task.pairs;
      const int distance = IS_INTERLEAVED ? 1 : task.pairs;
      const int other = is_first ? i + distance : i - distance;
      const u64 pair = token * task.pairs +
                       (IS_INTERLEAVED ? i / 2 : is_first ? i : i - task.pairs);
      float y = is_rotated ? X::read(task.heads, from + other) : 0.0f;
      if (HAS_NORMS) {
        x *= factor * norm[i];
        if (is_rotated) y *= factor * norm[other];
      }
      if (is_rotated) {
        const float c = task.cos[pair], s = task.sin[pair];
        x = is_first ? x * c - y * s : x * c + y * s;
      }
    }
    if (is_query)
      X::write(to, at + i, x);
    else
      CACHE::write(to, at + i, limited(x, task.largest));
  }
}
