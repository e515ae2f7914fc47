/* Four 32-bit lanes in one 128-bit register: Arm NEON with dot products. */
#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>

#define LANES 4
#define BYTE_OFFSET 0

typedef int32x4_t Ints;
typedef float32x4_t Floats;

static inline Ints lanes_load(const void *p) { return vld1q_s32((const int32_t *)p); }
static inline Ints lanes_int(int32_t v) { return vdupq_n_s32(v); }
static inline Ints lanes_byte(int v) { return vreinterpretq_s32_u8(vdupq_n_u8((uint8_t)v)); }
static inline Ints lanes_and(Ints a, Ints b) { return vandq_s32(a, b); }
static inline Ints lanes_or_masked(Ints a, Ints b, Ints mask) {
    return vorrq_s32(a, vandq_s32(b, mask));
}
static inline Ints lanes_add(Ints a, Ints b) { return vaddq_s32(a, b); }
static inline Ints lanes_shift_right(Ints a, int n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n)));
}
static inline Ints lanes_shift_left(Ints a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }

static inline Ints lanes_bytes(Ints a) { return a; }

/* sum + the dot product of each lane's four bytes with the four signed bytes at x. Unsigned weights
 * are below 128, so that a signed product serves both kinds. */
static inline Ints lanes_dot(Ints sum, Ints weights, const int8_t *x) {
    int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(*(const int32_t *)x));
    return vdotq_s32(sum, vreinterpretq_s8_s32(weights), four);
}
static inline Ints lanes_dot_bytes(Ints sum, Ints weights, const int8_t *x) {
    return lanes_dot(sum, weights, x);
}

static inline Floats lanes_zero(void) { return vdupq_n_f32(0); }
static inline Floats lanes_float(float v) { return vdupq_n_f32(v); }
static inline Floats lanes_load_floats(const float *p) { return vld1q_f32(p); }
static inline void lanes_store(float *p, Floats v) { vst1q_f32(p, v); }
static inline Floats lanes_convert(Ints v) { return vcvtq_f32_s32(v); }
static inline Floats lanes_load_f16(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
static inline void lanes_store_f16(uint16_t *p, Floats v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
/* The bytes at p as integers. */
static inline Ints lanes_load_bytes(const uint8_t *p) {
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    const uint16x8_t v = vmovl_u8(vcreate_u8(four));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(v)));
}
/* The bytes of a table at the indices in the bytes of v, which are below 16. */
static inline Ints lanes_lookup(const uint8_t table[16], Ints v) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_s32(v)));
}
/* The values of a table at the low four bits of each lane. */
static inline Floats lanes_table(const float table[16], Ints v) {
    float values[LANES];
    for (int i = 0; i < LANES; i++) values[i] = table[v[i] & 15];
    return vld1q_f32(values);
}
static inline Floats lanes_load_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16));
}
static inline Floats lanes_as_floats(Ints v) { return vreinterpretq_f32_s32(v); }
static inline Floats lanes_mul(Floats a, Floats b) { return vmulq_f32(a, b); }
static inline Floats lanes_add_floats(Floats a, Floats b) { return vaddq_f32(a, b); }
static inline Floats lanes_fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
/* The start of integer sums; the sums as floats; the sums times a scale. */
#define SUM_START 0
static inline Floats lanes_sum_value(Ints sum) { return lanes_convert(sum); }
static inline Floats lanes_sum_times(Ints sum, Floats scale) {
    return lanes_mul(lanes_convert(sum), scale);
}
/* v[i][j] becomes v[j][i]. */
static inline void lanes_transpose(Floats v[4]) {
    const float32x4x2_t a = vtrnq_f32(v[0], v[1]), b = vtrnq_f32(v[2], v[3]);
    v[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    v[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    v[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    v[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
