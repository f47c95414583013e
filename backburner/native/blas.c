/* cblas_sgemm and cblas_dgemm for MLX's Linux wheel, which bundles the reference BLAS (2.4 GFLOP/s against 210).
 *
 * Opened with RTLD_GLOBAL before MLX, these symbols come first when MLX's are bound. Matrix products go to NumPy's
 * OpenBLAS. Products with few rows are memory-bound and OpenBLAS is slow there (2 rows: 7 GB/s of weights), so they are
 * done here, in blas_body.h, at the speed of memory.
 */
#include "simd.h"

#include <stdlib.h>

enum { ROW_MAJOR = 101, COL_MAJOR = 102, NO_TRANS = 111 };

/* Up to this many rows our dot products beat OpenBLAS, in GFLOP/s for K, N = 1024, 6144 with AVX-512: 16 rows 114 against
 * 53, 32 rows 146 against 95, 64 rows 161 against 136, 256 rows 174 against 209. With AVX2 8 rows are 75 against 54 and
 * 16 rows 74 against 79. */
enum { FEW_ROWS_AVX512 = 64, FEW_ROWS_OTHERS = 8 };
/* A W of this size is in the cache, where four rows side by side beat linear reads. */
enum { CACHED_FLOATS = 1 << 16 };
/* Shorter dot products spend their time on the sum across lanes. */
enum { SHORTEST_DOT = 64 };
static int few_rows = FEW_ROWS_OTHERS;

/* OpenBLAS with 64-bit integers, as NumPy's wheels have it. */
typedef void (*Sgemm64)(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                        float, float *, int64_t);
typedef void (*Dgemm64)(int, int, int, int64_t, int64_t, int64_t, double, const double *, int64_t, const double *, int64_t,
                        double, double *, int64_t);
static Sgemm64 sgemm64;
static Dgemm64 dgemm64;

#define UNROLL _Pragma("GCC unroll 8")
#define BODY "blas_body.h"
#include "each_isa.h"

typedef void (*Dots)(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *w,
                     int64_t ldw, float beta, float *c, int64_t ldc, int64_t c_step);
typedef void (*Axpys)(int64_t n, int64_t k, float alpha, const float *x, int64_t x_step, const float *w, int64_t ldw,
                      float beta, float *y);
static Dots dots = dots_generic;
static Axpys axpys = axpys_generic;

/* Hands over OpenBLAS's functions and selects an instruction set (NULL: the best). -1: this CPU does not have it. */
EXPORT int bb_blas_start(Sgemm64 sgemm, Dgemm64 dgemm, const char *isa) {
    sgemm64 = sgemm;
    dgemm64 = dgemm;
    const int chosen = choose_isa(isa);
    if (chosen < 0) return -1;
    dots = VARIANT(chosen, dots), axpys = VARIANT(chosen, axpys);
    few_rows = chosen == AVX512 ? FEW_ROWS_AVX512 : FEW_ROWS_OTHERS;
    return 0;
}

EXPORT void cblas_sgemm(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                        const float *b, int ldb, float beta, float *c, int ldc) {
    if (m > 0 && n > 0 && k > 0) {
        /* A column-major product is the row-major one of the transposes. */
        const int swap = layout == COL_MAJOR;
        const int a_rows = (swap ? trans_b : trans_a) == NO_TRANS, b_rows = (swap ? trans_a : trans_b) == NO_TRANS;
        const float *left = swap ? b : a, *right = swap ? a : b;
        const int left_ld = swap ? ldb : lda, right_ld = swap ? lda : ldb, rows = swap ? n : m, columns = swap ? m : n;
        /* x W^T with x in few contiguous rows: the linear layers of decoding. */
        if (rows <= few_rows && a_rows && !b_rows && (rows == 1 || k >= SHORTEST_DOT)) {
            dots(rows, columns, k, alpha, left, left_ld, right, right_ld, beta, c, ldc, 1);
            return;
        }
        /* A row times a matrix. */
        if (rows == 1 && b_rows) {
            axpys(columns, k, alpha, left, a_rows ? 1 : left_ld, right, right_ld, beta, c);
            return;
        }
        /* A matrix times a column, with the column contiguous. */
        if (columns == 1 && a_rows && (!b_rows || right_ld == 1)) {
            dots(1, rows, k, alpha, right, k, left, left_ld, beta, c, 1, ldc);
            return;
        }
    }
    sgemm64(layout, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

EXPORT void cblas_dgemm(int layout, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                        const double *b, int ldb, double beta, double *c, int ldc) {
    dgemm64(layout, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/* Python wants every extension module to have an initialiser; this one is only opened with ctypes. */
EXPORT void *PyInit__blas(void) { return NULL; }
