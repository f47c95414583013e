/* Includes BODY once for each instruction set of this processor family, with
 *
 *     ISA       avx512, avx2 or generic (SSE2 or NEON through the compilers' vector types); FN(name) is name_ISA
 *     ISA_NAME  the same as a string
 *     LANES     floats in a vector; Vec and Int are vectors of floats and of int32
 *     VFMA, VMAX and VMIN (the second operand if either is NaN) and VSET1; vector_math.h has the rest
 *
 * defined, and undefines them again. The instruction sets beyond the baseline are chosen at run time, see cpu.h.
 */
#if defined(__x86_64__)

#define ISA avx512
#define ISA_NAME "avx512"
#define LANES 16
typedef __m512 Vec_avx512;
typedef int32_t Int_avx512 __attribute__((vector_size(64)));
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma,f16c")
#endif
#define VFMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define VMAX(a, b) _mm512_max_ps(a, b)
#define VMIN(a, b) _mm512_min_ps(a, b)
#define VSET1(x) _mm512_set1_ps(x)
#include "vector_math.h"
#include BODY
#include "each_isa_end.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#define ISA avx2
#define ISA_NAME "avx2"
#define LANES 8
typedef __m256 Vec_avx2;
typedef int32_t Int_avx2 __attribute__((vector_size(32)));
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define VFMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define VMAX(a, b) _mm256_max_ps(a, b)
#define VMIN(a, b) _mm256_min_ps(a, b)
#define VSET1(x) _mm256_set1_ps(x)
#include "vector_math.h"
#include BODY
#include "each_isa_end.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif /* __x86_64__ */

/* The baseline: SSE2 or NEON through the compilers' vector types; on arm64 with its fused multiply-add. */
#define ISA generic
#define ISA_NAME "generic"
#define LANES 4
typedef float Vec_generic __attribute__((vector_size(16)));
typedef int32_t Int_generic __attribute__((vector_size(16)));
INLINE Vec_generic choose_generic(Int_generic mask, Vec_generic yes, Vec_generic no) {
    return (Vec_generic)((mask & (Int_generic)yes) | (~mask & (Int_generic)no));
}
#define VMAX(a, b) choose_generic((a) > (b), a, b)
#define VMIN(a, b) choose_generic((a) < (b), a, b)
#define VSET1(x) ((Vec_generic){(x), (x), (x), (x)})
#if defined(__aarch64__)
#define VFMA(a, b, c) ((Vec_generic)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
#define VFMA(a, b, c) ((a) * (b) + (c))
#endif
#include "vector_math.h"
#include BODY
#include "each_isa_end.h"
