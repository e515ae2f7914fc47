/* The choice of the keys that a token attends to, by the scores of an indexer.
 *
 * Of keys with the same score those at lower positions are chosen. Each score and each choice is
 * computed by one thread, in an order that depends on nothing but the token's sequence.
 */
#include <string.h>

#include "attention/attention.h"
#include "runtime/scratch.h"
#include "runtime/threads.h"

#define PIECE_ROWS 32  /* rows of a sequence whose scores are in memory */
#define PART_KEYS 1024 /* of a task, a multiple of STEP_KEYS */
#define DIGITS 256

typedef struct {
    const KernelTable *kernels;
    const Choice *choice;
    SequenceQueries queries;
    int64_t first, rows; /* of the sequence's new tokens */
    float *scores;       /* (rows, context) */
    _Atomic bool failed;
} Piece;

/* The last position that row `i` of a piece attends to. */
static int64_t last_of(const Piece *p, int64_t i) {
    const SequenceQueries *q = &p->queries;
    const int64_t token = p->first + i;
    return last_key(q->params, q->row + token, q->context - q->tokens + token);
}

static void score_task(void *data, int64_t first, int64_t end) {
    Piece *p = data;
    const AttentionParams *a = p->queries.params;
    const int64_t parts = divide_up(p->queries.context, PART_KEYS), dim = a->cache->keys.dim;
    const int64_t bytes = TASK_HEADS * (dim + STEP_KEYS) * (int64_t)sizeof(float);
    float *workspace = scratch_alloc(bytes);
    if (!workspace) p->failed = true;
    for (int64_t task = first; task < end && workspace; task++) {
        const int64_t row = task / parts, key = task % parts * PART_KEYS;
        const int64_t token = p->queries.row + p->first + row, last = last_of(p, row);
        if (key > last) continue;
        const Query query = {.queries = &p->queries,
                             .q = a->q + token * a->heads * dim,
                             .first = key,
                             .last = at_most(last, key + PART_KEYS - 1)};
        p->kernels->index_scores(&query, p->choice->weights + token * a->heads,
                                 p->scores + row * p->queries.context + key, workspace);
    }
    scratch_free(workspace, bytes);
}

/* A number that is larger for a larger score. */
static uint32_t rank_of(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The rank of the `wanted`-th best of some scores, and in `same` how many of that rank are among
 * them: found digit by digit. */
static uint32_t least_rank(const float *scores, int64_t count, int64_t wanted, int64_t *same) {
    uint32_t rank = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t counts[DIGITS] = {0};
        for (int64_t i = 0; i < count; i++) {
            const uint32_t own = rank_of(scores[i]);
            counts[own >> shift & (DIGITS - 1)] += (own & known) == rank;
        }
        int digit = DIGITS - 1;
        for (; digit > 0 && counts[digit] < wanted; digit--) wanted -= counts[digit];
        rank |= (uint32_t)digit << shift;
        known |= (uint32_t)(DIGITS - 1) << shift;
    }
    *same = wanted;
    return rank;
}

static void choose_task(void *data, int64_t first, int64_t end) {
    const Piece *p = data;
    const int64_t most = p->queries.params->most_chosen;
    for (int64_t row = first; row < end; row++) {
        const int64_t count = last_of(p, row) + 1;
        int32_t *chosen = p->choice->chosen + (p->queries.row + p->first + row) * most;
        const float *scores = p->scores + row * p->queries.context;
        int64_t same = count;
        const uint32_t least = count > most ? least_rank(scores, count, most, &same) : 0;
        for (int64_t i = 0, chosen_count = 0; i < count && chosen_count < most; i++) {
            const uint32_t rank = count > most ? rank_of(scores[i]) : 0;
            if (rank > least || (rank == least && same-- > 0))
                chosen[chosen_count++] = (int32_t)i;
        }
    }
}

/* The choices of a sequence with more keys than are chosen. */
static bool choose_in_sequence(Piece *p, int threads) {
    const SequenceQueries *q = &p->queries;
    const int64_t most_rows = at_most(q->tokens, PIECE_ROWS);
    const int64_t bytes = most_rows * q->context * (int64_t)sizeof(float);
    p->scores = scratch_alloc(bytes);
    if (!p->scores) return false;
    for (p->first = 0; p->first < q->tokens && !p->failed; p->first += most_rows) {
        p->rows = at_most(most_rows, q->tokens - p->first);
        const int64_t parts = divide_up(q->context, PART_KEYS);
        const int64_t values = p->rows * q->context * q->params->heads;
        run_tasks(threads_for(values * q->params->cache->keys.dim, threads), p->rows * parts,
                  score_task, p);
        run_tasks(threads_for(values, threads), p->rows, choose_task, p);
    }
    scratch_free(p->scores, bytes);
    return !p->failed;
}

bool choose_keys(const KernelTable *kernels, const Choice *choice, int threads) {
    const Batch *b = choice->index.batch;
    for (int64_t i = 0; i < b->sequences; i++) {
        const int64_t row = b->query_start[i];
        Piece piece = {.kernels = kernels,
                       .choice = choice,
                       .queries = {&choice->index, b->block_tables + i * b->table_blocks, row,
                                   b->query_start[i + 1] - row, b->context_lens[i]}};
        if (piece.queries.context <= choice->index.most_chosen) continue;
        if (!choose_in_sequence(&piece, threads)) return false;
    }
    return true;
}
