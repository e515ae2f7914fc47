/* Memory of kernels while they run. It is counted, so that tests can compare it with the plan. */
#ifndef MRS_SCRATCH_H
#define MRS_SCRATCH_H

#include <stdint.h>

/* Memory on a cache line's boundary, or NULL. */
void *scratch_alloc(int64_t size_bytes);

/* `size_bytes` as it was allocated; `memory` may be NULL. */
void scratch_free(void *memory, int64_t size_bytes);

#endif
