/* Reads memory as fast as the instruction set allows, to compare matrix-vector products with;
 * included once per instruction set, after its lanes. */
#include "mrs.h"

static void read_bytes(const uint8_t *bytes, int64_t size) {
    const int step = LANES * 4;
    Ints sum[4] = {lanes_int(0), lanes_int(0), lanes_int(0), lanes_int(0)};
    for (int64_t i = 0; i + 4 * step <= size; i += 4 * step)
        for (int j = 0; j < 4; j++) sum[j] = lanes_add(sum[j], lanes_load(bytes + i + j * step));
    Ints all = lanes_add(lanes_add(sum[0], sum[1]), lanes_add(sum[2], sum[3]));
    __asm__ volatile("" : : "m"(all));
}
