/* Products of codes by AVX-VNNI. */
#ifndef MRS_AVX_VNNI_H
#define MRS_AVX_VNNI_H

#include "mrs.h"

/* A compiler that does not know AVX-VNNI comes with an assembler that does not either. */
#if __has_include(<avxvnniintrin.h>)
#define HAS_AVX_VNNI 1

/* Of a KernelTable. */
void quantize_for_vnni(Format format, const float *const rows[], int count, int first, int width,
                       int64_t columns, void *panel);
void multiply_by_vnni(Format format, const uint8_t *group, const void *panel, int width,
                      int64_t columns, float *out);
int64_t multiply_registers_by_vnni(Factors factors, int64_t rounds);
#endif

#endif
