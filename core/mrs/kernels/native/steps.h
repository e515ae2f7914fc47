/* What the small steps between matrix products are given. */
#ifndef MRS_STEPS_H
#define MRS_STEPS_H

#include <math.h>

#include "mrs.h"

struct Rotation {
    int64_t heads, head_dim, pairs;
    bool interleaved;
};

/* Causal attention of the last `tokens` of `keys` cached tokens, each looking at no more than
 * `window` tokens (0: all before it), and at those up to `last_seen` behind it. q and out are
 * (tokens, heads, key_dim) and (tokens, heads, value_dim) floats. k and v hold a token's numbers
 * next to each other, and a head's tokens; heads lie `k_stride` and `v_stride` numbers apart. */
struct Attending {
    const float *q;
    const void *k, *v;
    float *out;
    const float *sinks; /* a score without a value for each head, or NULL */
    int64_t type;       /* of k and v */
    int64_t tokens, heads, kv_heads, keys, window, key_dim, value_dim, k_stride, v_stride;
    double scale, softcap;    /* softcap 0: none */
    const int64_t *last_seen; /* the last key that each token sees, or NULL: itself */
};

/* Part of that: one token, and the keys that it sees. */
struct Sight {
    const Attending *attending;
    const float *q; /* (heads, key_dim) */
    float *out;     /* (heads, value_dim) */
    int64_t first, count;
};

#endif
