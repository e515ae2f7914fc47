// Which experts compute a token, and with which weights, with an RMS norm before it.
//
// Options of the compiler: X, the type of x and `normed` (values.h); HAS_NORM; IS_SIGMOID, the
// scores, else the softmax of all experts; SUMS_TO_ONE, whether the weights of the chosen ones are
// divided by their sum.
//
// A warp multiplies a token with a row of the router, and a block has eight of them. The last block
// of a token chooses its experts. Each block writes its part of the normed token.
#include "ptx.h"

#include "values.h"

constexpr int WARPS = 8, THREADS = 32 * WARPS;

struct Routing {
  const void *x;           // (tokens, columns)
  const float *norm;       // of the columns
  void *normed;            // as x, with a norm
  const float *router;     // (experts, columns)
  const float *bias;       // of the experts, or null
  const float *correction; // added to their scores for the choice alone, or null
  const float *expert_scale; // of the experts, or null
  float *logits;           // (tokens, experts)
  float *weights;          // (tokens, top_k)
  long long *indices;      // (tokens, top_k)
  u32 *arrived;            // a counter of 0 for each token; left as it was
  int columns, experts, top_k;
  float eps, scale;
};

DEVICE float sum_of_lanes(float f) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) f += value_of_lane(f, distance);
  return f;
}

// The sum of all threads' values, in an order that is always the same.
DEVICE float sum_of_block(float f) {
  float *of_warps = (float *)shared_memory();
  f = sum_of_lanes(f);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = f;
  wait_for_block();
  f = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++) f += of_warps[warp];
  return f;
}

// A warp chooses; `scores` and `ranks` (experts) are shared memory. Lane k has the choice k.
DEVICE void choose(const Routing &task, u64 token, float *scores, float *ranks) {
  const int lane = threadIdx.x % 32, experts = task.experts;
  const float *logits = task.logits + token * experts;
  float most = -3.0e38f, total = 0.0f;
  for (int e = lane; e < experts; e += 32) most = larger(most, scores[e] = load_fresh(logits + e));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    most = larger(most, value_of_lane(most, distance));
  for (int e = lane; e < experts; e += 32) {
    const float logit = scores[e];
    scores[e] = IS_SIGMOID ? 1.0f / (1.0f + exponential(-logit)) : exponential(logit - most);
    total += scores[e];
  }
  total = IS_SIGMOID ? 1.0f : sum_of_lanes(total);
  for (int e = lane; e < experts; e += 32) {
    scores[e] /= total;
    ranks[e] = task.correction ? scores[e] + task.correction[e] : scores[e];
  }
  float sum = 0.0f, own_score = 0.0f;
  int own = 0;
  for (int k = 0; k < task.top_k; k++) {
    // Of equal ones the first. All lanes come to the same one.
    float best = -3.0e38f, expert = (float)experts;
    for (int e = lane; e < experts; e += 32)
      if (ranks[e] > best) best = ranks[e], expert = (float)e;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = value_of_lane(best, distance), its = value_of_lane(expert, distance);
      if (other > best || (other == best && its < expert)) best = other, expert = its;
    }
    // What is no number is above nothing: then any expert will do.
    const int chosen = expert < experts ? (int)expert : k;
    if (lane == chosen % 32) ranks[chosen] = -3.0e38f;
    const float score = sum_of_lanes(lane == chosen % 32 ? scores[chosen] : 0.0f);
    sum += score;
    if (lane == k) own = chosen, own_score = score;
  }
  if (lane >= task.top_k) return;
  if (SUMS_TO_ONE) own_score /= sum;
  if (task.expert_scale) own_score *= task.expert_scale[own];
  task.weights[token * task.top_k + lane] = own_score * task.scale;
  task.indices[token * task.top_k + lane] = own;
}

// A grid of (eight experts, tokens).
KERNEL(THREADS, 2) route(const Routing task) {
  start_kernel_after();
  wait_for_kernel_before();
  const int lane = threadIdx.x % 32, expert = blockIdx.x * WARPS + threadIdx.x / 32;
  const int columns = task.columns;
  const u64 token = blockIdx.y, first = token * columns;
  float root = 1.0f;
  if (HAS_NORM) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < columns; i += THREADS) {
      const float x = X::read(task.x, first + i);
      squares = fused(x, x, squares);
    }
    root = inverse_root(sum_of_block(squares) / columns + task.eps);
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < columns; i += gridDim.x * THREADS)
      X::write(task.normed, first + i, X::read(task.x, first + i) * root * task.norm[i]);
  }
  if (expert < task.experts) {
    const float *row = task.router + (u64)expert * columns;
    float sum = 0.0f;
#pragma unroll 8
    for (int i = lane; i < columns; i += 32) {
      const float x = X::read(task.x, first + i);
      sum = fused(HAS_NORM ? x * task.norm[i] : x, row[i], sum);
    }
    sum = sum_of_lanes(sum) * root;
    if (lane == 0)
      task.logits[token * task.experts + expert] = task.bias ? sum + task.bias[expert] : sum;
  }
  publish();
  wait_for_block();
  u32 *is_last = (u32 *)shared_memory() + WARPS;
  if (threadIdx.x == 0) {
    *is_last = add_one(task.arrived + token) == gridDim.x - 1;
    if (*is_last) task.arrived[token] = 0;
  }
  wait_for_block();
  if (!*is_last || threadIdx.x >= 32) return;
  publish();
  float *scores = (float *)shared_memory() + WARPS + 1;
  choose(task, token, scores, scores + task.experts);
}
