/* How many bytes ahead products prefetch weights into the second-level and the first-level cache;
 * or, unless it is 0, how many bytes ahead in place of both if codes are read once, past the further
 * caches. */
#ifndef MRS_PREFETCH_H
#define MRS_PREFETCH_H

#include "base.h"

typedef struct {
    int64_t far, near, once;
} PrefetchDistance;
extern PrefetchDistance prefetch_distance;

#endif
