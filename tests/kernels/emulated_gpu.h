// In the place of core/mrs/kernels/cuda/source/ptx.h: the same text of a kernel, run by a CPU.
//
// Each thread of a block is a fiber. Threads take turns, and change where they wait for others: at
// barriers and at what a warp does together, which is done once all of its lanes have come there.
// So whatever order they run in, they have to find what they need: `order` says whether the first
// or the last thread and block comes first. Copies to shared memory are done when they are waited
// for, as late as a GPU may do them, or with `early` at once. Shared memory begins with bytes of
// 0xff, which are no numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include <setjmp.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(8) Words2 {
  u32 x, y;
};
struct alignas(16) Words4 {
  u32 x, y, z, w;
};

#define DEVICE inline
#define KERNEL(threads, blocks) void

struct Three {
  int x, y, z;
};
inline Three threadIdx, blockIdx, gridDim;

namespace gpu {

constexpr int WARP = 32;
constexpr size_t STACK_BYTES = 128 << 10;

[[noreturn]] inline void fail(const char *what) {
  std::fprintf(stderr, "emulated GPU: %s in thread %d\n", what, threadIdx.x);
  std::abort();
}

enum Wait { NOTHING, DONE, BLOCK, PRODUCT, BF16_PRODUCT, SHUFFLE, MATRICES };

struct Copy {
  void *to;
  const void *from;
  u32 bytes;
};

struct Place { // of a thread, or of the scheduler
  ucontext_t context;
  jmp_buf jump;
  bool has_begun = false;
};

struct Thread {
  Place place;
  char *stack;
  Wait wait = NOTHING;
  float *sums = nullptr;      // of a product
  const u32 *a = nullptr;     // its weights
  u32 b[2] = {};              // its tokens
  float value = 0;            // of a shuffle
  int distance = 0;           // of its lanes
  const char *row = nullptr;  // of `load_matrices`
  u32 *words = nullptr;       // its result
  std::deque<std::vector<Copy>> groups; // of copies; the last one is open
};

struct Block {
  std::vector<Thread> threads;
  char *shared;
  Place scheduler;
  int current = 0;
  bool early;
  const std::function<void()> *kernel;
};
inline Block *block;

// The sanitizer knows contexts; to jump takes no call of the system, which would be most of the
// time.
inline void switch_to(Place &from, Place &to, const void *stack, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  void *fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack, bytes);
  swapcontext(&from.context, &to.context);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  (void)stack, (void)bytes;
  if (_setjmp(from.jump)) return;
  if (to.has_begun) _longjmp(to.jump, 1);
  to.has_begun = true;
  setcontext(&to.context);
#endif
}

// The stack of the thread of the process that runs the scheduler.
inline const void *scheduler_stack;
inline size_t scheduler_stack_bytes;

inline Thread &self() { return block->threads[block->current]; }

inline void pause(Wait wait) {
  Thread &own = self();
  own.wait = wait;
  switch_to(own.place, block->scheduler, scheduler_stack, scheduler_stack_bytes);
}

inline void begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  (*block->kernel)();
  pause(DONE);
}

inline float half(u32 bits) {
  const u16 own = (u16)bits;
  _Float16 f;
  std::memcpy(&f, &own, 2);
  return (float)f;
}
inline u32 half_bits(double value) {
  const _Float16 f = (_Float16)value;
  u16 bits;
  std::memcpy(&bits, &f, 2);
  return bits;
}
inline float bfloat(u32 bits) {
  const u32 wide = bits << 16;
  float f;
  std::memcpy(&f, &wide, 4);
  return f;
}

// mma.m16n8k16 of the lanes of a warp; PTX ISA, "Matrix Fragments for mma.m16n8k16".
inline void product(Thread *lanes, bool is_bf16) {
  double a[16][16], b[16][8];
  for (int lane = 0; lane < WARP; lane++) {
    const int g = lane / 4, t = lane % 4;
    for (int part = 0; part < 4; part++)
      for (int i = 0; i < 2; i++) {
        const u32 bits = lanes[lane].a[part] >> (16 * i) & 0xffff;
        a[g + part % 2 * 8][2 * t + i + part / 2 * 8] = is_bf16 ? bfloat(bits) : half(bits);
      }
    for (int part = 0; part < 2; part++)
      for (int i = 0; i < 2; i++) {
        const u32 bits = lanes[lane].b[part] >> (16 * i) & 0xffff;
        b[2 * t + i + part * 8][g] = is_bf16 ? bfloat(bits) : half(bits);
      }
  }
  for (int lane = 0; lane < WARP; lane++)
    for (int i = 0; i < 4; i++) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = lanes[lane].sums[i];
      for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
      lanes[lane].sums[i] = (float)sum;
    }
}

inline void do_together(Thread *lanes) {
  const Wait wait = lanes[0].wait;
  if (wait == PRODUCT || wait == BF16_PRODUCT) product(lanes, wait == BF16_PRODUCT);
  if (wait == SHUFFLE) {
    float values[WARP];
    for (int lane = 0; lane < WARP; lane++) values[lane] = lanes[lane ^ lanes[lane].distance].value;
    for (int lane = 0; lane < WARP; lane++) lanes[lane].value = values[lane];
  }
  if (wait == MATRICES)
    for (int lane = 0; lane < WARP; lane++)
      for (int n = 0; n < 4; n++)
        std::memcpy(&lanes[lane].words[n], lanes[8 * n + lane / 4].row + lane % 4 * 4, 4);
  for (int lane = 0; lane < WARP; lane++) lanes[lane].wait = NOTHING;
}

// Runs the lanes of a warp until all of them wait for others; whether any did.
inline bool run_warp(int first, int order) {
  Thread *lanes = &block->threads[first];
  for (bool has_run = false;; has_run = true) {
    bool is_same = true;
    for (int i = 0; i < WARP; i++) {
      const int lane = order ? WARP - 1 - i : i;
      if (lanes[lane].wait != NOTHING) continue;
      block->current = first + lane;
      threadIdx = {first + lane, 0, 0};
      switch_to(block->scheduler, lanes[lane].place, lanes[lane].stack, STACK_BYTES);
      has_run = true;
    }
    for (int lane = 0; lane < WARP; lane++) is_same &= lanes[lane].wait == lanes[0].wait;
    if (!is_same || lanes[0].wait <= BLOCK) return has_run;
    do_together(lanes);
  }
}

// A warp goes on as far as it can before another one begins: what it does too early or too late, it
// does by much.
inline void run_block(int order) {
  const int count = (int)block->threads.size();
  for (;;) {
    bool has_run = false, all_done = true, all_at_barrier = true;
    for (int i = 0; i < count; i += WARP) has_run |= run_warp(order ? count - WARP - i : i, order);
    for (const Thread &thread : block->threads) {
      all_done &= thread.wait == DONE;
      all_at_barrier &= thread.wait == BLOCK;
    }
    if (all_done) return;
    if (all_at_barrier)
      for (Thread &thread : block->threads) thread.wait = NOTHING;
    else if (!has_run)
      fail("threads wait for each other");
  }
}

inline void run(const std::function<void()> &kernel, Three grid, int threads, size_t shared_bytes,
                int order, int early) {
  char *stacks = (char *)std::malloc(threads * STACK_BYTES);
  gridDim = grid;
  const int blocks = grid.x * grid.y * grid.z;
  for (int i = 0; i < blocks; i++) {
    const int index = order ? blocks - 1 - i : i;
    blockIdx = {index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y};
    Block own;
    own.threads.resize(threads);
    own.shared = (char *)std::aligned_alloc(128, (shared_bytes + 127) / 128 * 128);
    std::memset(own.shared, 0xff, shared_bytes);
    own.early = early;
    own.scheduler.has_begun = true;
    own.kernel = &kernel;
    block = &own;
    for (int thread = 0; thread < threads; thread++) {
      Thread &each = own.threads[thread];
      each.stack = stacks + thread * STACK_BYTES;
      each.groups.emplace_back();
      getcontext(&each.place.context);
      each.place.context.uc_stack.ss_sp = each.stack;
      each.place.context.uc_stack.ss_size = STACK_BYTES;
      each.place.context.uc_link = nullptr;
      makecontext(&each.place.context, begin, 0);
    }
    run_block(order);
    std::free(own.shared);
  }
  std::free(stacks);
}

} // namespace gpu

inline char *shared_memory() { return gpu::block->shared; }

inline void multiply_as(gpu::Wait kind, float *sums, const u32 *a, u32 b0, u32 b1) {
  gpu::Thread &own = gpu::self();
  own.sums = sums;
  own.a = a;
  own.b[0] = b0;
  own.b[1] = b1;
  gpu::pause(kind);
}
inline void multiply_f16(float *sums, const u32 *a, u32 b0, u32 b1) {
  multiply_as(gpu::PRODUCT, sums, a, b0, b1);
}
inline void multiply_bf16(float *sums, const u32 *a, u32 b0, u32 b1) {
  multiply_as(gpu::BF16_PRODUCT, sums, a, b0, b1);
}
inline void load_matrices(u32 *words, const char *row) {
  if ((uintptr_t)row % 16) gpu::fail("a row that is not aligned");
  gpu::self().words = words;
  gpu::self().row = row;
  gpu::pause(gpu::MATRICES);
}

// Products and sums of float16 are exact in float64, where a last rounding is the only one.
inline u32 fma2(u32 a, u32 b, u32 c) {
  using namespace gpu;
  const u32 low = half_bits((double)half(a) * half(b) + half(c));
  return low | half_bits((double)half(a >> 16) * half(b >> 16) + half(c >> 16)) << 16;
}
inline u32 mul2(u32 a, u32 b) { return fma2(a, b, 0x80008000u); }
inline u32 add2(u32 a, u32 b) { return fma2(a, 0x3c003c00u, b); }
inline u32 masked_or(u32 a, u32 mask, u32 bits) { return (a & mask) | bits; }
inline u32 bytes_of(u32 a, u32 b, u32 chosen) {
  const u64 both = a | (u64)b << 32;
  u32 found = 0;
  for (int i = 0; i < 4; i++) found |= (u32)(both >> (chosen >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return found;
}
inline float float_of_half(u32 bits) { return gpu::half(bits); }
inline u32 half_of_float(float f) { return gpu::half_bits(f); }
inline u32 bits_of_float(float f) {
  u32 bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}
inline float float_of_bits(u32 bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline u32 bfloat_of_float(float f) {
  const u32 bits = bits_of_float(f);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline u32 halves_of(float first, float second) {
  return half_of_float(first) | half_of_float(second) << 16;
}
inline u32 bfloats_of(float first, float second) {
  return bfloat_of_float(first) | bfloat_of_float(second) << 16;
}
inline float larger(float a, float b) { return std::fmax(a, b); }
inline float magnitude(float f) { return std::fabs(f); }
inline float inverse_root(float f) { return 1.0f / std::sqrt(f); }
inline float exponential(float f) { return std::exp(f); }
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
inline void keep(int &) {}

inline void copy16_or_zeros(void *shared, const void *global, u32 bytes) {
  if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) gpu::fail("a copy that is not aligned");
  if (gpu::block->early) {
    std::memset(shared, 0, 16);
    std::memcpy(shared, global, bytes);
  } else {
    gpu::self().groups.back().push_back({shared, global, bytes});
  }
}
inline void copy16(void *shared, const void *global) { copy16_or_zeros(shared, global, 16); }
inline void copy16_if(bool is_wanted, void *shared, const void *global) {
  if (is_wanted) copy16(shared, global);
}
inline void end_group() { gpu::self().groups.emplace_back(); }
template <int others> inline void wait_for_groups() {
  auto &groups = gpu::self().groups; // the open one is no group yet
  while ((int)groups.size() - 1 > others) {
    for (const gpu::Copy &copy : groups.front()) {
      std::memset(copy.to, 0, 16);
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
    groups.pop_front();
  }
}
inline void wait_for_block() { gpu::pause(gpu::BLOCK); }
inline float value_of_lane(float f, int lane_distance) {
  gpu::self().value = f;
  gpu::self().distance = lane_distance;
  gpu::pause(gpu::SHUFFLE);
  return gpu::self().value;
}
inline void publish() {}
inline u32 add_one(u32 *counter) { return (*counter)++; }
inline float load_fresh(const float *p) { return *p; }
inline void wait_for_kernel_before() {}
inline void start_kernel_after() {}
