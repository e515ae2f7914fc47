/* The tile registers of AMX: eight, each of up to 16 rows of 64 bytes.
 *
 * Statements instead of the compiler's intrinsics, whose loads do not tell it that they read
 * memory, and which need flags that older compilers refuse. A tile is named by its number.
 */
#include <stdint.h>

/* Bytes of a row, and rows, of each tile; the layout is Intel's. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileShapes;

/* Shapes the tiles of this thread and sets them to zero. Linux lets only processes that have asked
 * for it use tiles: `mrs.devices.cpu_path` asks. */
static inline void tiles_configure(const TileShapes *shapes) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*shapes));
}
/* Without tiles in use a switch of threads does not store 8 KiB of them. */
static inline void tiles_release(void) { __asm__ volatile("tilerelease"); }

#define TILE_NAME(TILE) "%%tmm" #TILE
/* Rows of a tile lie `stride` bytes apart at p. */
#define tile_load(TILE, p, stride)                                                               \
    __asm__ volatile("tileloadd (%0,%1,1), " TILE_NAME(TILE)                                     \
                     :                                                                           \
                     : "r"(p), "r"((int64_t)(stride))                                            \
                     : "memory")
#define tile_store(TILE, p, stride)                                                              \
    __asm__ volatile("tilestored " TILE_NAME(TILE) ", (%0,%1,1)"                                 \
                     :                                                                           \
                     : "r"(p), "r"((int64_t)(stride))                                            \
                     : "memory")
#define tile_zero(TILE) __asm__ volatile("tilezero " TILE_NAME(TILE) ::)
/* SUM[i][j] += the dot product of row i of A, signed bytes, with column j of B, whose elements are
 * four unsigned bytes each. */
#define tile_dot(SUM, A, B)                                                                      \
    __asm__ volatile("tdpbsud " TILE_NAME(B) ", " TILE_NAME(A) ", " TILE_NAME(SUM)::)
/* The same of floats; elements of B and a row of A are pairs of bf16. The products of the pairs'
 * first values are summed one after another in float32, and so are those of the second; then both
 * are added to SUM. Subnormal values count as 0. */
#define tile_dot_bf16(SUM, A, B)                                                                 \
    __asm__ volatile("tdpbf16ps " TILE_NAME(B) ", " TILE_NAME(A) ", " TILE_NAME(SUM)::)
