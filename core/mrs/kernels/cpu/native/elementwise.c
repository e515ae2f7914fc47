/* The operations between matrix products: norm, activation and rotary embedding. */
#include "elementwise.h"

#include "runtime/threads.h"

#include <math.h>

typedef struct {
    const KernelTable *kernels;
    const RowNorm *norm;
    const float *x;
    float *out;
} NormalizeArgs;

static void normalize_task(void *data, int64_t first, int64_t end) {
    const NormalizeArgs *n = data;
    const RowNorm *norm = n->norm;
    const int64_t size = norm->size;
    for (int64_t row = first; row < end; row++) {
        const int64_t set = row % norm->sets * size;
        const float *weight = norm->weight ? norm->weight + set : NULL;
        const float *bias = norm->bias ? norm->bias + set : NULL;
        const float *x = n->x + row * size;
        if (norm->is_centred)
            n->kernels->normalize_layer(x, weight, bias, norm->eps, size, n->out + row * size);
        else
            n->kernels->normalize(x, weight, norm->eps, size, n->out + row * size);
    }
}

void normalize_rows(const KernelTable *kernels, const RowNorm *norm, const float *x, int64_t rows,
                    float *out, int threads) {
    NormalizeArgs args = {kernels, norm, x, out};
    run_tasks(threads_for(rows * norm->size, threads), rows, normalize_task, &args);
}

/* Root-mean-square norm of x (rows, size); the weights (size) may be NULL: ones. */
EXPORT void mrs_rms_norm(const KernelTable *kernels, const float *x, const float *weight, float eps,
                         int64_t rows, int64_t size, float *out, int threads) {
    const RowNorm norm = {weight, NULL, eps, size, 1, false};
    normalize_rows(kernels, &norm, x, rows, out, threads);
}

/* Layer norm of x (rows, size); `sets` of weights and biases (sets, size) serve the rows in turn,
 * and may be NULL. */
EXPORT void mrs_layer_norm(const KernelTable *kernels, const float *x, const float *weight,
                           const float *bias, float eps, int64_t rows, int64_t size, int64_t sets,
                           float *out, int threads) {
    const RowNorm norm = {weight, bias, eps, size, sets, true};
    normalize_rows(kernels, &norm, x, rows, out, threads);
}

#define GATE_VALUES 1024 /* of a task */

typedef struct {
    const KernelTable *kernels;
    Activation activation;
    float *gate;
    const float *up;
    int64_t size;
} GateArgs;

static void activate_task(void *data, int64_t first, int64_t end) {
    const GateArgs *a = data;
    float ones[GATE_VALUES];
    for (int i = 0; i < GATE_VALUES && !a->up; i++) ones[i] = 1;
    for (int64_t start = first * GATE_VALUES; first < end; first++, start += GATE_VALUES)
        a->kernels->activate(a->activation, a->gate + start, a->up ? a->up + start : ones,
                             at_most(GATE_VALUES, a->size - start));
}

/* gate = activation(gate) * up, (size) each; `up` may be NULL: ones. */
EXPORT void mrs_gate(const KernelTable *kernels, int activation, float *gate, const float *up,
                     int64_t size, int threads) {
    GateArgs args = {kernels, (Activation)activation, gate, up, size};
    int64_t tasks = (size + GATE_VALUES - 1) / GATE_VALUES;
    run_tasks(threads_for(size, threads), tasks, activate_task, &args);
}

void clamp_gates(float *gate, float *up, float bound, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        gate[i] = gate[i] > bound ? bound : gate[i];
        up[i] = 1 + (up[i] < -bound ? -bound : up[i] > bound ? bound : up[i]);
    }
}

typedef struct {
    const KernelTable *kernels;
    const float *parameters;
    float *x;
    int64_t size;
} XieluArgs;

static void xielu_task(void *data, int64_t first, int64_t end) {
    const XieluArgs *a = data;
    for (int64_t start = first * GATE_VALUES; first < end; first++, start += GATE_VALUES)
        a->kernels->xielu(a->parameters, a->x + start, at_most(GATE_VALUES, a->size - start));
}

void activate_xielu(const KernelTable *kernels, const float *parameters, float *x, int64_t size,
                    int threads) {
    XieluArgs args = {kernels, parameters, x, size};
    run_tasks(threads_for(size, threads), divide_up(size, GATE_VALUES), xielu_task, &args);
}

/* x = xIELU(x), by four parameters; see elementwise.inc.h. */
EXPORT void mrs_xielu(const KernelTable *kernels, const float *parameters, float *x, int64_t size,
                      int threads) {
    activate_xielu(kernels, parameters, x, size, threads);
}

typedef struct {
    float *x;
    int64_t size;
    double deviations;
} CutArgs;

static void cut_off_task(void *data, int64_t first, int64_t end) {
    const CutArgs *a = data;
    for (float *x = a->x + first * a->size; first < end; first++, x += a->size) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < a->size; i++) sum += x[i];
        const double mean = sum / (double)a->size;
        for (int64_t i = 0; i < a->size; i++) squares += (x[i] - mean) * (x[i] - mean);
        const float cut = (float)(mean + a->deviations * sqrt(squares / (double)a->size));
        for (int64_t i = 0; i < a->size; i++) x[i] = x[i] < cut ? 0 : x[i] - cut;
    }
}

EXPORT void mrs_cut_off(float *x, int64_t rows, int64_t size, double deviations, int threads) {
    CutArgs args = {x, size, deviations};
    run_tasks(threads_for(rows * size, threads), rows, cut_off_task, &args);
}

typedef struct {
    const KernelTable *kernels;
    const Rotation *rotation;
    const float *x, *cos, *sin;
    const int64_t *positions;
    float *out;
} RotateArgs;

static void rotate_task(void *data, int64_t first, int64_t end) {
    const RotateArgs *r = data;
    const int64_t pairs = r->rotation->pairs, width = r->rotation->heads * r->rotation->head_dim;
    for (int64_t token = first; token < end; token++) {
        const int64_t angle = (r->positions ? r->positions[token] : token) * pairs;
        r->kernels->rotate(r->rotation, r->x + token * width, r->cos + angle, r->sin + angle,
                           r->out + token * width);
    }
}

static void rotate_tokens(const RotateArgs *args, int64_t tokens, int threads) {
    const int64_t values = tokens * args->rotation->heads * args->rotation->head_dim;
    run_tasks(threads_for(values, threads), tokens, rotate_task, (void *)args);
}

void rotate_by(const KernelTable *kernels, const Rotation *rotation, float *x, const float *cos,
               const float *sin, const int64_t *positions, int64_t first, int64_t rows,
               int threads) {
    const int64_t angle = positions ? 0 : first * rotation->pairs;
    const RotateArgs args = {kernels,     rotation, x, cos + angle, sin + angle,
                             positions ? positions + first : NULL, x};
    rotate_tokens(&args, rows, threads);
}

/* Rotates x (tokens, heads, head_dim) by the angles of each token, cos and sin (tokens, pairs). */
EXPORT void mrs_rotate(const KernelTable *kernels, const float *x, const float *cos,
                       const float *sin, int64_t tokens, int64_t heads, int64_t head_dim,
                       int64_t pairs, int interleaved, float *out, int threads) {
    const Rotation rotation = {heads, head_dim, pairs, interleaved != 0};
    const RotateArgs args = {kernels, &rotation, x, cos, sin, NULL, out};
    rotate_tokens(&args, tokens, threads);
}
