/* The exponential function of all operations but attention. */
#ifndef MRS_EXPONENTIAL_H
#define MRS_EXPONENTIAL_H

#include "half.h"

/* e to the x by Cody and Waite's reduction and a polynomial, with an error of about two units in
 * the last place; without branches, so that the compiler vectorizes it. */
static inline float exp_of(float x) {
    const float rounder = 12582912.0f; /* 1.5 * 2^23 */
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + rounder, n = shifted - rounder;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t power = (bits_of_float(shifted) - bits_of_float(rounder)) << 23;
    return float_of_bits(bits_of_float(p) + power);
}

#endif
