/* The gated delta rule, with a decay of each head or of each key; included once per instruction
 * set, after elementwise.inc.h.
 *
 * Tokens are computed one after another, so that a token's result does not depend on the chunk in
 * which it is fed. For each token, with the state S:
 *
 *   u = beta * (v - decay * (k S));  S = decay * S + k^T u;  out = q S
 *
 * and with a decay of each key, u = beta * (v - (k * decay) S). k S and q S are sums over the keys:
 * STATE_SUMS partial sums, each of every STATE_SUMS-th key by fma, added pair by pair.
 */
#include "recurrent/delta_rule.h"

#define STATE_VECTORS (STATE_COLUMNS / LANES)
#define STATE_SUMS 4

/* sums[v] = the first partial sum plus the second, plus the third plus the fourth. */
INLINE void add_partial_sums(Floats parts[STATE_SUMS][STATE_VECTORS], Floats *sums) {
#pragma GCC unroll 8
    for (int v = 0; v < STATE_VECTORS; v++)
        sums[v] = lanes_add_floats(lanes_add_floats(parts[0][v], parts[1][v]),
                                   lanes_add_floats(parts[2][v], parts[3][v]));
}

/* One key: adds its part of k S. */
INLINE void read_key(const float *state, float k, Floats *sum) {
#pragma GCC unroll 8
    for (int v = 0; v < STATE_VECTORS; v++)
        sum[v] = lanes_fma(lanes_load_floats(state + v * LANES), lanes_float(k), sum[v]);
}

/* One key: updates its row of the state, and adds its part of q S. */
INLINE void update_key(float *state, float k, float q, Floats decay, const Floats *u,
                       Floats *sum) {
#pragma GCC unroll 8
    for (int v = 0; v < STATE_VECTORS; v++) {
        Floats row = lanes_mul(lanes_load_floats(state + v * LANES), decay);
        row = lanes_fma(lanes_float(k), u[v], row);
        lanes_store(state + v * LANES, row);
        sum[v] = lanes_fma(row, lanes_float(q), sum[v]);
    }
}

/* One token; `state` is (keys, STATE_COLUMNS), v and out have STATE_COLUMNS values. There is one
 * decay or, `by_key`, one of each key, by which `read_k` is k multiplied. */
INLINE void delta_token(const bool by_key, const float *q, const float *k, const float *read_k,
                        const float *v, const float *decay, float beta, int64_t keys,
                        float *state, float *out) {
    Floats read[STATE_SUMS][STATE_VECTORS], result[STATE_SUMS][STATE_VECTORS];
    Floats u[STATE_VECTORS], sums[STATE_VECTORS];
#pragma GCC unroll 4
    for (int s = 0; s < STATE_SUMS; s++)
#pragma GCC unroll 8
        for (int i = 0; i < STATE_VECTORS; i++) read[s][i] = result[s][i] = lanes_zero();
    int64_t d = 0;
    for (; d + STATE_SUMS <= keys; d += STATE_SUMS)
#pragma GCC unroll 4
        for (int s = 0; s < STATE_SUMS; s++)
            read_key(state + (d + s) * STATE_COLUMNS, read_k[d + s], read[s]);
    for (; d < keys; d++) read_key(state + d * STATE_COLUMNS, read_k[d], read[0]);
    add_partial_sums(read, sums);
#pragma GCC unroll 8
    for (int i = 0; i < STATE_VECTORS; i++)
        u[i] = lanes_mul(lanes_fma(sums[i], lanes_float(by_key ? -1.0f : -decay[0]),
                                   lanes_load_floats(v + i * LANES)),
                         lanes_float(beta));
    for (d = 0; d + STATE_SUMS <= keys; d += STATE_SUMS)
#pragma GCC unroll 4
        for (int s = 0; s < STATE_SUMS; s++)
            update_key(state + (d + s) * STATE_COLUMNS, k[d + s], q[d + s],
                       lanes_float(decay[by_key ? d + s : 0]), u, result[s]);
    for (; d < keys; d++)
        update_key(state + d * STATE_COLUMNS, k[d], q[d], lanes_float(decay[by_key ? d : 0]), u,
                   result[0]);
    add_partial_sums(result, sums);
#pragma GCC unroll 8
    for (int i = 0; i < STATE_VECTORS; i++) lanes_store(out + i * LANES, sums[i]);
}

/* STATE_COLUMNS columns of one head from `column` on; `workspace` has their state and, `by_key`,
 * the decays of a token and its k times these. */
INLINE void delta_columns(const bool by_key, const DeltaRule *rule, int64_t head, int64_t column,
                          float *workspace) {
    const int64_t keys = rule->key_dim, values = rule->value_dim;
    const int64_t key_head =
        rule->tiled ? head % rule->key_heads : head / (rule->heads / rule->key_heads);
    const size_t bytes =
        (size_t)at_most(STATE_COLUMNS, values - column) * sizeof(float);
    float *state = rule->state + head * keys * values + column;
    float one_decay, *decay = by_key ? workspace + keys * STATE_COLUMNS : &one_decay;
    float *products = by_key ? decay + keys : NULL;
    memset(workspace, 0, (size_t)(keys * STATE_COLUMNS) * sizeof(float));
    for (int64_t d = 0; d < keys; d++)
        memcpy(workspace + d * STATE_COLUMNS, state + d * values, bytes);
    for (int64_t token = 0; token < rule->tokens; token++) {
        const int64_t row = token * rule->heads + head;
        const int64_t key_row = token * rule->key_heads + key_head;
        const float *k = rule->k + key_row * keys;
        const float *log_decay = rule->log_decay + row * (by_key ? keys : 1);
        float v[STATE_COLUMNS] = {0}, out[STATE_COLUMNS];
        *decay = exp_of(*log_decay);
#pragma omp simd
        for (int64_t d = 0; d < (by_key ? keys : 0); d++) {
            decay[d] = exp_of(log_decay[d]);
            products[d] = k[d] * decay[d];
        }
        memcpy(v, rule->v + row * values + column, bytes);
        delta_token(by_key, rule->q + key_row * keys, k, by_key ? products : k, v, decay,
                    rule->beta[row], keys, workspace, out);
        memcpy(rule->out + row * values + column, out, bytes);
    }
    for (int64_t d = 0; d < keys; d++)
        memcpy(state + d * values, workspace + d * STATE_COLUMNS, bytes);
}

static void delta_rule(const DeltaRule *rule, int64_t head, int64_t column, float *workspace) {
    delta_columns(false, rule, head, column, workspace);
}

static void key_delta_rule(const DeltaRule *rule, int64_t head, int64_t column, float *workspace) {
    delta_columns(true, rule, head, column, workspace);
}
