/* Linear attention by a delta rule, in one call: a return to the interpreter between the steps
 * would be slow, since the weights have evicted its memory from the caches. */
#include "recurrent/linear_attention.h"

#include "bounds.h"
#include "dense/dense.h"
#include "elementwise.h"
#include "recurrent/convolution.h"
#include "recurrent/delta_rule.h"

/* The values of all tokens between the input and the output. */
typedef struct {
    float *q, *k, *v, *mixed, *gate, *log_decay, *beta, *inner;
} Parts;

/* out (tokens, rows) = x (tokens, depth) times the transposed weights. */
static void multiply_floats(const KernelTable *kernels, const float *x, const float *weights,
                            int64_t tokens, int64_t depth, int64_t rows, float *out, int threads) {
    DenseProduct product = {.x = x,
                            .weights = weights,
                            .out = out,
                            .type = TYPE_F32,
                            .tokens = tokens,
                            .heads = 1,
                            .depth = depth,
                            .rows = rows,
                            .x_token_step = depth,
                            .row_step = depth,
                            .depth_step = 1};
    mrs_multiply_dense(kernels, &product, threads);
}

/* log_decay = decay * log(1 + exp(step + bias)), of each head or of each of its keys. */
static void find_decays(const LinearAttention *a, const Parts *parts, const float *x,
                        int64_t tokens, int threads) {
    const KernelTable *kernels = a->q->kernels;
    const int64_t of_head = a->step_in ? a->q->rows / a->key_heads : 1;
    const int64_t steps = a->heads * of_head, hidden = a->q->columns;
    float *out = parts->log_decay;
    if (a->step_in)
        multiply_floats(kernels, x, a->step_in, tokens, hidden, a->inner, parts->inner, threads);
    multiply_floats(kernels, a->step_in ? parts->inner : x, a->step, tokens,
                    a->step_in ? a->inner : hidden, steps, out, threads);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < steps; i++) out[t * steps + i] += a->step_bias[i];
    mrs_gate(kernels, SOFTPLUS, out, NULL, tokens * steps, threads);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t head = 0; head < a->heads; head++)
            for (int64_t i = 0; i < of_head; i++)
                out[t * steps + head * of_head + i] *= a->decay[head];
}

/* Convolves queries, keys and values of one sequence in place; `recent` has the inputs of all. */
static void convolve_parts(const LinearAttention *a, const Parts *parts, int64_t first,
                           int64_t tokens, float *recent, int threads) {
    float *const each[] = {parts->q, parts->k, parts->v};
    for (int i = 0; i < 3; i++) {
        const int64_t channels = i < 2 ? a->q->rows : a->v->rows;
        float *x = each[i] + first * channels;
        Convolution convolution = {.x = x,
                                   .weight = a->convolutions[i],
                                   .recent = recent,
                                   .out = x,
                                   .tokens = tokens,
                                   .channels = channels,
                                   .taps = a->taps,
                                   .x_step = channels,
                                   .out_step = channels,
                                   .silu = true};
        mrs_convolve(a->q->kernels, &convolution, threads);
        recent += channels * (a->taps - 1);
    }
}

/* Updates and reads the state of one sequence. Returns false if memory is missing. */
static bool update_state(const LinearAttention *a, const Parts *parts, int64_t first,
                         int64_t tokens, float *state, int threads) {
    const int64_t keys = a->q->rows, values = a->v->rows;
    const int64_t key_dim = keys / a->key_heads;
    DeltaRule rule = {.q = parts->q + first * keys,
                      .k = parts->k + first * keys,
                      .v = parts->v + first * values,
                      .log_decay = parts->log_decay + first * a->heads * (a->step_in ? key_dim : 1),
                      .beta = parts->beta + first * a->heads,
                      .state = state,
                      .out = parts->mixed + first * values,
                      .tokens = tokens,
                      .heads = a->heads,
                      .key_heads = a->key_heads,
                      .key_dim = key_dim,
                      .value_dim = values / a->heads,
                      .tiled = a->tiled};
    return (a->step_in ? run_key_delta_rule : run_delta_rule)(a->q->kernels, &rule, threads);
}

static bool mix(const LinearAttention *a, const StateBatch *batch, const float *x, int64_t tokens,
                float *scratch, float *out, int threads) {
    const KernelTable *kernels = a->q->kernels;
    const int64_t heads = a->heads;
    const int64_t keys = a->q->rows, values = a->v->rows, hidden = a->q->columns;
    Parts parts = {.q = scratch, .k = scratch + tokens * keys};
    parts.v = parts.k + tokens * keys;
    parts.mixed = parts.v + tokens * values;
    parts.gate = parts.mixed + tokens * values;
    parts.beta = parts.gate + tokens * values;
    parts.inner = parts.beta + tokens * heads;
    parts.log_decay = parts.inner + tokens * a->inner;
    MatmulOperand into[] = {{a->q, parts.q, NULL}, {a->k, parts.k, NULL}, {a->v, parts.v, NULL},
                            {a->gate, parts.gate, NULL}};
    MatmulOperand gate = into[3], back = {a->back, out, NULL};
    if (a->gate_in) into[3] = (MatmulOperand){a->gate_in, parts.inner, NULL};
    if (!multiply_each(into, 4, x, TYPE_F32, tokens, threads)) return false;
    if (a->gate_in && !multiply_each(&gate, 1, parts.inner, TYPE_F32, tokens, threads))
        return false;
    multiply_floats(kernels, x, a->beta, tokens, hidden, heads, parts.beta, threads);
    mrs_gate(kernels, SIGMOID, parts.beta, NULL, tokens * heads, threads);
    find_decays(a, &parts, x, tokens, threads);
    for (int64_t i = 0; i < batch->sequences; i++)
        convolve_parts(a, &parts, batch->starts[i], batch->starts[i + 1] - batch->starts[i],
                       batch->recent[i], threads);
    const int64_t rows = tokens * a->key_heads, key_dim = keys / a->key_heads;
    const float eps = (float)a->length_eps;
    mrs_rms_norm(kernels, parts.q, a->q_length, eps, rows, key_dim, parts.q, threads);
    mrs_rms_norm(kernels, parts.k, a->k_length, eps, rows, key_dim, parts.k, threads);
    for (int64_t i = 0; i < batch->sequences; i++)
        if (!update_state(a, &parts, batch->starts[i], batch->starts[i + 1] - batch->starts[i],
                          batch->state[i], threads))
            return false;
    mrs_rms_norm(kernels, parts.mixed, a->head_norm, (float)a->head_eps, tokens * heads,
                 values / heads, parts.mixed, threads);
    mrs_gate(kernels, (int)a->activation, parts.gate, parts.mixed, tokens * values, threads);
    return multiply_each(&back, 1, parts.gate, TYPE_F32, tokens, threads);
}

/* out = what the mixer makes of x (tokens, hidden). `scratch` has for each token the values of
 * q, k, v, mixed, gate, decays, beta and inner, as `mrs.sizes.state_mixers` counts them. */
EXPORT Outcome mrs_linear_attention(const LinearAttention *a, const StateBatch *batch,
                                    const float *x, int64_t tokens, float *scratch, float *out,
                                    int threads) {
    const Outcome outcome = check_states(batch, tokens);
    return outcome.code ? outcome : done_if(mix(a, batch, x, tokens, scratch, out, threads));
}
