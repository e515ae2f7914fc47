/* Reading weights ahead of time, while a thread has nothing else to do. */
#ifndef MRS_READ_AHEAD_H
#define MRS_READ_AHEAD_H

#include "base.h"

/* Tells that the calling thread now reads `bytes` of weights from `start` on. */
void note_read(const uint8_t *start, int64_t bytes);

/* Tells that the calling thread does not read weights in the order of a decode step now. */
void forget_reads(void);

/* Prefetches what the calling thread will probably read next, until is_over(data) says so or the
 * caches are full. */
void read_ahead(bool (*is_over)(const void *data), const void *data);

#endif
