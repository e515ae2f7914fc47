/* Several callers multiply at once, each with several threads; run by tests/sanitize.py. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bounds.h"
#include "gemm/products.h"

const KernelTable *mrs_path(const char *name);
int64_t mrs_packed_bytes(int format, int64_t rows, int64_t columns);
int64_t mrs_row_bytes(int format, int64_t columns);
void mrs_pack(const Matrix *, const uint8_t *, int64_t, int64_t, int64_t, int);
Outcome mrs_matmul(const Matrix *, const void *, int, int64_t, void *, int);

enum { ROWS = 512, COLUMNS = 256, TOKENS = 40, CALLERS = 3, ROUNDS = 30, FORMATS = 3 };
static const Format formats[FORMATS] = {Q8_0, Q4_K, BF16};
static Matrix matrices[FORMATS];
static float x[TOKENS * COLUMNS], expected[FORMATS][TOKENS * ROWS];

static void *call(void *unused) {
    float *out = malloc(sizeof expected[0]);
    intptr_t wrong = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < FORMATS; i++) {
            wrong += mrs_matmul(&matrices[i], x, TYPE_F32, TOKENS, out, 3).code != DONE;
            wrong += memcmp(out, expected[i], sizeof expected[0]) != 0;
            wrong += mrs_matmul(&matrices[i], x, TYPE_F32, 1, out, 3).code != DONE;
        }
    free(out);
    return (void *)wrong;
}

int main(int count, char **names) {
    intptr_t wrong = 0;
#if defined(__x86_64__)
    syscall(SYS_arch_prctl, 0x1023, 18); /* for the path `amx`: permission to use its tiles */
#endif
    for (int n = 1; n < count; n++) {
        for (int i = 0; i < FORMATS; i++) {
            const int64_t row_bytes = mrs_row_bytes(formats[i], COLUMNS);
            uint8_t *blocks = calloc(ROWS, (size_t)row_bytes);
            for (int64_t b = 0; b < ROWS * row_bytes; b++) blocks[b] = (uint8_t)(b * 31 % 59);
            matrices[i] = (Matrix){.kernels = mrs_path(names[n]), .format = formats[i], .rows = ROWS,
                                   .columns = COLUMNS};
            matrices[i].packed =
                aligned_alloc(64, (size_t)mrs_packed_bytes(formats[i], ROWS, COLUMNS));
            matrices[i].subnormal = formats[i] == BF16 ? calloc(ROWS / 16, 1) : NULL;
            mrs_pack(&matrices[i], blocks, row_bytes, 0, ROWS, 3);
            free(blocks);
        }
        for (int i = 0; i < TOKENS * COLUMNS; i++) x[i] = (float)(i % 17) - 8;
        for (int i = 0; i < FORMATS; i++)
            mrs_matmul(&matrices[i], x, TYPE_F32, TOKENS, expected[i], 1);
        pthread_t callers[CALLERS];
        for (int c = 0; c < CALLERS; c++) pthread_create(&callers[c], NULL, call, NULL);
        for (int c = 0; c < CALLERS; c++) {
            void *found;
            pthread_join(callers[c], &found);
            wrong += (intptr_t)found;
        }
        for (int i = 0; i < FORMATS; i++) {
            free(matrices[i].packed);
            free(matrices[i].subnormal);
        }
    }
    printf("%d paths, %d wrong results\n", count - 1, (int)wrong);
    return wrong != 0;
}
