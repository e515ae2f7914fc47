/* What the small steps between matrix products are given. */
#ifndef MRS_STEPS_H
#define MRS_STEPS_H

#include <math.h>

#include "mrs.h"

struct Rotation {
    int64_t heads, head_dim, pairs;
    bool interleaved;
};

/* One token's attention over `keys` cached tokens, of which those before `first` are hidden.
 * q and out are (heads, key_dim) and (heads, value_dim) floats. k and v hold a token's numbers
 * next to each other, and a head's tokens; heads lie `k_stride` and `v_stride` numbers apart. */
struct Attending {
    const float *q;
    const void *k, *v;
    float *out;
    const float *sinks; /* a score without a value for each head, or NULL */
    int64_t type;       /* of k and v */
    int64_t heads, kv_heads, keys, first, key_dim, value_dim, k_stride, v_stride;
    double scale, softcap; /* softcap 0: none */
};

#endif
