/* A Gated DeltaNet layer for one instruction set: included once for each by recurrent.c, through each_isa.h. */

static const char FN(isa_name)[] = ISA_NAME;

/* Vectors of value rows that run over the tokens together. With AVX-512 4 would save broadcasts, but 32 KB of state crowd
 * L1: 1.69 ms instead of 1.54; arm64 has narrow vectors and 32 registers. */
#if defined(__aarch64__)
#define BLOCK_VECTORS 4
#else
#define BLOCK_VECTORS 2
#endif
#define CHAINS 2 /* partial sums over the keys: one alone would wait for its own additions */

/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|), and log1p(e) = 2 artanh(e / (2 + e)): an odd series in at most 1/3, whose
 * first term left out is 3e-9 of the sum. */
INLINE Vec FN(softplus)(Vec x) {
    Vec e = FN(exp)(FN(minus_abs)(x));
    Vec s = e / (VSET1(2.0f) + e), s2 = s * s;
    Vec p = VSET1(2.0f / 15);
    p = VFMA(p, s2, VSET1(2.0f / 13));
    p = VFMA(p, s2, VSET1(2.0f / 11));
    p = VFMA(p, s2, VSET1(2.0f / 9));
    p = VFMA(p, s2, VSET1(2.0f / 7));
    p = VFMA(p, s2, VSET1(2.0f / 5));
    p = VFMA(p, s2, VSET1(2.0f / 3));
    p = VFMA(p, s2, VSET1(2.0f));
    return VFMA(p, s, VMAX(VSET1(0.0f), x));
}

/* to [n, width] = silu(convolution) of `width` channels for n tokens from `first` on. `from` is token 0's first of
 * these channels; `channel` is its place among all. */
static void FN(convolve)(const Layer *l, const Task *task, int64_t first, int64_t n, const float *from, int64_t channel,
                         int64_t width, float *to) {
    const int64_t channels = channels_of(l), before = l->taps - 1;
    const float *weight = l->conv + channel;
    for (int64_t i = 0; i < n; i++) {
        const float *row[MAX_TAPS];
        for (int tap = 0; tap < l->taps; tap++) {
            const int64_t t = first + i + tap - before;
            row[tap] = t >= 0        ? from + t * l->qkv_row
                       : task->conv_in ? task->conv_in + (t + before) * channels + channel
                                       : NULL;
        }
        int start = 0;
        while (!row[start]) start++;
        for (int64_t c = 0; c < width; c += LANES) {
            Vec sum = VSET1(0.0f);
            for (int tap = start; tap < l->taps; tap++)
                sum = VFMA(FN(load)(weight + tap * channels + c), FN(load)(row[tap] + c), sum);
            FN(store)(to + i * width + c, FN(silu)(sum));
        }
    }
}

/* Gives each of the n rows [width] of x the length `length`; mlx-lm does it as an RMS norm. */
static void FN(normalise)(float *x, int64_t n, int64_t width, float length) {
    const float eps = L2_EPS / (float)width;
    for (int64_t i = 0; i < n; i++, x += width) {
        Vec squares = VSET1(0.0f);
        for (int64_t c = 0; c < width; c += LANES) squares = VFMA(FN(load)(x + c), FN(load)(x + c), squares);
        const float factor = length / sqrtf((float)width) / sqrtf(FN(sum)(squares) / (float)width + eps);
        for (int64_t c = 0; c < width; c += LANES) FN(store)(x + c, FN(load)(x + c) * VSET1(factor));
    }
}

/* g, beta [n] of one value head: g = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b). Both arrays have room
 * for whole vectors. */
static void FN(gates)(const Layer *l, const Task *task, int64_t first, int64_t n, int64_t head, int64_t place, float *g,
                      float *beta) {
    const Vec rate = VSET1(-expf(l->a_log[head])), bias = VSET1(l->dt_bias[head]);
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t some = min64(LANES, n - i);
        float a[LANES] = {0}, b[LANES] = {0};
        for (int64_t j = 0; j < some; j++) {
            const int64_t at = (first + i + j) * l->ba_row + place;
            a[j] = task->a[at], b[j] = task->b[at];
        }
        FN(store)(g + i, FN(exp)(rate * FN(softplus)(FN(load)(a) + bias)));
        FN(store)(beta + i, FN(sigmoid)(FN(load)(b)));
    }
}

/* One head's q, k [n, dk] and v [n, dv], g, beta [n]; y [n, dv] takes v's place. */
typedef struct {
    int64_t n, dk, dv;
    const float *q, *k, *g, *beta;
    float *v;
} FN(Head);

/* `vectors` x LANES value rows of the state over all the tokens. s [dk, rows] is their transpose, in L1: a lane is a
 * row, so nothing has to be summed across lanes. One sweep over s applies token t and takes what token t + 1 needs. */
INLINE void FN(advance_rows)(const FN(Head) *h, float *state, int64_t row, float *s, const int vectors) {
    const int64_t dk = h->dk, rows = vectors * LANES;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < dk; j++) s[j * rows + r] = state[(row + r) * dk + j];

    Vec seen[CHAINS][BLOCK_VECTORS], out[CHAINS][BLOCK_VECTORS], delta[BLOCK_VECTORS];
    for (int i = 0; i < vectors; i++) seen[0][i] = seen[1][i] = VSET1(0.0f);
    for (int64_t j = 0; j < dk; j += CHAINS)
        for (int chain = 0; chain < CHAINS; chain++) {
            const Vec key = VSET1(h->k[j + chain]);
            for (int i = 0; i < vectors; i++)
                seen[chain][i] = VFMA(FN(load)(s + (j + chain) * rows + i * LANES), key, seen[chain][i]);
        }
    for (int64_t t = 0; t < h->n; t++) {
        const float *q = h->q + t * dk, *k = h->k + t * dk;
        const float *k_next = t + 1 < h->n ? k + dk : k; /* after the last token nobody asks for seen */
        const Vec g = VSET1(h->g[t]), beta = VSET1(h->beta[t]);
        float *v = h->v + t * h->dv + row;
        _Pragma("GCC unroll 4") for (int i = 0; i < vectors; i++) {
            delta[i] = beta * (FN(load)(v + i * LANES) - g * (seen[0][i] + seen[1][i]));
            seen[0][i] = seen[1][i] = out[0][i] = out[1][i] = VSET1(0.0f);
        }
        for (int64_t j = 0; j < dk; j += CHAINS) {
            _Pragma("GCC unroll 2") for (int chain = 0; chain < CHAINS; chain++) {
                const Vec key = VSET1(k[j + chain]), query = VSET1(q[j + chain]), next = VSET1(k_next[j + chain]);
                _Pragma("GCC unroll 4") for (int i = 0; i < vectors; i++) {
                    float *at = s + (j + chain) * rows + i * LANES;
                    const Vec x = VFMA(delta[i], key, g * FN(load)(at));
                    FN(store)(at, x);
                    out[chain][i] = VFMA(x, query, out[chain][i]);
                    seen[chain][i] = VFMA(x, next, seen[chain][i]);
                }
            }
        }
        _Pragma("GCC unroll 4") for (int i = 0; i < vectors; i++) FN(store)(v + i * LANES, out[0][i] + out[1][i]);
    }

    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < dk; j++) state[(row + r) * dk + j] = s[j * rows + r];
}

/* Two functions, so that the number of vectors is a constant in each and the sums stay in registers. */
static void FN(advance_block)(const FN(Head) *h, float *state, int64_t row, float *s) {
    FN(advance_rows)(h, state, row, s, BLOCK_VECTORS);
}
static void FN(advance_vector)(const FN(Head) *h, float *state, int64_t row, float *s) {
    FN(advance_rows)(h, state, row, s, 1);
}

static void FN(advance)(const FN(Head) *h, float *state, float *s) {
    int64_t row = 0;
    for (; row + BLOCK_VECTORS * LANES <= h->dv; row += BLOCK_VECTORS * LANES) FN(advance_block)(h, state, row, s);
    for (; row < h->dv; row += LANES) FN(advance_vector)(h, state, row, s);
}

/* Token t alone: a lane is a key, so that the state is read and written as it lies, once, at the speed of memory. */
static void FN(advance_one)(const FN(Head) *h, int64_t t, float *state) {
    enum { ROWS = 4 }; /* independent sums; dv is a multiple of 16 */
    const int64_t dk = h->dk;
    const float *q = h->q + t * dk, *k = h->k + t * dk;
    float *v = h->v + t * h->dv;
    const Vec g = VSET1(h->g[t]);
    for (int64_t row = 0; row < h->dv; row += ROWS) {
        float *s = state + row * dk;
        Vec sum[ROWS], delta[ROWS];
        for (int i = 0; i < ROWS; i++) sum[i] = VSET1(0.0f);
        for (int64_t j = 0; j < dk; j += LANES) {
            const Vec key = FN(load)(k + j);
            for (int i = 0; i < ROWS; i++) sum[i] = VFMA(FN(load)(s + i * dk + j), key, sum[i]);
        }
        for (int i = 0; i < ROWS; i++) {
            delta[i] = VSET1(h->beta[t] * (v[row + i] - h->g[t] * FN(sum)(sum[i])));
            sum[i] = VSET1(0.0f);
        }
        for (int64_t j = 0; j < dk; j += LANES) {
            const Vec key = FN(load)(k + j), query = FN(load)(q + j);
            for (int i = 0; i < ROWS; i++) {
                const Vec x = VFMA(delta[i], key, g * FN(load)(s + i * dk + j));
                FN(store)(s + i * dk + j, x);
                sum[i] = VFMA(x, query, sum[i]);
            }
        }
        for (int i = 0; i < ROWS; i++) v[row + i] = FN(sum)(sum[i]);
    }
}

/* z = silu(z) * RMS norm of y [n, dv]. */
static void FN(finish)(const Layer *l, const float *y, int64_t n, float *z) {
    const int64_t dv = l->dv;
    for (int64_t i = 0; i < n; i++, y += dv, z += l->z_row) {
        Vec squares = VSET1(0.0f);
        for (int64_t c = 0; c < dv; c += LANES) squares = VFMA(FN(load)(y + c), FN(load)(y + c), squares);
        const Vec factor = VSET1(1.0f / sqrtf(FN(sum)(squares) / (float)dv + l->norm_eps));
        for (int64_t c = 0; c < dv; c += LANES)
            FN(store)(z + c, FN(silu)(FN(load)(z + c)) * (FN(load)(y + c) * factor * FN(load)(l->norm + c)));
    }
}

/* The convolution's last taps - 1 input rows, for the next call. */
static void FN(keep_rows)(const Layer *l, const Task *task) {
    const int64_t channels = channels_of(l), keys = (int64_t)l->k_heads * l->dk, before = l->taps - 1;
    const int64_t group = l->v_heads / l->k_heads * l->dv;
    for (int64_t i = 0; i < before; i++) {
        const int64_t t = task->tokens - before + i;
        float *to = task->conv_out + i * channels;
        if (t < 0) {
            if (task->conv_in) memcpy(to, task->conv_in + (t + before) * channels, channels * sizeof *to);
            else memset(to, 0, channels * sizeof *to);
            continue;
        }
        const float *from = task->qkv + t * l->qkv_row;
        for (int64_t head = 0; head < l->k_heads; head++) {
            memcpy(to + head * l->dk, from + head * l->qk_head, l->dk * sizeof *to);
            memcpy(to + keys + head * l->dk, from + l->k_offset + head * l->qk_head, l->dk * sizeof *to);
            memcpy(to + 2 * keys + head * group, from + l->v_offset + head * l->v_group, group * sizeof *to);
        }
    }
}

static int FN(run)(const Layer *l, const Task *task) {
    const int64_t dk = l->dk, dv = l->dv, keys = l->k_heads * dk, group = l->v_heads / l->k_heads;
    const int64_t most = min64(task->tokens, CHUNK_TOKENS), gate_room = (most + LANES - 1) / LANES * LANES;
    const float q_length = 1.0f / sqrtf((float)dk);
    void *memory = NULL;
    if (posix_memalign(&memory, 64,
                       sizeof(float) * (dk * BLOCK_VECTORS * LANES + most * (2 * dk + dv) + 2 * gate_room)))
        return -1;
    float *s = memory, *q = s + dk * BLOCK_VECTORS * LANES, *k = q + most * dk, *v = k + most * dk;
    float *g = v + most * dv, *beta = g + gate_room;
    for (int64_t first = 0; first < task->tokens; first += CHUNK_TOKENS) {
        const int64_t n = min64(CHUNK_TOKENS, task->tokens - first);
        for (int64_t k_head = 0; k_head < l->k_heads; k_head++) {
            const float *q_from = task->qkv + k_head * l->qk_head;
            FN(convolve)(l, task, first, n, q_from, k_head * dk, dk, q);
            FN(convolve)(l, task, first, n, q_from + l->k_offset, keys + k_head * dk, dk, k);
            FN(normalise)(q, n, dk, q_length);
            FN(normalise)(k, n, dk, 1.0f);
            for (int64_t i = 0; i < group; i++) {
                const int64_t head = k_head * group + i;
                const FN(Head) h = {n, dk, dv, q, k, g, beta, v};
                float *state = task->state + head * dv * dk;
                FN(convolve)(l, task, first, n, task->qkv + l->v_offset + k_head * l->v_group + i * dv,
                             2 * keys + head * dv, dv, v);
                FN(gates)(l, task, first, n, head, k_head * l->ba_group + i, g, beta);
                /* By the call's tokens, not the chunk's: a last chunk of few tokens belongs to many. */
                if (task->tokens > FEW_TOKENS) FN(advance)(&h, state, s);
                else
                    for (int64_t t = 0; t < n; t++) FN(advance_one)(&h, t, state);
                FN(finish)(l, v, n, task->z + first * l->z_row + k_head * l->z_group + i * dv);
            }
        }
    }
    FN(keep_rows)(l, task);
    free(memory);
    return 0;
}

#undef BLOCK_VECTORS
#undef CHAINS
