/* Memory that kernels take for themselves while they run; it is counted, for those who plan it. */
#ifndef MRS_SCRATCH_H
#define MRS_SCRATCH_H

#include <stdint.h>

/* Memory on a cache line's boundary, or NULL. */
void *take_scratch(int64_t size_bytes);
void give_scratch(void *memory, int64_t size_bytes);

#endif
