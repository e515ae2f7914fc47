/* The products by AVX-VNNI for processors with AVX-512, in the encoding of their instruction.
 * Compiled by test_avx_vnni.py. */
#define VNNI_ENCODING "%{evex%}"
#include "isa/avx_vnni.c"

/* The kernels of AVX2 with these products. */
EXPORT const KernelTable *vnni_kernels(const KernelTable *avx2) {
    static KernelTable kernels;
    kernels = *avx2;
    kernels.quantize = quantize_for_vnni;
    kernels.multiply = multiply_by_vnni;
    return &kernels;
}
