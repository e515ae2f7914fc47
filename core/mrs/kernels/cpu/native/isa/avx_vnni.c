#include "isa/avx_vnni.h"

#ifdef HAS_AVX_VNNI
#include "isa/lanes_avx_vnni.h"
#include "gemm/activations.inc.h"
#include "gemm/matmul.inc.h"
#include "isa/peak.inc.h"

void quantize_for_vnni(Format format, const float *const rows[], int count, int first, int width,
                       int64_t columns, void *panel) {
    quantize(format, rows, count, first, width, columns, panel);
}

void multiply_by_vnni(Format format, const uint8_t *group, const void *panel, int width,
                      int64_t columns, float *out) {
    multiply(format, group, panel, width, columns, out);
}

int64_t multiply_registers_by_vnni(Factors factors, int64_t rounds) {
    return multiply_registers(factors, rounds);
}
#endif
