/* How many bytes ahead products prefetch weights into the second-level and the first-level cache. */
#ifndef MRS_PREFETCH_H
#define MRS_PREFETCH_H

#include "base.h"

typedef struct {
    int64_t far, near;
} PrefetchDistance;
extern PrefetchDistance prefetch_distance;

#endif
