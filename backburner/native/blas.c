/* cblas_sgemm and cblas_dgemm for MLX's Linux wheel, which bundles the reference BLAS (2.4 GFLOP/s against 210).
 *
 * Opened with RTLD_GLOBAL before MLX, these symbols come first when MLX's are bound. Matrix products go to NumPy's
 * OpenBLAS. Products with few rows are memory-bound and OpenBLAS is slow there (2 rows: 7 GB/s of weights), so they are
 * done here, in blas_body.h, at the speed of memory.
 */
#if defined(__linux__)
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu.h"

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

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
#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define FN(name) JOIN(name, ISA)

typedef float Vec4 __attribute__((vector_size(16)));
INLINE float sum4(Vec4 x) { return (x[0] + x[2]) + (x[1] + x[3]); }

#if defined(__x86_64__)
#define ISA avx512
#define LANES 16
#define A_ROWS 6 /* rows of A that share a read of four rows of W: 24 of 32 registers */
/* Rows of W side by side for a single row of A. One keeps the reads of memory linear (39 GB/s, against 32 for eight), and
 * its chain of additions still outruns memory; narrower vectors need more chains. */
#define ALONE_ROWS 1
typedef __m512 Vec_avx512;
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,fma")
#endif
#define VLOAD(p) _mm512_loadu_ps(p)
#define VSTORE(p, x) _mm512_storeu_ps(p, x)
#define VSET1(x) _mm512_set1_ps(x)
#define VFMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define VSUM(x) _mm512_reduce_add_ps(x)
#include "blas_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#define ISA avx2
#define LANES 8
#define A_ROWS 2
#define ALONE_ROWS 4
typedef __m256 Vec_avx2;
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define VLOAD(p) _mm256_loadu_ps(p)
#define VSTORE(p, x) _mm256_storeu_ps(p, x)
#define VSET1(x) _mm256_set1_ps(x)
#define VFMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define VSUM(x) sum4(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)))
#include "blas_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

/* The baseline: SSE2 or NEON through the compilers' vector types. */
#define ISA generic
#define LANES 4
#define ALONE_ROWS 4
typedef float Vec_generic __attribute__((vector_size(16)));
INLINE Vec_generic load_generic(const float *p) {
    Vec_generic x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void store_generic(float *p, Vec_generic x) { memcpy(p, &x, sizeof x); }
#define VLOAD(p) load_generic(p)
#define VSTORE(p, x) store_generic(p, x)
#define VSUM(x) sum4(x)
#define VSET1(x) ((Vec_generic){(x), (x), (x), (x)})
#if defined(__aarch64__)
#define A_ROWS 6
#define VFMA(a, b, c) ((Vec_generic)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
#define A_ROWS 2
#define VFMA(a, b, c) ((a) * (b) + (c))
#endif
#include "blas_body.h"

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
#if defined(__x86_64__)
    if ((!isa || !strcmp(isa, "avx512")) && cpu_level() >= CPU_AVX512) {
        dots = dots_avx512, axpys = axpys_avx512, few_rows = FEW_ROWS_AVX512;
        return 0;
    }
    if ((!isa || !strcmp(isa, "avx2")) && cpu_level() >= CPU_AVX2) {
        dots = dots_avx2, axpys = axpys_avx2, few_rows = FEW_ROWS_OTHERS;
        return 0;
    }
#endif
    if (isa && strcmp(isa, "generic")) return -1;
    dots = dots_generic, axpys = axpys_generic, few_rows = FEW_ROWS_OTHERS;
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
