/* What Python calls for the small steps between matrix products. */
#include "layer.h"

#include "scratch.h"
#include "threads.h"

/* Below this many numbers a region of several threads costs more than it saves. */
#define LEAST_NUMBERS 32768

static int threads_for(int64_t numbers, int threads) {
    return numbers < LEAST_NUMBERS ? 1 : threads;
}

typedef struct {
    const Path *path;
    const float *x, *weight;
    float *out, eps;
    int64_t size;
} Normalizing;

static void normalize_task(void *data, int64_t first, int64_t end) {
    const Normalizing *n = data;
    for (int64_t row = first; row < end; row++)
        n->path->normalize(n->x + row * n->size, n->weight, n->eps, n->size,
                           n->out + row * n->size);
}

/* Root-mean-square norm of `rows` rows of `size` numbers. */
EXPORT void mrs_rms_norm(const Path *path, const float *x, const float *weight, float eps,
                         int64_t rows, int64_t size, float *out, int threads) {
    Normalizing normalizing = {path, x, weight, out, eps, size};
    run_tasks(threads_for(rows * size, threads), rows, normalize_task, &normalizing);
}

#define ACTIVATE_NUMBERS 1024

typedef struct {
    const Path *path;
    Activation activation;
    float *gate;
    const float *up;
    int64_t size;
} Activating;

static void activate_task(void *data, int64_t first, int64_t end) {
    const Activating *a = data;
    int64_t start = first * ACTIVATE_NUMBERS, stop = end * ACTIVATE_NUMBERS;
    stop = stop < a->size ? stop : a->size;
    a->path->activate(a->activation, a->gate + start, a->up + start, stop - start);
}

/* gate = activation(gate) * up, `size` numbers. */
EXPORT void mrs_gate(const Path *path, int activation, float *gate, const float *up, int64_t size,
                     int threads) {
    Activating activating = {path, (Activation)activation, gate, up, size};
    int64_t tasks = (size + ACTIVATE_NUMBERS - 1) / ACTIVATE_NUMBERS;
    run_tasks(threads_for(size, threads), tasks, activate_task, &activating);
}

typedef struct {
    const Path *path;
    Rotation rotation;
    const float *x, *cos, *sin;
    float *out;
} Rotating;

static void rotate_task(void *data, int64_t first, int64_t end) {
    const Rotating *r = data;
    for (int64_t token = first; token < end; token++) {
        int64_t place = token * r->rotation.heads * r->rotation.head_dim;
        int64_t angle = token * r->rotation.pairs;
        r->path->rotate(&r->rotation, r->x + place, r->cos + angle, r->sin + angle,
                        r->out + place);
    }
}

/* Turns x (tokens, heads, head_dim) by the angles (tokens, pairs) of each token. */
EXPORT void mrs_rotate(const Path *path, const float *x, const float *cos, const float *sin,
                       int64_t tokens, int64_t heads, int64_t head_dim, int64_t pairs,
                       int interleaved, float *out, int threads) {
    Rotating rotating = {path, {heads, head_dim, pairs, interleaved != 0}, x, cos, sin, out};
    int used = threads_for(tokens * heads * head_dim, threads);
    run_tasks(used, tokens, rotate_task, &rotating);
}

typedef struct {
    const Path *path;
    const Attending *attending;
    _Atomic bool failed;
} AttendingTokens;

/* Tasks are numbered head by head of keys, so that what a task reads stays in the caches. */
static void attend_task(void *data, int64_t first, int64_t end) {
    AttendingTokens *tokens = data;
    const Attending *a = tokens->attending;
    const int64_t score_bytes = 8 * a->keys * (int64_t)sizeof(float);
    float *scores = take_scratch(score_bytes);
    if (!scores) tokens->failed = true;
    for (int64_t index = first; scores && index < end; index++) {
        int64_t token = index % a->tokens, own = a->keys - a->tokens + token;
        int64_t last = a->last_seen ? a->last_seen[token] : own;
        Sight sight = {.attending = a,
                       .q = a->q + token * a->heads * a->key_dim,
                       .out = a->out + token * a->heads * a->value_dim,
                       .first = a->window && own >= a->window ? own - a->window + 1 : 0};
        sight.count = last - sight.first + 1;
        tokens->path->attend(&sight, index / a->tokens, scores);
    }
    give_scratch(scores, score_bytes);
}

/* Queries that share a head of keys. */
static int64_t rows_of(const Attending *a) { return a->tokens * a->heads / a->kv_heads; }

/* The same for blocks of rows, numbered head by head of keys, too. */
static void attend_rows_task(void *data, int64_t first, int64_t end) {
    AttendingTokens *tokens = data;
    const Attending *a = tokens->attending;
    const Path *path = tokens->path;
    const int64_t rows = rows_of(a), blocks = divide_up(rows, path->rows);
    const int64_t room_bytes = path->row_block_bytes(a);
    void *room = take_scratch(room_bytes);
    if (!room) tokens->failed = true;
    for (int64_t index = first; room && index < end; index++) {
        int64_t row = index % blocks * path->rows;
        path->attend_rows(a, index / blocks, row, at_most(path->rows, rows - row), room);
    }
    give_scratch(room, room_bytes);
}

/* Attention of new tokens over a cache that holds them; false when memory is missing. */
EXPORT bool mrs_attend(const Path *path, const Attending *a, int threads) {
    AttendingTokens tokens = {path, a, false};
    const int64_t rows = rows_of(a);
    /* A block that is filled by half is as fast as its rows one by one. */
    if (a->tokens > 1 && rows >= path->rows / 2) {
        run_tasks(threads, a->kv_heads * divide_up(rows, path->rows), attend_rows_task, &tokens);
        return !tokens.failed;
    }
    int64_t seen = a->window && a->window < a->keys ? a->window : a->keys;
    int64_t numbers = a->tokens * a->kv_heads * seen * (a->key_dim + a->value_dim);
    run_tasks(threads_for(numbers, threads), a->tokens * a->kv_heads, attend_task, &tokens);
    return !tokens.failed;
}
