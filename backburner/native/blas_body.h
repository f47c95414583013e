/* Products with few rows for one instruction set: included once for each by blas.c, which defines ISA, LANES, A_ROWS (rows
 * of A at a time) and the V... operations, and gets them undefined again. */

#define Vec FN(Vec)
#define PREFETCH_FLOATS 512

INLINE float FN(sum_lanes)(Vec x) {
    float lane[LANES];
    VSTORE(lane, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

INLINE void FN(put)(float *c, float alpha, float dot, float beta) {
    /* BLAS: with beta = 0, C is not read and may hold anything. */
    *c = beta == 0.0f ? alpha * dot : alpha * dot + beta * *c;
}

/* The dot products of a_rows rows of A with w_rows rows of W. Each has one accumulator, whatever the numbers of rows, so a
 * row's bits do not depend on how many rows are asked for together. */
INLINE void FN(dot_tile)(const int a_rows, const int w_rows, int64_t k, float alpha, const float *a, int64_t lda,
                         const float *w, int64_t ldw, float beta, float *c, int64_t ldc, int64_t c_step) {
    Vec sum[6][8];
    _Pragma("GCC unroll 8") for (int i = 0; i < a_rows; i++)
        _Pragma("GCC unroll 8") for (int j = 0; j < w_rows; j++) sum[i][j] = VSET1(0.0f);
    int64_t d = 0;
    for (; d + LANES <= k; d += LANES) {
        Vec right[8];
        _Pragma("GCC unroll 8") for (int j = 0; j < w_rows; j++) {
            __builtin_prefetch(w + j * ldw + d + PREFETCH_FLOATS);
            right[j] = VLOAD(w + j * ldw + d);
        }
        _Pragma("GCC unroll 8") for (int i = 0; i < a_rows; i++) {
            Vec left = VLOAD(a + i * lda + d);
            _Pragma("GCC unroll 8") for (int j = 0; j < w_rows; j++) sum[i][j] = VFMA(left, right[j], sum[i][j]);
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < a_rows; i++)
        _Pragma("GCC unroll 8") for (int j = 0; j < w_rows; j++) {
            float dot = FN(sum_lanes)(sum[i][j]);
            for (int64_t tail = d; tail < k; tail++) dot += a[i * lda + tail] * w[j * ldw + tail];
            FN(put)(c + i * ldc + j * c_step, alpha, dot, beta);
        }
}

/* C[m, n] = alpha A[m, k] W[n, k]^T + beta C; element (i, j) of C is c[i * ldc + j * c_step]. */
static void FN(dots)(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *w,
                     int64_t ldw, float beta, float *c, int64_t ldc, int64_t c_step) {
    int64_t j = 0;
    if (m == 1)
        for (; j + 8 <= n; j += 8) FN(dot_tile)(1, 8, k, alpha, a, lda, w + j * ldw, ldw, beta, c + j * c_step, ldc, c_step);
    else
        for (; j + 4 <= n; j += 4)
            for (int64_t i = 0; i < m;) {
                const float *a_i = a + i * lda, *w_j = w + j * ldw;
                float *c_ij = c + i * ldc + j * c_step;
#define TILE(ROWS)                                                                      \
    {                                                                                   \
        FN(dot_tile)(ROWS, 4, k, alpha, a_i, lda, w_j, ldw, beta, c_ij, ldc, c_step);   \
        i += ROWS;                                                                      \
    }
#if A_ROWS == 6
                if (m - i >= 6) TILE(6)
                else if (m - i >= 4) TILE(4)
                else if (m - i == 3) TILE(3)
                else
#endif
                if (m - i >= 2) TILE(2)
                else TILE(1)
#undef TILE
            }
    for (; j < n; j++)
        for (int64_t i = 0; i < m; i++)
            FN(dot_tile)(1, 1, k, alpha, a + i * lda, lda, w + j * ldw, ldw, beta, c + i * ldc + j * c_step, ldc, c_step);
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
                Vec sum = VLOAD(y + i);
                _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
                    __builtin_prefetch(rows + j * ldw + i + PREFETCH_FLOATS);
                    sum = VFMA(VSET1(factor[j]), VLOAD(rows + j * ldw + i), sum);
                }
                VSTORE(y + i, sum);
            }
        for (; i < n; i++)
            for (int64_t j = 0; j < used; j++) y[i] += factor[j] * rows[j * ldw + i];
    }
}

#undef ISA
#undef LANES
#undef A_ROWS
#undef PREFETCH_FLOATS
#undef Vec
#undef VLOAD
#undef VSTORE
#undef VSET1
#undef VFMA
