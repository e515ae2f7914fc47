/* The new tokens of some sequences for a layer with recurrent states. */
#ifndef MRS_STATE_BATCH_H
#define MRS_STATE_BATCH_H

#include "base.h"

typedef struct {
    int64_t sequences;
    const int32_t *starts;               /* (sequences + 1): the first token of each, and the end */
    float *const *recent, *const *state; /* of each: inputs of its convolution, and its state */
} StateBatch;

#endif
