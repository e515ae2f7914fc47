/* The operations between matrix products, on rows of floats; included once per instruction set. */
#include <math.h>

#include "elementwise.h"
#include "exponential.h"

static inline float tanh_of(float x) { return 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f); }

/* out = x / sqrt(mean(x^2) + eps) * weight, one row. */
static void normalize(const float *x, const float *weight, float eps, int64_t size, float *out) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    float factor = 1.0f / sqrtf(sum / (float)size + eps);
#pragma omp simd
    for (int64_t i = 0; i < size; i++) out[i] = x[i] * factor * weight[i];
}

/* gate = (is_gated ? gate : 1) / (1 + exp(-scale * gate)) * up. In a single loop gcc would also
 * divide by the bounds of exp_of's argument, which gives subnormals and is a hundred times slower. */
INLINE void activate_sigmoid(const bool is_gated, const float scale, float *gate, const float *up,
                             int64_t size) {
    enum { RUN = 256 };
    float powers[RUN];
    for (int64_t start = 0; start < size; start += RUN, gate += RUN, up += RUN) {
        int64_t count = size - start < RUN ? size - start : RUN;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) powers[i] = exp_of(-scale * gate[i]);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            gate[i] = (is_gated ? gate[i] : 1.0f) / (1.0f + powers[i]) * up[i];
    }
}

/* log(1 + y) for y from 0 to 1: with s = y / (2 + y), which is at most 1/3, it is twice the area
 * tangent of s, whose series has an error of less than one unit in the last place here. */
static inline float log1p_of(float y) {
    float s = y / (2.0f + y), square = s * s, p = 1.0f / 15.0f;
    p = p * square + 1.0f / 13.0f;
    p = p * square + 1.0f / 11.0f;
    p = p * square + 1.0f / 9.0f;
    p = p * square + 1.0f / 7.0f;
    p = p * square + 1.0f / 5.0f;
    p = p * square + 1.0f / 3.0f;
    return 2.0f * s + 2.0f * s * square * p;
}

/* gate = log(1 + exp(gate)) * up, as max(gate, 0) + log(1 + exp(-|gate|)), which cannot overflow. */
INLINE void activate_softplus(float *gate, const float *up, int64_t size) {
    enum { RUN = 256 };
    float powers[RUN];
    for (int64_t start = 0; start < size; start += RUN, gate += RUN, up += RUN) {
        int64_t count = size - start < RUN ? size - start : RUN;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) powers[i] = exp_of(-fabsf(gate[i]));
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            gate[i] = ((gate[i] > 0 ? gate[i] : 0) + log1p_of(powers[i])) * up[i];
    }
}

/* gate = activation(gate) * up. */
static void activate(Activation activation, float *gate, const float *up, int64_t size) {
    switch (activation) {
    case SILU: activate_sigmoid(true, 1.0f, gate, up, size); break;
    case SIGMOID: activate_sigmoid(false, 1.0f, gate, up, size); break;
    case QUICK_GELU: activate_sigmoid(true, 1.702f, gate, up, size); break;
    case SOFTPLUS: activate_softplus(gate, up, size); break;
    default:
#pragma omp simd
        for (int64_t i = 0; i < size; i++) {
            float x = gate[i], inner = 0.7978845608f * (x + 0.044715f * x * x * x);
            gate[i] = 0.5f * x * (1.0f + tanh_of(inner)) * up[i];
        }
    }
}

/* Rotates the first 2 * pairs values of each head of one token. */
static void rotate(const Rotation *r, const float *x, const float *cos, const float *sin,
                   float *out) {
    for (int64_t head = 0; head < r->heads; head++, x += r->head_dim, out += r->head_dim) {
        if (r->interleaved) {
#pragma omp simd
            for (int64_t i = 0; i < r->pairs; i++) {
                float a = x[2 * i], b = x[2 * i + 1];
                out[2 * i] = a * cos[i] - b * sin[i];
                out[2 * i + 1] = b * cos[i] + a * sin[i];
            }
        } else {
#pragma omp simd
            for (int64_t i = 0; i < r->pairs; i++) {
                float a = x[i], b = x[i + r->pairs];
                out[i] = a * cos[i] - b * sin[i];
                out[i + r->pairs] = b * cos[i] + a * sin[i];
            }
        }
        for (int64_t i = 2 * r->pairs; i < r->head_dim; i++) out[i] = x[i];
    }
}
