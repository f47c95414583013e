/* Products with a gate: silu(x) y of SwiGLU and sigmoid(x) y of the attention output.
 *
 * MLX's CPU build computes one exponential at a time: 256 x 2048 values of SwiGLU take it 7.1 ms.
 */
#if defined(__linux__)
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu.h"

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

#define BODY "gating_body.h"
#include "each_isa.h"

typedef void (*Gate)(int64_t, const float *, const float *, float *);
static Gate swiglu = swiglu_generic, sigmoid_gate = sigmoid_gate_generic;

/* Selects an instruction set by name, or with NULL the best one. -1: unknown, or this CPU does not have it. */
EXPORT int bb_gating_select_isa(const char *name) {
#if defined(__x86_64__)
    if ((!name || !strcmp(name, "avx512")) && cpu_level() >= CPU_AVX512) {
        swiglu = swiglu_avx512, sigmoid_gate = sigmoid_gate_avx512;
        return 0;
    }
    if ((!name || !strcmp(name, "avx2")) && cpu_level() >= CPU_AVX2) {
        swiglu = swiglu_avx2, sigmoid_gate = sigmoid_gate_avx2;
        return 0;
    }
#endif
    if (name && strcmp(name, "generic")) return -1;
    swiglu = swiglu_generic, sigmoid_gate = sigmoid_gate_generic;
    return 0;
}

/* out[i] = silu(x[i]) y[i]; out may be x or y. */
EXPORT void bb_swiglu(int64_t count, const float *x, const float *y, float *out) { swiglu(count, x, y, out); }

/* out[i] = sigmoid(x[i]) y[i]; out may be x or y. */
EXPORT void bb_sigmoid_gate(int64_t count, const float *x, const float *y, float *out) {
    sigmoid_gate(count, x, y, out);
}

/* Python wants every extension module to have an initialiser; this one is only opened with ctypes. */
EXPORT void *PyInit__gating(void) { return NULL; }
