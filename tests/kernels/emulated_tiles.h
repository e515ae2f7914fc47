/* AMX's tiles in plain C, with the rules of Intel's manual: a program that breaks one is aborted,
 * where a processor would raise an exception. Takes the place of native/isa/tiles_amx.h. */
#include <immintrin.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileShapes;

static _Thread_local TileShapes shapes_in_use;
static _Thread_local uint8_t tile_data[8][16][64];
static _Atomic int64_t threads_with_tiles, products_of_tiles;

#define TILE_RULE(HOLDS)                                                                         \
    do {                                                                                         \
        if (!(HOLDS)) {                                                                          \
            fprintf(stderr, "tiles: %s does not hold\n", #HOLDS);                                \
            abort();                                                                             \
        }                                                                                        \
    } while (0)

static inline void tiles_configure(const TileShapes *shapes) {
    static const uint8_t zeros[14];
    TILE_RULE(sizeof *shapes == 64);
    TILE_RULE(shapes->palette == 1 && shapes->start_row == 0);
    TILE_RULE(memcmp(shapes->reserved, zeros, sizeof zeros) == 0);
    for (int i = 0; i < 16; i++) {
        TILE_RULE(shapes->rows[i] <= 16 && shapes->row_bytes[i] <= 64);
        TILE_RULE((shapes->rows[i] == 0) == (shapes->row_bytes[i] == 0));
        TILE_RULE(i < 8 || shapes->rows[i] == 0);
    }
    if (!shapes_in_use.palette) threads_with_tiles++;
    shapes_in_use = *shapes;
    memset(tile_data, 0, sizeof tile_data);
}

static inline void tiles_release(void) {
    if (shapes_in_use.palette) threads_with_tiles--;
    memset(&shapes_in_use, 0, sizeof shapes_in_use);
}

static inline void tile_zero(int tile) {
    TILE_RULE(shapes_in_use.rows[tile]);
    memset(tile_data[tile], 0, sizeof tile_data[tile]);
}

static inline void tile_load(int tile, const void *p, int64_t stride) {
    tile_zero(tile);
    for (int row = 0; row < shapes_in_use.rows[tile]; row++)
        memcpy(tile_data[tile][row], (const uint8_t *)p + row * stride,
               shapes_in_use.row_bytes[tile]);
}

static inline void tile_store(int tile, void *p, int64_t stride) {
    TILE_RULE(shapes_in_use.rows[tile]);
    for (int row = 0; row < shapes_in_use.rows[tile]; row++)
        memcpy((uint8_t *)p + row * stride, tile_data[tile][row], shapes_in_use.row_bytes[tile]);
}

/* Counts a product, whose tiles must fit each other. */
static inline void tiles_multiply(int sum, int a, int b) {
    const TileShapes *in_use = &shapes_in_use;
    TILE_RULE(sum != a && sum != b && a != b);
    TILE_RULE(in_use->rows[sum] && in_use->rows[a] && in_use->rows[b]);
    TILE_RULE(in_use->rows[sum] == in_use->rows[a]);
    TILE_RULE(in_use->row_bytes[sum] == in_use->row_bytes[b]);
    TILE_RULE(in_use->row_bytes[a] == 4 * in_use->rows[b] && in_use->row_bytes[b] % 4 == 0);
    products_of_tiles++;
}

/* TDPBSUD: sums of 32 bits that wrap around. */
static inline void tile_dot(int sum, int a, int b) {
    const TileShapes *in_use = &shapes_in_use;
    tiles_multiply(sum, a, b);
    for (int i = 0; i < in_use->rows[sum]; i++)
        for (int j = 0; j < in_use->row_bytes[sum] / 4; j++) {
            uint32_t total;
            memcpy(&total, &tile_data[sum][i][4 * j], 4);
            for (int k = 0; k < in_use->row_bytes[a]; k++)
                total += (uint32_t)((int8_t)tile_data[a][i][k] *
                                    (int32_t)tile_data[b][k / 4][4 * j + k % 4]);
            memcpy(&tile_data[sum][i][4 * j], &total, 4);
        }
}

static inline float tile_bf16(const uint8_t *p) {
    const uint8_t bytes[4] = {0, 0, p[0], p[1]};
    float value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* TDPBF16PS: for each pair of places two chains of FMA, whose sum is added. Subnormal factors, sums
 * and results are 0. */
static __attribute__((noinline)) void tile_dot_flushed(int sum, int a, int b) {
    for (int i = 0; i < shapes_in_use.rows[sum]; i++)
        for (int j = 0; j < shapes_in_use.row_bytes[sum] / 4; j++) {
            float total, chains[2] = {0, 0};
            memcpy(&total, &tile_data[sum][i][4 * j], 4);
            for (int k = 0; k < shapes_in_use.row_bytes[a]; k += 2) {
                const float x = tile_bf16(&tile_data[a][i][k]);
                const float weight = tile_bf16(&tile_data[b][k / 4][4 * j + k % 4]);
                chains[k / 2 % 2] = __builtin_fmaf(x, weight, chains[k / 2 % 2]);
            }
            total += chains[0] + chains[1];
            memcpy(&tile_data[sum][i][4 * j], &total, 4);
        }
}

static inline void tile_dot_bf16(int sum, int a, int b) {
    const unsigned control = _mm_getcsr(), flushes = 0x8040; /* results, and factors */
    tiles_multiply(sum, a, b);
    _mm_setcsr((control & ~_MM_ROUND_MASK) | flushes);
    tile_dot_flushed(sum, a, b);
    _mm_setcsr(control);
}
