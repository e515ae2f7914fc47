/* Interprets programs: a return to the interpreter of Python between the operations would be slow,
 * since the weights have evicted its memory from the caches. */
#include "program.h"

#include "bounds.h"

#define PIECE_TOKENS 32 /* the rows of a piece are a multiple of this */

/* Some rows of a step in one program. */
typedef struct {
    const Program *program;
    const Step *step;
    const KVCache *cache;
    const Batch *batch;
    const Angles *angles;
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
    default: return r->step->result + start;
    }
}

static int64_t values_of(const Rows *r, int64_t value) {
    return r->rows * r->program->places[value].width;
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

static void normalize_rows(const Rows *r, const Operation *o) {
    mrs_rms_norm(r->program->kernels, at(r, o->x), o->vector, (float)o->eps,
                 values_of(r, o->x) / o->size, o->size, at(r, o->outs[0]), r->threads);
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

static void clamp(float *x, int64_t count, float bound) {
    for (int64_t i = 0; i < count; i++)
        x[i] = x[i] < -bound ? -bound : x[i] > bound ? bound : x[i];
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
                                    .softcap = o->softcap};
    return attend_batch(r->program->kernels, &params, r->threads);
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

static bool run(const Rows *r, const Operation *o) {
    const KernelTable *kernels = r->program->kernels;
    switch ((Kind)o->kind) {
    case PROJECT: return project(r, o);
    case NORMALIZE: normalize_rows(r, o); return true;
    case ADD_BIAS: add_bias(r, o); return true;
    case ROTATE: rotate_rows(r, o); return true;
    case CLAMP: clamp(at(r, o->x), values_of(r, o->x), (float)o->factor); return true;
    case WRITE:
        write_batch(kernels, r->cache, r->batch, at(r, o->x), at(r, o->y), o->kv_heads, r->threads);
        return true;
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
        if (!outcome.code && angles && angles != checked)
            outcome = check_angles(angles, step->tokens);
        checked = angles;
    }
    return outcome;
}

/* Runs programs one after another, from the stream or the ids of a step to its stream or result. */
EXPORT Outcome mrs_run(const Program *const *programs, int64_t count, const Step *step,
                       int threads) {
    const Outcome outcome = check_programs(programs, count, step);
    bool is_allocated = true;
    for (int64_t i = 0; i < count && !outcome.code && is_allocated; i++) {
        Rows rows = {.program = programs[i],
                     .step = step,
                     .cache = step->caches[i],
                     .batch = step->batches[i],
                     .angles = step->angles[i],
                     .threads = threads};
        is_allocated = run_program(&rows);
    }
    return outcome.code ? outcome : done_if(is_allocated);
}
