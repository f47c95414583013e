/* C = alpha A W^T + beta C for many rows with AVX-512: the linear layers of a prefill chunk; included by blas.c.
 *
 * 64 rows of W at a time are packed, transposed, into a panel [depth][64] that stays in the L2 cache while every six rows
 * of A pass over it; rows of A are used as they lie. Each value of C is summed in the order of k, so its bits do not depend
 * on the number of rows. 241 GFLOP/s where OpenBLAS has 209 (256 rows, K 1024, N 6144; the core's peak is about 260).
 */

enum {
    PANEL_COLUMNS = 64,  /* six rows of it are 24 of the 32 registers */
    PANEL_DEPTH = 1024,  /* on the stack, 256 KB. 256 deep: 207 GFLOP/s, 512: 226, 1024: 241 */
    BLOCK_A_ROWS = 512,  /* a pass over W for each so many rows of A: one for the largest ubatch */
    BLOCK_COLUMNS = 512, /* of C, which stay in the cache while k advances */
};

/* 16 rows of 16 values, turned. */
INLINE void transpose_16(const float *from, int64_t ld, float *to) {
    __m512 x[16], y[16];
    UNROLL16 for (int i = 0; i < 16; i++) x[i] = _mm512_loadu_ps(from + i * ld);
    UNROLL16 for (int i = 0; i < 8; i++) {
        y[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
    UNROLL16 for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(y[4 * i]), b = _mm512_castps_pd(y[4 * i + 1]);
        const __m512d c = _mm512_castps_pd(y[4 * i + 2]), d = _mm512_castps_pd(y[4 * i + 3]);
        x[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        x[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        x[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        x[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    /* Now x[4 g + j] holds, of rows 4 g ... 4 g + 3, column j in its first quarter, 4 + j in its second, and so on. */
    UNROLL16 for (int j = 0; j < 4; j++) {
        const __m512 even = _mm512_shuffle_f32x4(x[j], x[4 + j], 0x88), odd = _mm512_shuffle_f32x4(x[j], x[4 + j], 0xdd);
        const __m512 even_2 = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0x88);
        const __m512 odd_2 = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0xdd);
        _mm512_store_ps(to + j * PANEL_COLUMNS, _mm512_shuffle_f32x4(even, even_2, 0x88));
        _mm512_store_ps(to + (4 + j) * PANEL_COLUMNS, _mm512_shuffle_f32x4(odd, odd_2, 0x88));
        _mm512_store_ps(to + (8 + j) * PANEL_COLUMNS, _mm512_shuffle_f32x4(even, even_2, 0xdd));
        _mm512_store_ps(to + (12 + j) * PANEL_COLUMNS, _mm512_shuffle_f32x4(odd, odd_2, 0xdd));
    }
}

/* Fills panel[depth][64] from `columns` rows of W; missing columns are zero. */
static void pack_panel(const float *w, int64_t ldw, int64_t columns, int64_t depth, float *panel) {
    int64_t j = 0;
    for (; j + 16 <= columns; j += 16) {
        int64_t d = 0;
        for (; d + 16 <= depth; d += 16) transpose_16(w + j * ldw + d, ldw, panel + d * PANEL_COLUMNS + j);
        for (; d < depth; d++)
            for (int i = 0; i < 16; i++) panel[d * PANEL_COLUMNS + j + i] = w[(j + i) * ldw + d];
    }
    for (; j < PANEL_COLUMNS; j++)
        for (int64_t d = 0; d < depth; d++) panel[d * PANEL_COLUMNS + j] = j < columns ? w[j * ldw + d] : 0.0f;
}

INLINE void panel_tile(const int rows, int64_t depth, float alpha, const float *a, int64_t lda, const float *panel, float beta,
                       float *c, int64_t ldc) {
    __m512 sum[6][4];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < 4; j++) sum[i][j] = _mm512_setzero_ps();
    for (int64_t d = 0; d < depth; d++, panel += PANEL_COLUMNS) {
        __m512 right[4];
        UNROLL for (int j = 0; j < 4; j++) {
            __builtin_prefetch(panel + 1024 + j * 16);
            right[j] = _mm512_load_ps(panel + j * 16);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            const __m512 left = _mm512_set1_ps(a[i * lda + d]);
            UNROLL for (int j = 0; j < 4; j++) sum[i][j] = _mm512_fmadd_ps(left, right[j], sum[i][j]);
        }
    }
    const __m512 alphas = _mm512_set1_ps(alpha), betas = _mm512_set1_ps(beta);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < 4; j++) {
            float *at = c + i * ldc + j * 16;
            const __m512 scaled = _mm512_mul_ps(alphas, sum[i][j]);
            _mm512_storeu_ps(at, beta == 0.0f ? scaled : _mm512_fmadd_ps(betas, _mm512_loadu_ps(at), scaled));
        }
}

static void panel_rows(int64_t rows, int64_t depth, float alpha, const float *a, int64_t lda, const float *panel, float beta,
                       float *c, int64_t ldc) {
    switch (rows) {
        case 1: panel_tile(1, depth, alpha, a, lda, panel, beta, c, ldc); break;
        case 2: panel_tile(2, depth, alpha, a, lda, panel, beta, c, ldc); break;
        case 3: panel_tile(3, depth, alpha, a, lda, panel, beta, c, ldc); break;
        case 4: panel_tile(4, depth, alpha, a, lda, panel, beta, c, ldc); break;
        case 5: panel_tile(5, depth, alpha, a, lda, panel, beta, c, ldc); break;
        case 6: panel_tile(6, depth, alpha, a, lda, panel, beta, c, ldc); break;
    }
}

/* One panel with all rows of a block of A. */
static void panel_block(int64_t m, int64_t columns, int64_t depth, float alpha, const float *a, int64_t lda,
                        const float *panel, float beta, float *c, int64_t ldc, const float *next, int64_t ldw) {
    _Alignas(64) float edge[6 * PANEL_COLUMNS];
    const int64_t tiles = (m + 5) / 6;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t i = m * tile / tiles, rows = m * (tile + 1) / tiles - i;
        /* The next panel's rows of W come in while this one is used. */
        for (int64_t row = PANEL_COLUMNS * tile / tiles; row < PANEL_COLUMNS * (tile + 1) / tiles; row++)
            for (int64_t line = 0; line < depth; line += 16) __builtin_prefetch(next + row * ldw + line, 0, 2);
        if (columns == PANEL_COLUMNS) {
            panel_rows(rows, depth, alpha, a + i * lda, lda, panel, beta, c + i * ldc, ldc);
            continue;
        }
        for (int64_t row = 0; beta != 0.0f && row < rows; row++)
            memcpy(edge + row * PANEL_COLUMNS, c + (i + row) * ldc, sizeof *edge * columns);
        panel_rows(rows, depth, alpha, a + i * lda, lda, panel, beta, edge, PANEL_COLUMNS);
        for (int64_t row = 0; row < rows; row++)
            memcpy(c + (i + row) * ldc, edge + row * PANEL_COLUMNS, sizeof *edge * columns);
    }
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static void sgemm_avx512(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *w,
                         int64_t ldw, float beta, float *c, int64_t ldc) {
    _Alignas(64) float panel[PANEL_DEPTH * PANEL_COLUMNS];
    for (int64_t top = 0; top < m; top += BLOCK_A_ROWS)
        for (int64_t left = 0; left < n; left += BLOCK_COLUMNS)
            for (int64_t d = 0; d < k; d += PANEL_DEPTH)
                for (int64_t j = left; j < n && j < left + BLOCK_COLUMNS; j += PANEL_COLUMNS) {
                    const int64_t depth = smaller(k - d, PANEL_DEPTH), columns = smaller(n - j, PANEL_COLUMNS);
                    const float *w_panel = w + j * ldw + d;
                    pack_panel(w_panel, ldw, columns, depth, panel);
                    panel_block(smaller(m - top, BLOCK_A_ROWS), columns, depth, alpha, a + top * lda + d, lda, panel,
                                d ? 1.0f : beta, c + top * ldc + j, ldc, w_panel + PANEL_COLUMNS * ldw, ldw);
                }
}
