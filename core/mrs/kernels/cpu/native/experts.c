/* Mixtures of experts. Experts are computed one after another, each for all of its tokens, so that
 * its weights are read once, by all threads. */
#include "experts.h"

#include <math.h>
#include <string.h>

#include "dense/dense.h"
#include "elementwise.h"
#include "exponential.h"
#include "runtime/threads.h"

/* Products of x (tokens, depth) with each row of `weight` (rows, depth): out (tokens, rows). */
static void multiply_rows(const KernelTable *kernels, const float *x, int64_t tokens, int64_t depth,
                          const float *weight, int64_t rows, float *out, int threads) {
    const DenseProduct product = {.x = x,
                                  .weights = weight,
                                  .out = out,
                                  .type = TYPE_F32,
                                  .tokens = tokens,
                                  .heads = 1,
                                  .depth = depth,
                                  .rows = rows,
                                  .x_token_step = depth,
                                  .x_head_step = depth,
                                  .head_step = rows * depth,
                                  .row_step = depth,
                                  .depth_step = 1};
    mrs_multiply_dense(kernels, &product, threads);
}

static void softmax(float *x, int64_t count) {
    float most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) most = x[i] > most ? x[i] : most;
    for (int64_t i = 0; i < count; i++) x[i] = exp_of(x[i] - most);
    for (int64_t i = 0; i < count; i++) sum += x[i];
    for (int64_t i = 0; i < count; i++) x[i] /= sum;
}

/* A rank is never NaN, which marks what is taken: broken scores still give experts that exist, and
 * no two equal ones. */
static float rank_of(float score) { return isnan(score) ? -INFINITY : score; }

/* The place of the largest of some ranks that are not taken, which is taken now. */
static int64_t take_largest(float *ranks, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(ranks[i]) && (best < 0 || ranks[i] > ranks[best])) best = i;
    ranks[best] = NAN;
    return best;
}

/* Leaves only experts of the best groups in ranks (experts), which has room after them. */
static void leave_groups(const Routing *r, float *ranks) {
    const int64_t size = r->experts / r->groups;
    float *some = ranks + r->experts, *scores = some + size;
    for (int64_t g = 0; g < r->groups; g++) {
        float score = 0;
        memcpy(some, ranks + g * size, (size_t)size * sizeof *some);
        for (int64_t i = 0; i < r->group_experts; i++)
            score += ranks[g * size + take_largest(some, size)];
        scores[g] = rank_of(score);
    }
    for (int64_t i = 0; i < r->top_groups; i++) take_largest(scores, r->groups);
    for (int64_t i = 0; i < r->experts; i++)
        if (!isnan(scores[i / size])) ranks[i] = -INFINITY;
}

static void choose(const Routing *r, const float *scores, float *ranks, float *choice) {
    int32_t *experts = (int32_t *)choice;
    float *weights = choice + r->top_k, sum = 0;
    for (int64_t i = 0; i < r->experts; i++)
        ranks[i] = rank_of(r->correction ? scores[i] + r->correction[i] : scores[i]);
    if (r->top_groups < r->groups) leave_groups(r, ranks);
    for (int64_t i = 0; i < r->top_k; i++) {
        experts[i] = (int32_t)take_largest(ranks, r->experts);
        weights[i] = scores[experts[i]];
        sum += weights[i];
    }
    for (int64_t i = 0; i < r->top_k; i++) {
        if (r->normalizes) weights[i] /= sum;
        if (r->expert_scale) weights[i] *= r->expert_scale[experts[i]];
        weights[i] *= (float)r->scale;
    }
}

/* The softmax of an expert over those that are not taken and have a similar score. */
static float weight_among(const Routing *r, const float *scores, const float *ranks,
                          int64_t expert) {
    const float best = scores[expert], most = (float)(2 * r->jitter);
    float sum = 0;
    for (int64_t i = 0; i < r->experts; i++) {
        const float size = fabsf(scores[i]), distance = best - scores[i];
        const bool is_left = i == expert || !isnan(ranks[i]);
        if (is_left && !(distance / (size > best ? size : best) > most)) sum += exp_of(-distance);
    }
    return 1 / sum;
}

static void choose_one_by_one(const Routing *r, const float *scores, float *ranks, float *choice) {
    int32_t *experts = (int32_t *)choice;
    for (int64_t i = 0; i < r->experts; i++) ranks[i] = rank_of(scores[i]);
    for (int64_t i = 0; i < r->top_k; i++) {
        experts[i] = (int32_t)take_largest(ranks, r->experts);
        choice[r->top_k + i] = weight_among(r, scores, ranks, experts[i]);
    }
}

typedef struct {
    const Routing *routing;
    float *scores, *ranks, *choice;
} RouteArgs;

static void route_task(void *data, int64_t first, int64_t end) {
    const RouteArgs *a = data;
    const Routing *r = a->routing;
    const int64_t room = r->top_groups < r->groups ? r->experts / r->groups + r->groups : 0;
    for (int64_t token = first; token < end; token++) {
        float *scores = a->scores + token * r->experts;
        float *ranks = a->ranks + token * (r->experts + room);
        if (r->scoring == BY_SOFTMAX) softmax(scores, r->experts);
        (r->scoring == ONE_BY_ONE ? choose_one_by_one : choose)(r, scores, ranks,
                                                                a->choice + token * 2 * r->top_k);
    }
}

EXPORT void mrs_route(const KernelTable *kernels, const Routing *routing, const float *x,
                      int64_t tokens, float *scores, float *ranks, float *normed, float *choice,
                      int threads) {
    const int64_t experts = routing->experts, hidden = routing->hidden;
    if (routing->input_norm) {
        mrs_rms_norm(kernels, x, routing->input_norm, (float)routing->eps, tokens, hidden, normed,
                     threads);
        x = normed;
    }
    multiply_rows(kernels, x, tokens, hidden, routing->weight, experts, scores, threads);
    for (int64_t i = 0; routing->bias && i < tokens * experts; i++)
        scores[i] += routing->bias[i % experts];
    if (routing->scoring == BY_SIGMOID)
        mrs_gate(kernels, SIGMOID, scores, NULL, tokens * experts, threads);
    RouteArgs args = {routing, scores, ranks, choice};
    run_tasks(threads_for(tokens * experts * routing->top_k, threads), tokens, route_task, &args);
}

/* One expert and its tokens. */
typedef struct {
    const KernelTable *kernels;
    const Experts *experts;
    const Mixture *mixture;
    const int32_t *pairs; /* (count) of a token and an expert: numbers of weights in the choice */
    float *made;          /* (count, width), which may be the rows of the mixture */
    int64_t expert, count;
} Turn;

enum { GATE, UP, DOWN, PARTS };

static const Matrix *matrix_of(const Turn *t, int part) {
    return t->experts->matrices[t->expert * PARTS + part];
}

static const float *bias_of(const Turn *t, int part) {
    return t->experts->biases ? t->experts->biases[t->expert * PARTS + part] : NULL;
}

static int64_t token_of(const Turn *t, int64_t row) { return t->pairs[row] / t->experts->top_k; }

static float weight_of(const Turn *t, int64_t row) {
    const int64_t top_k = t->experts->top_k, pair = t->pairs[row];
    return t->mixture->choice[pair / top_k * 2 * top_k + top_k + pair % top_k];
}

/* The first hidden value of a row, of the gates or else the ups, which follow the gates. */
static float *hidden_of(const Turn *t, int part, int64_t row) {
    const int64_t before = part == UP && matrix_of(t, GATE) ? t->count : 0;
    return t->mixture->hidden + (before + row) * t->experts->intermediate;
}

static void gather_task(void *data, int64_t first, int64_t end) {
    const Turn *t = data;
    const int64_t width = t->experts->width;
    for (int64_t row = first; row < end; row++) {
        const float *x = t->mixture->x + token_of(t, row) * width, weight = weight_of(t, row);
        float *out = t->mixture->rows + row * width;
        if (t->experts->weighs_input)
            for (int64_t i = 0; i < width; i++) out[i] = x[i] * weight;
        else memcpy(out, x, (size_t)width * sizeof *out);
    }
}

static void add_to(float *x, const float *added, int64_t size) {
    for (int64_t i = 0; added && i < size; i++) x[i] += added[i];
}

static void activate_task(void *data, int64_t first, int64_t end) {
    const Turn *t = data;
    const Experts *e = t->experts;
    const bool is_gated = matrix_of(t, GATE) != NULL;
    for (int64_t row = first; row < end; row++) {
        float *up = hidden_of(t, UP, row), *gate = is_gated ? hidden_of(t, GATE, row) : up;
        if (is_gated) add_to(gate, bias_of(t, GATE), e->intermediate);
        add_to(up, bias_of(t, UP), e->intermediate);
        if (e->bound >= 0) clamp_gates(gate, up, (float)e->bound, e->intermediate);
        mrs_gate(t->kernels, (int)e->activation, gate, is_gated ? up : NULL, e->intermediate, 1);
    }
}

static void sum_task(void *data, int64_t first, int64_t end) {
    const Turn *t = data;
    const int64_t width = t->experts->width;
    for (int64_t row = first; row < end; row++) {
        const float weight = t->experts->weighs_input ? 1 : weight_of(t, row);
        float *made = t->made + row * width;
        float *out = t->mixture->out + token_of(t, row) * width;
        add_to(made, bias_of(t, DOWN), width);
        for (int64_t i = 0; i < width; i++) out[i] += made[i] * weight;
    }
}

/* Computes what it has made of its tokens, without the last bias. */
static bool run_expert(Turn *t, int threads) {
    const Mixture *m = t->mixture;
    const int64_t width = t->experts->width;
    const bool has_all = t->count == m->tokens && !t->experts->weighs_input;
    const int few = threads_for(t->count * width, threads);
    MatmulOperand into[2];
    int count = 0;
    for (int part = GATE; part <= UP; part++)
        if (matrix_of(t, part))
            into[count++] = (MatmulOperand){matrix_of(t, part), hidden_of(t, part, 0), NULL};
    const MatmulOperand out = {matrix_of(t, DOWN), t->made, NULL};
    if (!has_all) run_tasks(few, t->count, gather_task, t);
    if (!multiply_each(into, count, has_all ? m->x : m->rows, TYPE_F32, t->count, threads))
        return false;
    run_tasks(threads_for(t->count * t->experts->intermediate, threads), t->count, activate_task, t);
    return multiply_each(&out, 1, m->hidden, TYPE_F32, t->count, threads);
}

static void add_expert(Turn *t, int threads) {
    run_tasks(threads_for(t->count * t->experts->width, threads), t->count, sum_task, t);
}

/* The pairs of a token and an expert, those of the first expert first, and of each expert those of
 * the first token first. Returns where those of each expert end. */
static const int32_t *sort_pairs(const Experts *e, const Mixture *m) {
    int32_t *ends = m->order + m->tokens * e->top_k, before = 0;
    memset(ends, 0, (size_t)e->count * sizeof *ends);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t token = 0; token < m->tokens; token++) {
            const int32_t *experts = (const int32_t *)(m->choice + token * 2 * e->top_k);
            for (int64_t i = 0; i < e->top_k; i++) {
                if (pass) m->order[ends[experts[i]]] = (int32_t)(token * e->top_k + i);
                ends[experts[i]]++;
            }
        }
        for (int64_t i = 0; !pass && i < e->count; i++) {
            const int32_t count = ends[i];
            ends[i] = before;
            before += count;
        }
    }
    return ends;
}

/* The turn of an expert; `ends` are those of `sort_pairs`. */
static Turn turn_of(const KernelTable *kernels, const Experts *experts, const Mixture *mixture,
                    const int32_t *ends, int64_t expert) {
    const int64_t first = expert ? ends[expert - 1] : 0;
    return (Turn){kernels,       experts, mixture,        mixture->order + first,
                  mixture->rows, expert,  ends[expert] - first};
}

/* Those in memory may compute while others are read, if there is room for what all of them make:
 * the sums are in the order of their numbers all the same. */
static bool sum_fetched(const KernelTable *kernels, const Experts *experts, const Mixture *mixture,
                        const int32_t *ends, int threads) {
    int32_t *turns = experts->room;
    float *made = (float *)(turns + experts->count);
    const int64_t values = mixture->tokens * experts->top_k * experts->width;
    const int64_t room = experts->room_bytes - experts->count * (int64_t)sizeof *turns;
    const bool keeps = values <= room / (int64_t)sizeof *made;
    const Fetch fetch = (Fetch)(uintptr_t)experts->fetch;
    int64_t count = 0;
    for (int64_t i = 0; i < experts->count; i++)
        if (turn_of(kernels, experts, mixture, ends, i).count) turns[count++] = (int32_t)i;
    for (int64_t i = 0; i < count; i++) {
        if (!fetch(experts->layer, turns, count, i, keeps)) return false;
        Turn turn = turn_of(kernels, experts, mixture, ends, turns[i]);
        if (keeps) turn.made = made + (turn.pairs - mixture->order) * experts->width;
        if (!run_expert(&turn, threads)) return false;
        if (!keeps) add_expert(&turn, threads);
    }
    for (int64_t i = 0; keeps && i < experts->count; i++) {
        Turn turn = turn_of(kernels, experts, mixture, ends, i);
        turn.made = made + (turn.pairs - mixture->order) * experts->width;
        if (turn.count) add_expert(&turn, threads);
    }
    return true;
}

bool sum_experts(const KernelTable *kernels, const Experts *experts, const Mixture *mixture,
                 int threads) {
    const int32_t *ends = sort_pairs(experts, mixture);
    memset(mixture->out, 0, (size_t)(mixture->tokens * experts->width) * sizeof(float));
    if (experts->fetch) return sum_fetched(kernels, experts, mixture, ends, threads);
    for (int64_t i = 0; i < experts->count; i++) {
        Turn turn = turn_of(kernels, experts, mixture, ends, i);
        if (!turn.count) continue;
        if (!run_expert(&turn, threads)) return false;
        add_expert(&turn, threads);
    }
    return true;
}

void weigh_rows(const KernelTable *kernels, float *x, int64_t width, const float *y, int64_t depth,
                const float *weight, float *gate, int64_t rows, int threads) {
    multiply_rows(kernels, y, rows, depth, weight, 1, gate, threads);
    mrs_gate(kernels, SIGMOID, gate, NULL, rows, threads);
    for (int64_t row = 0; row < rows; row++, x += width)
        for (int64_t i = 0; i < width; i++) x[i] *= gate[row];
}
