/* What every file needs: small helpers and the library's attributes. */
#ifndef MRS_BASE_H
#define MRS_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define LINE 64 /* bytes of a cache line */

static inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif
