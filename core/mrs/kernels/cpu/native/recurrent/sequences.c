#include "recurrent/sequences.h"

static int64_t tokens_of(const StateBatch *batch, int64_t sequence) {
    return batch->starts[sequence + 1] - batch->starts[sequence];
}

void convolve_sequences(const KernelTable *kernels, const StateBatch *batch,
                        Convolution convolution, int64_t first, int threads) {
    for (int64_t i = 0; i < batch->sequences; i++) {
        Convolution one = convolution;
        one.x += batch->starts[i] * one.x_step;
        one.out += batch->starts[i] * one.out_step;
        one.tokens = tokens_of(batch, i);
        one.recent = batch->recent[i] + first * (one.taps - 1);
        mrs_convolve(kernels, &one, threads);
    }
}

bool update_sequences(const KernelTable *kernels, const StateBatch *batch, DeltaRule rule,
                      bool by_key, int threads) {
    const int64_t keys = rule.key_heads * rule.key_dim, values = rule.heads * rule.value_dim;
    const int64_t decays = rule.heads * (by_key ? rule.key_dim : 1);
    for (int64_t i = 0; i < batch->sequences; i++) {
        const int64_t start = batch->starts[i];
        DeltaRule one = rule;
        one.q += start * keys;
        one.k += start * keys;
        one.v += start * values;
        one.log_decay += start * decays;
        one.beta += start * rule.heads;
        one.out += start * values;
        one.tokens = tokens_of(batch, i);
        one.state = batch->state[i];
        if (!(by_key ? run_key_delta_rule : run_delta_rule)(kernels, &one, threads)) return false;
    }
    return true;
}

void scan_sequences(const KernelTable *kernels, const StateBatch *batch, StateSpace space,
                    int threads) {
    for (int64_t i = 0; i < batch->sequences; i++) {
        const int64_t start = batch->starts[i];
        StateSpace one = space;
        one.x += start * one.x_step;
        one.b += start * one.b_step;
        one.c += start * one.c_step;
        one.times += start * one.heads;
        one.out += start * one.heads * one.head_dim;
        one.tokens = tokens_of(batch, i);
        one.state = batch->state[i];
        mrs_state_space(kernels, &one, threads);
    }
}
