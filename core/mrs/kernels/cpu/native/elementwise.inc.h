/* The operations between matrix products, on rows of floats; included once per instruction set. */
#include <math.h>

#include "elementwise.h"
#include "exponential.h"

static inline float tanh_of(float x) { return 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f); }

/* out = x / sqrt(mean(x^2) + eps) * weight, one row; `weight` may be NULL: ones. */
static void normalize(const float *x, const float *weight, float eps, int64_t size, float *out) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    float factor = 1.0f / sqrtf(sum / (float)size + eps);
    if (!weight) {
#pragma omp simd
        for (int64_t i = 0; i < size; i++) out[i] = x[i] * factor;
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < size; i++) out[i] = x[i] * factor * weight[i];
}

/* out = (x - mean) / sqrt(variance + eps) * weight + bias, one row; either may be NULL. */
static void normalize_layer(const float *x, const float *weight, const float *bias, float eps,
                            int64_t size, float *out) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += x[i];
    const float mean = sum / (float)size;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++) squares += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / sqrtf(squares / (float)size + eps);
#pragma omp simd
    for (int64_t i = 0; i < size; i++) out[i] = (x[i] - mean) * factor;
    for (int64_t i = 0; i < (weight ? size : 0); i++) out[i] *= weight[i];
    for (int64_t i = 0; i < (bias ? size : 0); i++) out[i] += bias[i];
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

/* The error function: x times a polynomial of its square up to 1; beyond, 1 - exp(-|x| times a
 * polynomial of |x|), which is 1 in float32 from 4 on. The error is at most 2^-23. */
static inline float erf_of(float x) {
    const float size = fabsf(x), square = size * size, far = size < 4.0f ? size : 4.0f;
    float p = -5.65410592e-4f, q = 1.61756361e-5f;
    p = p * square + 4.92327753e-3f;
    p = p * square - 2.6716385e-2f;
    p = p * square + 1.12803645e-1f;
    p = p * square - 3.76123488e-1f;
    p = p * square + 1.12837911f;
    q = q * far - 3.67116503e-4f;
    q = q * far + 3.79255391e-3f;
    q = q * far - 2.39928253e-2f;
    q = q * far + 1.06373623e-1f;
    q = q * far + 6.35167658e-1f;
    q = q * far + 1.12861526f;
    const float beyond = 1.0f - exp_of(-far * q), found = size < 1.0f ? size * p : beyond;
    return x < 0 ? -found : found;
}

/* exp(x) - 1 for x up to 0, by its series where the difference would lose digits. */
static inline float expm1_of(float x) {
    float p = 2.48015873e-5f;
    p = p * x + 1.98412698e-4f;
    p = p * x + 1.38888889e-3f;
    p = p * x + 8.33333333e-3f;
    p = p * x + 4.16666667e-2f;
    p = p * x + 1.66666667e-1f;
    p = p * x + 0.5f;
    return x > -0.5f ? x + x * x * p : exp_of(x) - 1.0f;
}

/* With the parameters a, c, b and e: a x^2 + b x where x > 0, else
 * c (exp(min(x, e)) - 1 - x) + b x. */
static void xielu(const float parameters[4], float *x, int64_t size) {
    const float a = parameters[0], c = parameters[1], b = parameters[2], e = parameters[3];
#pragma omp simd
    for (int64_t i = 0; i < size; i++) {
        const float value = x[i], low = value < e ? value : e;
        const float below = (expm1_of(low) - value) * c, above = value * value * a;
        x[i] = (value > 0 ? above : below) + value * b;
    }
}

/* gate = activation(gate) * up. */
static void activate(Activation activation, float *gate, const float *up, int64_t size) {
    switch (activation) {
    case SILU: activate_sigmoid(true, 1.0f, gate, up, size); break;
    case SIGMOID: activate_sigmoid(false, 1.0f, gate, up, size); break;
    case QUICK_GELU: activate_sigmoid(true, 1.702f, gate, up, size); break;
    case SOFTPLUS: activate_softplus(gate, up, size); break;
    case GELU:
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            gate[i] = 0.5f * gate[i] * (1.0f + erf_of(gate[i] * 0.707106781f)) * up[i];
        break;
    case RELU:
#pragma omp simd
        for (int64_t i = 0; i < size; i++) gate[i] = (gate[i] < 0 ? 0 : gate[i]) * up[i];
        break;
    case RELU2:
#pragma omp simd
        for (int64_t i = 0; i < size; i++) {
            const float x = gate[i] < 0 ? 0 : gate[i];
            gate[i] = x * x * up[i];
        }
        break;
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
