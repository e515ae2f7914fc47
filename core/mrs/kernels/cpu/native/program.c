/* Interprets programs: a return to the interpreter of Python between the operations would be slow,
 * since the weights have evicted its memory from the caches. */
#include "program.h"

#include "bounds.h"
#include "dense/dense.h"
#include "recurrent/sequences.h"

#include <string.h>

#define PIECE_TOKENS 32 /* the rows of a piece are a multiple of this */

/* Some rows of a step in one program. */
typedef struct {
    const Program *program;
    const Step *step;
    const KVCache *cache, *index_cache;
    const Batch *batch;
    const Angles *angles;
    const StateBatch *states;
    float *given;
    int64_t first, rows;
    int threads;
} Rows;

/* The rows of a value. */
static float *at(const Rows *r, int64_t value) {
    if (value < 0) return NULL;
    const Place *place = &r->program->places[value];
    const int64_t tokens = r->step->tokens, start = r->first * place->width;
    switch ((Space)place->space) {
    case STREAM: return r->step->stream + start;
    case KEPT: return r->step->arena + place->offset * tokens + start;
    case PIECE: return r->step->arena + r->program->kept_floats * tokens + place->offset * r->rows;
    case GIVEN: return r->given + place->offset * tokens + start;
    default: return r->step->result + start;
    }
}

static int64_t width_of(const Rows *r, int64_t value) { return r->program->places[value].width; }

static int64_t values_of(const Rows *r, int64_t value) {
    return r->rows * width_of(r, value);
}

static bool project(const Rows *r, const Operation *o) {
    MatmulOperand operands[MAX_OPERANDS];
    for (int64_t i = 0; i < o->count; i++)
        operands[i] = (MatmulOperand){o->matrices[i], at(r, o->outs[i]), at(r, o->added)};
    if (!o->vector)
        return multiply_each(operands, (int)o->count, at(r, o->x), TYPE_F32, r->rows, r->threads);
    const Norm norm = {o->vector, (float)o->eps, at(r, o->normed)};
    return multiply_normed(operands, (int)o->count, norm, at(r, o->x), r->rows, r->threads);
}

static void normalize(const Rows *r, const Operation *o) {
    const RowNorm norm = {o->vector, o->bias, (float)o->eps, o->size, o->sets, o->is_centred != 0};
    normalize_rows(r->program->kernels, &norm, at(r, o->x), values_of(r, o->x) / o->size,
                   at(r, o->outs[0]), r->threads);
}

static void add_bias(const Rows *r, const Operation *o) {
    const int64_t width = r->program->places[o->x].width;
    float *x = at(r, o->x);
    for (int64_t row = 0; row < r->rows; row++, x += width)
        for (int64_t i = 0; i < width; i++) x[i] += o->vector[i];
}

static void rotate_rows(const Rows *r, const Operation *o) {
    const Angles *a = r->angles;
    const Rotation rotation = {o->heads, r->program->places[o->x].width / o->heads, a->pairs,
                               o->interleaved != 0};
    rotate_by(r->program->kernels, &rotation, at(r, o->x), a->cos, a->sin, a->positions, r->first,
              r->rows, r->threads);
}

static void clamp(float *x, int64_t count, float least, float most) {
    for (int64_t i = 0; i < count; i++) x[i] = x[i] < least ? least : x[i] > most ? most : x[i];
}

static bool attend(const Rows *r, const Operation *o) {
    const AttentionParams params = {.q = at(r, o->x),
                                    .out = at(r, o->outs[0]),
                                    .cache = r->cache,
                                    .batch = r->batch,
                                    .sinks = o->vector,
                                    .tokens = r->rows,
                                    .heads = o->heads,
                                    .kv_heads = o->kv_heads,
                                    .window = o->window,
                                    .scale = o->factor,
                                    .softcap = o->softcap,
                                    .chosen = (const int32_t *)at(r, o->y),
                                    .most_chosen = o->y < 0 ? 0 : width_of(r, o->y)};
    return attend_batch(r->program->kernels, &params, r->threads);
}

static bool choose(const Rows *r, const Operation *o) {
    const Choice choice = {.index = {.q = at(r, o->x),
                                     .cache = r->index_cache,
                                     .batch = r->batch,
                                     .tokens = r->rows,
                                     .heads = o->heads,
                                     .kv_heads = 1,
                                     .most_chosen = width_of(r, o->outs[0])},
                           .weights = at(r, o->y),
                           .chosen = (int32_t *)at(r, o->outs[0])};
    return choose_keys(r->program->kernels, &choice, r->threads);
}

static void write(const Rows *r, const Operation *o) {
    const KVCache *cache = o->is_index ? r->index_cache : r->cache;
    write_batch(r->program->kernels, cache, r->batch, at(r, o->x), at(r, o->y), o->kv_heads,
                r->threads);
}

static void activate_rows(const Rows *r, const Operation *o) {
    float *gate = at(r, o->x), *up = at(r, o->y);
    if (o->factor >= 0) clamp_gates(gate, up, (float)o->factor, values_of(r, o->x));
    mrs_gate(r->program->kernels, (int)o->activation, gate, up, values_of(r, o->x), r->threads);
}

static void add(float *x, const float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] += y[i];
}

static bool mix(const Rows *r, const Operation *o) {
    const Mixture mixture = {.x = at(r, o->x),
                             .choice = at(r, o->y),
                             .out = at(r, o->outs[0]),
                             .rows = at(r, o->outs[1]),
                             .hidden = at(r, o->outs[2]),
                             .order = (int32_t *)at(r, o->outs[3]),
                             .tokens = r->rows};
    return sum_experts(r->program->kernels, o->experts, &mixture, r->threads);
}

static void scale(float *x, float factor, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] *= factor;
}

static void split(const Rows *r, const Operation *o) {
    const int64_t width = width_of(r, o->x) / o->heads;
    const float *x = at(r, o->x);
    for (int64_t i = 0; i < o->count; i++) {
        const int64_t part = width_of(r, o->outs[i]) / o->heads;
        float *out = at(r, o->outs[i]);
        for (int64_t run = 0; run < r->rows * o->heads; run++)
            memcpy(out + run * part, x + run * width, (size_t)part * sizeof(float));
        x += part;
    }
}

static void join(const Rows *r, const Operation *o) {
    const int64_t runs = o->heads, width = width_of(r, o->x) / runs;
    const int64_t tail = width_of(r, o->outs[0]) / runs - width;
    const int64_t row_step = o->vector ? 0 : width_of(r, o->y);
    const int64_t run_step = o->vector || row_step > tail ? tail : 0;
    const float *x = at(r, o->x);
    float *out = at(r, o->outs[0]);
    for (int64_t row = 0; row < r->rows; row++) {
        const float *y = o->vector ? o->vector : at(r, o->y) + row * row_step;
        for (int64_t run = 0; run < runs; run++, x += width, y += run_step) {
            memcpy(out, x, (size_t)width * sizeof(float));
            memcpy(out + width, y, (size_t)tail * sizeof(float));
            out += width + tail;
        }
    }
}

/* x *= y, of which each value has `run` adjacent ones of x. */
static void multiply(float *x, const float *y, int64_t count, int64_t run) {
    for (int64_t i = 0; i < (run == 1 ? count : 0); i++) x[i] *= y[i];
    if (run == 1) return;
    for (int64_t i = 0; i < count; i++, x += run)
        for (int64_t j = 0; j < run; j++) x[j] *= y[i];
}

static void scale_each(const Rows *r, const Operation *o) {
    const int64_t width = width_of(r, o->x);
    for (int64_t row = 0; row < r->rows; row++)
        multiply(at(r, o->x) + row * width, o->vector, width / o->size, o->size);
}

static void multiply_small(const Rows *r, const Operation *o) {
    const int64_t heads = o->heads, depth = width_of(r, o->x) / heads;
    const int64_t results = width_of(r, o->outs[0]) / heads;
    const DenseProduct product = {.x = at(r, o->x),
                                  .weights = o->vector,
                                  .out = at(r, o->outs[0]),
                                  .type = o->type,
                                  .tokens = r->rows,
                                  .heads = heads,
                                  .depth = depth,
                                  .rows = results,
                                  .x_token_step = heads * depth,
                                  .x_head_step = depth,
                                  .head_step = results * depth,
                                  .row_step = o->is_transposed ? 1 : depth,
                                  .depth_step = o->is_transposed ? results : 1};
    mrs_multiply_dense(r->program->kernels, &product, r->threads);
}

static void convolve(const Rows *r, const Operation *o) {
    const int64_t channels = width_of(r, o->x);
    const Convolution convolution = {.x = at(r, o->x),
                                     .weight = o->vector,
                                     .bias = o->bias,
                                     .out = at(r, o->x),
                                     .channels = channels,
                                     .taps = o->size,
                                     .x_step = channels,
                                     .out_step = channels,
                                     .silu = o->activation == SILU};
    convolve_sequences(r->program->kernels, r->states, convolution, o->offset, r->threads);
}

static bool update_states(const Rows *r, const Operation *o) {
    const DeltaRule rule = {.q = at(r, o->x),
                            .k = at(r, o->y),
                            .v = at(r, o->others[0]),
                            .log_decay = at(r, o->others[1]),
                            .beta = at(r, o->others[2]),
                            .out = at(r, o->outs[0]),
                            .heads = o->heads,
                            .key_heads = o->kv_heads,
                            .key_dim = width_of(r, o->x) / o->kv_heads,
                            .value_dim = width_of(r, o->outs[0]) / o->heads,
                            .tiled = o->interleaved != 0};
    const bool by_key = width_of(r, o->others[1]) > o->heads;
    return update_sequences(r->program->kernels, r->states, rule, by_key, r->threads);
}

static void scan_states(const Rows *r, const Operation *o) {
    const int64_t values = width_of(r, o->x), weights = width_of(r, o->others[0]);
    const StateSpace space = {.x = at(r, o->x),
                              .b = at(r, o->others[0]),
                              .c = at(r, o->others[1]),
                              .times = at(r, o->others[2]),
                              .decay = o->vector,
                              .skip = o->bias,
                              .out = at(r, o->outs[0]),
                              .heads = o->heads,
                              .groups = o->kv_heads,
                              .head_dim = values / o->heads,
                              .state_dim = weights / o->kv_heads,
                              .x_step = values,
                              .b_step = weights,
                              .c_step = weights,
                              .decays = o->size};
    scan_sequences(r->program->kernels, r->states, space, r->threads);
}

static bool run(const Rows *r, const Operation *o) {
    const KernelTable *kernels = r->program->kernels;
    switch ((Kind)o->kind) {
    case PROJECT: return project(r, o);
    case NORMALIZE: normalize(r, o); return true;
    case ADD_BIAS: add_bias(r, o); return true;
    case ROTATE: rotate_rows(r, o); return true;
    case CLAMP:
        clamp(at(r, o->x), values_of(r, o->x), (float)o->least, (float)o->factor);
        return true;
    case WRITE: write(r, o); return true;
    case CHOOSE: return choose(r, o);
    case ATTEND: return attend(r, o);
    case ACTIVATE: activate_rows(r, o); return true;
    case ADD: add(at(r, o->x), at(r, o->y), values_of(r, o->x)); return true;
    case SCALE: scale(at(r, o->x), (float)o->factor, values_of(r, o->x)); return true;
    case EMBED:
        decode_matrix(o->matrices[0], r->step->ids + r->first, r->rows, TYPE_F32, at(r, o->x),
                      r->threads);
        return true;
    case ROUTE:
        mrs_route(kernels, o->routing, at(r, o->x), r->rows, at(r, o->outs[1]), at(r, o->outs[2]),
                  at(r, o->normed), at(r, o->outs[0]), r->threads);
        return true;
    case MIX: return mix(r, o);
    case WEIGH:
        weigh_rows(kernels, at(r, o->x), r->program->places[o->x].width, at(r, o->y),
                   r->program->places[o->y].width, o->vector, at(r, o->outs[0]), r->rows,
                   r->threads);
        return true;
    case SPLIT: split(r, o); return true;
    case JOIN: join(r, o); return true;
    case CUT_OFF:
        mrs_cut_off(at(r, o->x), r->rows, width_of(r, o->x), o->factor, r->threads);
        return true;
    case MULTIPLY:
        multiply(at(r, o->x), at(r, o->y), values_of(r, o->y),
                 width_of(r, o->x) / width_of(r, o->y));
        return true;
    case SCALE_EACH: scale_each(r, o); return true;
    case DENSE: multiply_small(r, o); return true;
    case CONVOLVE: convolve(r, o); return true;
    case DELTA_RULE: return update_states(r, o);
    case STATE_SPACE: scan_states(r, o); return true;
    case XIELU:
        activate_xielu(kernels, o->vector, at(r, o->x), values_of(r, o->x), r->threads);
        return true;
    }
    return false;
}

/* In pieces of equal size. */
static bool run_stretch(Rows *r, const Operation *first, const Operation *end,
                        int64_t piece_rows) {
    const int64_t tokens = r->step->tokens;
    if (!tokens) return true;
    const int64_t pieces = divide_up(tokens, piece_rows);
    const int64_t count = divide_up(divide_up(tokens, pieces), PIECE_TOKENS) * PIECE_TOKENS;
    for (r->first = 0; r->first < tokens; r->first += count) {
        r->rows = at_most(count, tokens - r->first);
        for (const Operation *o = first; o < end; o++)
            if (!run(r, o)) return false;
    }
    return true;
}

static bool run_program(Rows *r) {
    const Operation *first = r->program->operations;
    for (int64_t i = 0; i < r->program->stretch_count; i++) {
        const Stretch *stretch = &r->program->stretches[i];
        const Operation *end = r->program->operations + stretch->end;
        if (!run_stretch(r, first, end, stretch->piece_rows)) return false;
        first = end;
    }
    return true;
}

static Outcome check_angles(const Angles *angles, int64_t tokens) {
    if (angles->positions) return check_all(BAD_POSITION, angles->positions, tokens, angles->rows);
    if (angles->rows != tokens) return (Outcome){BAD_TOKENS, angles->rows, tokens};
    return done_if(true);
}

/* What programs read of a step; only an embedding reads tokens, and it is the first operation. */
static Outcome check_programs(const Program *const *programs, int64_t count, const Step *step) {
    Outcome outcome = done_if(true);
    const Angles *checked = NULL;
    for (int64_t i = 0; i < count && !outcome.code; i++) {
        const Operation *first = programs[i]->operations;
        const Angles *angles = step->angles[i];
        if (first->kind == EMBED)
            outcome = check_all(BAD_ROW, step->ids, step->tokens, first->matrices[0]->rows);
        if (!outcome.code && step->caches[i])
            outcome = check_step(step->caches[i], step->batches[i], step->tokens);
        if (!outcome.code && step->index_caches[i])
            outcome = check_step(step->index_caches[i], step->batches[i], step->tokens);
        if (!outcome.code && step->states[i])
            outcome = check_states(step->states[i], step->tokens);
        if (!outcome.code && angles && angles != checked)
            outcome = check_angles(angles, step->tokens);
        checked = angles;
    }
    return outcome;
}

/* The choice that a program attends to, unless it is made in it. */
static Outcome check_given_choice(const Rows *r) {
    if (!r->given) return done_if(true);
    const Program *p = r->program;
    const Operation *end = p->operations + p->stretches[p->stretch_count - 1].end;
    for (const Operation *o = p->operations; o < end && o->kind != CHOOSE; o++)
        if (o->kind == ATTEND && o->y >= 0)
            return check_chosen(r->batch, (const int32_t *)at(r, o->y), width_of(r, o->y));
    return done_if(true);
}

/* Runs programs one after another, from the stream or the ids of a step to its stream or result. */
EXPORT Outcome mrs_run(const Program *const *programs, int64_t count, const Step *step,
                       int threads) {
    Outcome outcome = check_programs(programs, count, step);
    bool is_allocated = true;
    for (int64_t i = 0; i < count && !outcome.code && is_allocated; i++) {
        Rows rows = {.program = programs[i],
                     .step = step,
                     .cache = step->caches[i],
                     .index_cache = step->index_caches[i],
                     .batch = step->batches[i],
                     .angles = step->angles[i],
                     .states = step->states[i],
                     .given = step->given[i],
                     .threads = threads};
        outcome = check_given_choice(&rows);
        if (!outcome.code) is_allocated = run_program(&rows);
    }
    return outcome.code ? outcome : done_if(is_allocated);
}
