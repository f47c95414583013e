/* Products with a gate: silu(x) y of SwiGLU and sigmoid(x) y of the attention output.
 *
 * MLX's CPU build computes one exponential at a time: 256 x 2048 values of SwiGLU take it 7.1 ms.
 */
#include "simd.h"

#define BODY "gating_body.h"
#include "each_isa.h"

typedef void (*Gate)(int64_t, const float *, const float *, float *);
static Gate swiglu = swiglu_generic, sigmoid_gate = sigmoid_gate_generic;

/* Selects an instruction set by name, or with NULL the best one. -1: unknown, or this CPU does not have it. */
EXPORT int bb_select_isa(const char *name) {
    const int chosen = choose_isa(name);
    if (chosen < 0) return -1;
    swiglu = VARIANT(chosen, swiglu), sigmoid_gate = VARIANT(chosen, sigmoid_gate);
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
