/* A selective state space as a whole token mixer, in one call; see linear_attention.c. */
#include "recurrent/mamba2.h"

#include <string.h>

#include "bounds.h"
#include "elementwise.h"
#include "recurrent/convolution.h"
#include "recurrent/state_space.h"

/* times = log(1 + exp(step + bias)) within the bounds, (tokens, heads). */
static void find_times(const Mamba2 *m, const float *steps, int64_t tokens, float *times,
                       int threads) {
    const float least = (float)m->least_step, most = (float)m->most_step;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t head = 0; head < m->heads; head++)
            times[t * m->heads + head] = steps[t * m->in->rows + head] + m->step_bias[head];
    mrs_gate(m->in->kernels, SOFTPLUS, times, NULL, tokens * m->heads, threads);
    for (int64_t i = 0; i < tokens * m->heads; i++) {
        times[i] = times[i] < least ? least : times[i];
        times[i] = times[i] > most ? most : times[i];
    }
}

/* The groups of one token, each by its part of the weights. */
static void normalize_groups(const Mamba2 *m, const float *x, float *out) {
    const int64_t size = m->heads * m->head_dim / m->groups;
    for (int64_t start = 0; start < m->groups * size; start += size)
        m->in->kernels->normalize(x + start, m->norm + start, (float)m->eps, size, out + start);
}

/* out = the gated out, normed before or after that; the gate is overwritten. */
static void finish_token(const Mamba2 *m, float *gate, float *out) {
    const int64_t values = m->heads * m->head_dim;
    if (m->norm && m->norm_before_gate) normalize_groups(m, out, out);
    m->in->kernels->activate(SILU, gate, out, values);
    if (m->norm && !m->norm_before_gate)
        normalize_groups(m, gate, out);
    else
        memcpy(out, gate, (size_t)values * sizeof(float));
}

static bool mix(const Mamba2 *m, const StateBatch *batch, const float *x, int64_t tokens,
                float *scratch, float *out, int threads) {
    const KernelTable *kernels = m->in->kernels;
    const int64_t step = m->in->rows;
    const int64_t values = m->heads * m->head_dim, weights = m->groups * m->state_dim;
    float *projected = scratch, *mixed = projected + tokens * step;
    float *times = mixed + tokens * values;
    MatmulOperand into = {m->in, projected, NULL}, back = {m->back, out, NULL};
    if (!multiply_each(&into, 1, x, TYPE_F32, tokens, threads)) return false;
    find_times(m, projected + 2 * values + 2 * weights, tokens, times, threads);
    for (int64_t i = 0; i < batch->sequences; i++) {
        const int64_t first = batch->starts[i], count = batch->starts[i + 1] - first;
        float *inner = projected + first * step + values;
        Convolution convolution = {.x = inner,
                                   .weight = m->convolution,
                                   .bias = m->convolution_bias,
                                   .recent = batch->recent[i],
                                   .out = inner,
                                   .tokens = count,
                                   .channels = values + 2 * weights,
                                   .taps = m->taps,
                                   .x_step = step,
                                   .out_step = step,
                                   .silu = true};
        StateSpace space = {.x = inner,
                            .b = inner + values,
                            .c = inner + values + weights,
                            .times = times + first * m->heads,
                            .decay = m->decay,
                            .skip = m->skip,
                            .state = batch->state[i],
                            .out = mixed + first * values,
                            .tokens = count,
                            .heads = m->heads,
                            .groups = m->groups,
                            .head_dim = m->head_dim,
                            .state_dim = m->state_dim,
                            .x_step = step,
                            .b_step = step,
                            .c_step = step};
        mrs_convolve(kernels, &convolution, threads);
        mrs_state_space(kernels, &space, threads);
    }
    for (int64_t t = 0; t < tokens; t++)
        finish_token(m, projected + t * step, mixed + t * values);
    return multiply_each(&back, 1, mixed, TYPE_F32, tokens, threads);
}

/* out = what the mixer makes of x (tokens, hidden). `scratch` has for each token the rows of `in`,
 * the values of all heads, and a step for each head, as `mrs.sizes.state_mixers` counts them. */
EXPORT Outcome mrs_mamba2(const Mamba2 *m, const StateBatch *batch, const float *x, int64_t tokens,
                          float *scratch, float *out, int threads) {
    const Outcome outcome = check_states(batch, tokens);
    return outcome.code ? outcome : done_if(mix(m, batch, x, tokens, scratch, out, threads));
}
