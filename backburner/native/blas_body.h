/* Products with few rows for one instruction set: included once for each by blas.c, through each_isa.h. */

/* A_ROWS: rows of A that share a read of four rows of W; their sums have to stay in registers, 24 of 32 or 8 of 16.
 * ALONE_ROWS: rows of W side by side for a single row of A. One keeps the reads of memory linear (39 GB/s, against 32 for
 * eight), and with AVX-512 its chain of additions still outruns memory; narrower vectors need more chains. */
#if LANES == 16
#define A_ROWS 6
#define ALONE_ROWS 1
#else
#if defined(__aarch64__)
#define A_ROWS 6
#else
#define A_ROWS 2
#endif
#define ALONE_ROWS 4
#endif
#define PREFETCH_FLOATS 512

INLINE void FN(put)(float *c, float alpha, float dot, float beta) {
    /* BLAS: with beta = 0, C is not read and may hold anything. */
    *c = beta == 0.0f ? alpha * dot : alpha * dot + beta * *c;
}

/* The dot products of a_rows rows of A with w_rows rows of W. Each has one accumulator, whatever the numbers of rows, so a
 * row's bits do not depend on how many rows are asked for together. */
INLINE void FN(dot_tile)(const int a_rows, const int w_rows, int64_t k, float alpha, const float *a, int64_t lda,
                         const float *w, int64_t ldw, float beta, float *c, int64_t ldc, int64_t c_step) {
    Vec sum[6][4];
    UNROLL for (int i = 0; i < a_rows; i++)
        UNROLL for (int j = 0; j < w_rows; j++) sum[i][j] = VSET1(0.0f);
    int64_t d = 0;
    for (; d + LANES <= k; d += LANES) {
        Vec right[4];
        UNROLL for (int j = 0; j < w_rows; j++) {
            __builtin_prefetch(w + j * ldw + d + PREFETCH_FLOATS);
            right[j] = FN(load)(w + j * ldw + d);
        }
        UNROLL for (int i = 0; i < a_rows; i++) {
            const Vec left = FN(load)(a + i * lda + d);
            UNROLL for (int j = 0; j < w_rows; j++) sum[i][j] = VFMA(left, right[j], sum[i][j]);
        }
    }
    UNROLL for (int i = 0; i < a_rows; i++)
        UNROLL for (int j = 0; j < w_rows; j++) {
            float dot = FN(sum)(sum[i][j]);
            for (int64_t tail = d; tail < k; tail++) dot += a[i * lda + tail] * w[j * ldw + tail];
            FN(put)(c + i * ldc + j * c_step, alpha, dot, beta);
        }
}

/* C[m, n] = alpha A[m, k] W[n, k]^T + beta C; element (i, j) of C is c[i * ldc + j * c_step]. */
static void FN(dots)(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *w,
                     int64_t ldw, float beta, float *c, int64_t ldc, int64_t c_step) {
    const int64_t wide = m == 1 && n * k > CACHED_FLOATS ? ALONE_ROWS : 4;
    const int64_t tiles = (m + A_ROWS - 1) / A_ROWS; /* of A, even in size */
    for (int64_t j = 0; j < n;) {
        const int64_t w_rows = n - j >= wide ? wide : 1;
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t i = m * tile / tiles, a_rows = m * (tile + 1) / tiles - i;
            const float *a_i = a + i * lda, *w_j = w + j * ldw;
            float *c_ij = c + i * ldc + j * c_step;
            if (w_rows == 1) {
                for (int64_t row = 0; row < a_rows; row++)
                    FN(dot_tile)(1, 1, k, alpha, a_i + row * lda, lda, w_j, ldw, beta, c_ij + row * ldc, ldc, c_step);
                continue;
            }
            switch (a_rows) {
#define TILE(A) \
    case A: FN(dot_tile)(A, 4, k, alpha, a_i, lda, w_j, ldw, beta, c_ij, ldc, c_step); break;
                TILE(1)
                TILE(2)
#if A_ROWS == 6
                TILE(3)
                TILE(4)
                TILE(5)
                TILE(6)
#endif
#undef TILE
            }
        }
        j += w_rows;
    }
}

/* y[n] = alpha x[k] W[k, n] + beta y: rows of W are added up, eight at a time to pass over y less often. */
static void FN(axpys)(int64_t n, int64_t k, float alpha, const float *x, int64_t x_step, const float *w, int64_t ldw,
                      float beta, float *y) {
    if (beta == 0.0f) memset(y, 0, sizeof *y * n);
    else if (beta != 1.0f)
        for (int64_t i = 0; i < n; i++) y[i] *= beta;
    for (int64_t d = 0; d < k; d += 8) {
        const int64_t used = k - d < 8 ? k - d : 8;
        float factor[8];
        for (int64_t j = 0; j < used; j++) factor[j] = alpha * x[(d + j) * x_step];
        const float *rows = w + d * ldw;
        int64_t i = 0;
        if (used == 8)
            for (; i + LANES <= n; i += LANES) {
                Vec sum = FN(load)(y + i);
                UNROLL for (int j = 0; j < 8; j++) {
                    __builtin_prefetch(rows + j * ldw + i + PREFETCH_FLOATS);
                    sum = VFMA(VSET1(factor[j]), FN(load)(rows + j * ldw + i), sum);
                }
                FN(store)(y + i, sum);
            }
        for (; i < n; i++)
            for (int64_t j = 0; j < used; j++) y[i] += factor[j] * rows[j * ldw + i];
    }
}

#undef A_ROWS
#undef ALONE_ROWS
#undef PREFETCH_FLOATS
