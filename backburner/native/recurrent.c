/* A Gated DeltaNet layer between its projections on the CPU, and the choice of instruction set for recurrent_body.h.
 *
 * For each token: causal depthwise convolution and silu of q, k, v; unit length for q and k; gates g and beta; the
 * delta rule on each value head's state S [dv, dk],
 *     S_t = g S_{t-1} + beta (v - g S_{t-1} k) k^T,    y = S_t q;
 * and RMS norm of y times silu(z).
 *
 * The token loop, not the chunked form: a value row of S depends on k, q, g, beta and its own v only, so a block of rows
 * runs over all the tokens while it stays in L1, and that takes 4 operations per element of S where chunks need 3 and
 * the work inside the chunk. 256 tokens of 8 heads x 128 x 128 take 1.5 ms (AVX-512; AVX2 2.9), chunks in MLX's ops alone 9.4 ms.
 *
 * The bits of a token's result depend on the values, the instruction set and whether the call brings few tokens or more
 * than a few; not on alignment, and not on how the tokens are grouped within either kind.
 */
#include "simd.h"

#include <math.h>
#include <stdlib.h>

enum {
    CHUNK_TOKENS = 256, /* q, k and v of one head and so many tokens are 384 KB: they stay in a 1 MB L2 */
    FEW_TOKENS = 8,     /* up to here the state is used as it lies: 14 us a token; transposing it takes 85 us */
    MAX_TAPS = 8,
};

#define L2_EPS 1e-6f /* added to the sum of squares of q and of k, as mlx-lm's normalize_qk does */

/* One layer; mirrored by recurrent.py. The channels are q of all key heads, k of all key heads, v of all value heads.
 * Strides and offsets are in floats; value heads come in groups, of which each key head has one. */
typedef struct {
    int32_t k_heads, v_heads, dk, dv; /* dk and dv are multiples of 16 */
    int32_t taps;
    float norm_eps;
    const float *conv;    /* [taps, channels] */
    const float *a_log;   /* [v_heads] */
    const float *dt_bias; /* [v_heads] */
    const float *norm;    /* [dv] */
    int64_t qkv_row, k_offset, v_offset, qk_head, v_group;
    int64_t z_row, z_group;
    int64_t ba_row, ba_group;
} Layer;

typedef struct {
    int64_t tokens;
    const float *qkv;
    float *z; /* in: the output's gate; out: the output, in the same places */
    const float *b, *a;
    const float *conv_in; /* [taps - 1, channels], the rows before the first token; NULL: zeros */
    float *conv_out;      /* the same for the next call; not conv_in */
    float *state;         /* [v_heads, dv, dk], changed in place */
} Task;

static int64_t channels_of(const Layer *l) { return 2 * (int64_t)l->k_heads * l->dk + (int64_t)l->v_heads * l->dv; }

/* ---- one body for each instruction set --------------------------------------------------------------------------- */

#define BODY "recurrent_body.h"
#include "each_isa.h"

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

typedef int (*Run)(const Layer *, const Task *);
static Run run = run_generic;
static const char *isa = "generic";

/* Selects an instruction set by name, or with NULL the best one. -1: unknown, or this CPU does not have it. */
EXPORT int bb_select_isa(const char *name) {
    const int chosen = choose_isa(name);
    if (chosen < 0) return -1;
    run = VARIANT(chosen, run), isa = VARIANT(chosen, isa_name);
    return 0;
}

EXPORT const char *bb_isa(void) { return isa; }

EXPORT int64_t bb_recurrent_max_taps(void) { return MAX_TAPS; }

/* Runs the tokens through the layer. Returns -1, with nothing changed, if there is no memory for the scratch space. */
EXPORT int bb_recurrent(const Layer *layer, int64_t tokens, const float *qkv, float *z, const float *b, const float *a,
                        const float *conv_in, float *conv_out, float *state) {
    Task task = {tokens, qkv, z, b, a, conv_in, conv_out, state};
    return run(layer, &task);
}

/* Python wants every extension module to have an initialiser; this one is only opened with ctypes. */
EXPORT void *PyInit__recurrent(void) { return NULL; }
