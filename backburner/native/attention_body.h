/* Page attention for one instruction set: included once for each by attention.c, through each_isa.h. */

static const char FN(isa_name)[] = ISA_NAME;

/* WIDE: vectors in a micro-kernel's row, whose MAX_ROWS sums and one row of B have to stay in registers: 24 + 4 of 32, or
 * 12 + 2 of 16. From WIDEN_ROWS query rows on, a block of 16-bit values is widened to fp32 once rather than at each use. */
#if LANES == 16
#define WIDE 4
#define WIDEN_ROWS INT64_MAX /* 2 queries (12 rows) 4.1 ms, against 7.5 widened; 16 queries 28, 31; 256 queries 463, 479 */
#elif LANES == 8
#define WIDE 2
#define WIDEN_ROWS INT64_MAX /* 2 queries 6.7 against 12.2 ms, 64 queries 211 against 217 */
#else
#if defined(__aarch64__)
#define WIDE 4
#else
#define WIDE 2
#endif
#define WIDEN_ROWS 12 /* without F16C a conversion is many operations: 12 rows 40 against 33 ms, 24 rows 79 against 51 */
#endif

#define LOAD_0(p) FN(load)((const float *)(p))
#define LOAD_1(p) FN(load_f16)((const uint16_t *)(p))
#define LOAD_2(p) FN(load_bf16)((const uint16_t *)(p))
#define ELEMENT_0 float
#define ELEMENT_1 uint16_t
#define ELEMENT_2 uint16_t

/* C[rows, vectors] = (keep ? C * keep[row] : 0) + A[rows, depth] B[depth, vectors]: a, c and b have rows of lda, ldc, ldb values.
 * As much memory as is read gets prefetched from `ahead` on.
 * The sums over depth run in order in every variant, so a row's bits do not depend on its neighbours. */
#define DEFINE_PRODUCT(DTYPE)                                                                                         \
    INLINE void FN(product_##DTYPE)(const float *a, int64_t lda, const void *b, int64_t ldb, int64_t depth, float *c, \
                                    int64_t ldc, const float *keep, const char *ahead, const int rows,                \
                                    const int vectors) {                                                              \
        Vec sum[MAX_ROWS][WIDE];                                                                                      \
        const ELEMENT_##DTYPE *b_row = b;                                                                             \
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)                                                        \
            _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++) sum[i][j] = VSET1(0.0f);                        \
        for (int64_t d = 0; d < depth; d++, b_row += ldb) {                                                           \
            Vec right[WIDE];                                                                                          \
            _Pragma("GCC unroll 4") for (int line = 0; line < vectors * LANES * (int)sizeof *b_row; line += 64)       \
                __builtin_prefetch(ahead + line);                                                                     \
            ahead += vectors * LANES * (int)sizeof *b_row;                                                            \
            _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++) right[j] = LOAD_##DTYPE(b_row + j * LANES);     \
            _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {                                                  \
                Vec left = VSET1(a[i * lda + d]);                                                                     \
                _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)                                             \
                    sum[i][j] = VFMA(left, right[j], sum[i][j]);                                                      \
            }                                                                                                         \
        }                                                                                                             \
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)                                                        \
            _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++) {                                               \
                float *out = c + i * ldc + j * LANES;                                                                 \
                FN(store)(out, keep ? VFMA(FN(load)(out), VSET1(keep[i]), sum[i][j]) : sum[i][j]);                          \
            }                                                                                                         \
    }
DEFINE_PRODUCT(0)
DEFINE_PRODUCT(1)
DEFINE_PRODUCT(2)

typedef void (*FN(Product))(const float *, int64_t, const void *, int64_t, int64_t, float *, int64_t, const float *,
                             const char *);
#define DEFINE_VARIANT(DTYPE, ROWS, VECTORS)                                                                          \
    static void FN(product_##DTYPE##_##ROWS##_##VECTORS)(const float *a, int64_t lda, const void *b, int64_t ldb,     \
                                                         int64_t depth, float *c, int64_t ldc, const float *keep,     \
                                                         const char *ahead) {                                         \
        FN(product_##DTYPE)(a, lda, b, ldb, depth, c, ldc, keep, ahead, ROWS, VECTORS);                               \
    }
#define DEFINE_ROWS(DTYPE, VECTORS)                                                                                   \
    DEFINE_VARIANT(DTYPE, 1, VECTORS)                                                                                 \
    DEFINE_VARIANT(DTYPE, 2, VECTORS)                                                                                 \
    DEFINE_VARIANT(DTYPE, 3, VECTORS)                                                                                 \
    DEFINE_VARIANT(DTYPE, 4, VECTORS)                                                                                 \
    DEFINE_VARIANT(DTYPE, 5, VECTORS)                                                                                 \
    DEFINE_VARIANT(DTYPE, 6, VECTORS)
#define ALL_ROWS(DTYPE, VECTORS)                                                                                      \
    {                                                                                                                 \
        FN(product_##DTYPE##_1_##VECTORS), FN(product_##DTYPE##_2_##VECTORS), FN(product_##DTYPE##_3_##VECTORS),      \
            FN(product_##DTYPE##_4_##VECTORS), FN(product_##DTYPE##_5_##VECTORS), FN(product_##DTYPE##_6_##VECTORS)   \
    }
#define NARROW (16 / LANES) /* vectors in 16 columns, the finest that v_cols is divided into */
#if WIDE * LANES == 64
/* Only AVX-512 has registers for 64 columns; the rest of a head_dim like 80 goes 16 columns at a time. */
#define HAS_NARROW 1
DEFINE_ROWS(0, 4)
DEFINE_ROWS(1, 4)
DEFINE_ROWS(2, 4)
DEFINE_ROWS(0, 1)
DEFINE_ROWS(1, 1)
DEFINE_ROWS(2, 1)
static const FN(Product) FN(narrow)[3][MAX_ROWS] = {ALL_ROWS(0, 1), ALL_ROWS(1, 1), ALL_ROWS(2, 1)};
static const FN(Product) FN(wide)[3][MAX_ROWS] = {ALL_ROWS(0, 4), ALL_ROWS(1, 4), ALL_ROWS(2, 4)};
#elif WIDE == 4
DEFINE_ROWS(0, 4)
DEFINE_ROWS(1, 4)
DEFINE_ROWS(2, 4)
static const FN(Product) FN(wide)[3][MAX_ROWS] = {ALL_ROWS(0, 4), ALL_ROWS(1, 4), ALL_ROWS(2, 4)};
#else
DEFINE_ROWS(0, 2)
DEFINE_ROWS(1, 2)
DEFINE_ROWS(2, 2)
static const FN(Product) FN(wide)[3][MAX_ROWS] = {ALL_ROWS(0, 2), ALL_ROWS(1, 2), ALL_ROWS(2, 2)};
#endif

/* The product over `columns` (a multiple of 16, at most 64) columns. */
static void FN(product)(int dtype, int rows, int64_t columns, const float *a, int64_t lda, const void *b, int64_t ldb,
                        int64_t depth, float *c, int64_t ldc, const float *keep) {
    const int64_t element_bytes = dtype == FLOAT32 ? 4 : 2;
    int64_t column = 0;
#if WIDE * LANES == 64
    /* 4, 8 and 16 KB ahead took 3.9, 3.6 and 4.1 ms in fp32, and 2.25, 2.04 and 1.83 ms in fp16. */
    const char *ahead = (const char *)b + (dtype == FLOAT32 ? 8192 : 16384);
#else
    /* Each part of the columns reads a strip of B; together they prefetch what follows B, in order. */
    const char *ahead = (const char *)b + columns * depth * element_bytes;
#endif
    for (; column + WIDE * LANES <= columns; column += WIDE * LANES)
        FN(wide)[dtype][rows - 1](a, lda, (const char *)b + column * element_bytes, ldb, depth, c + column, ldc, keep,
                                  ahead + column * depth * element_bytes);
#ifdef HAS_NARROW
    for (; column < columns; column += LANES)
        FN(narrow)[dtype][rows - 1](a, lda, (const char *)b + column * element_bytes, ldb, depth, c + column, ldc, keep,
                                    ahead + column * depth * element_bytes);
#endif
}

INLINE float FN(exp_one)(float x) { return FN(exp)(VSET1(x))[0]; }

/* Turns the scores s[0, width) of one query into softmax weights, of which the first `seen` count. Updates the running
 * maximum m and sum l, and returns the factor for what was summed before. width is a multiple of 64. */
INLINE float FN(weigh)(float *s, int64_t seen, int64_t width, float scale, float *m, float *l) {
    /* An overflow counts as the largest float: inf - inf would be NaN. */
    const Vec scales = VSET1(scale), highest = VSET1(FLT_MAX), lowest = VSET1(-FLT_MAX);
    Vec maxima = VSET1(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= seen; i += LANES) {
        Vec x = VMAX(lowest, VMIN(highest, FN(load)(s + i) * scales));
        FN(store)(s + i, x);
        maxima = VMAX(maxima, x);
    }
    float best = *m;
    for (int lane = 0; lane < LANES; lane++) best = maxima[lane] > best ? maxima[lane] : best;
    for (; i < seen; i++) {
        float x = s[i] * scale;
        x = x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
        s[i] = x;
        best = x > best ? x : best;
    }
    for (; i < width; i++) s[i] = -INFINITY;
    const float shift = best == -INFINITY ? 0.0f : best; /* nothing seen yet: every weight is exp(-inf) = 0 */
    const float keep = FN(exp_one)(*m - shift);
    const Vec shifts = VSET1(shift);
    Vec sums = VSET1(0.0f);
    for (i = 0; i < width; i += LANES) {
        Vec x = FN(exp)(FN(load)(s + i) - shifts);
        FN(store)(s + i, x);
        sums = sums + x;
    }
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    *l = *l * keep + sum;
    *m = best;
    return keep;
}

/* Widens count values (a multiple of 16) to fp32, exactly. */
static void FN(widen)(int dtype, const void *from, float *to, int64_t count) {
    if (dtype == FLOAT16)
        for (int64_t i = 0; i < count; i += LANES) FN(store)(to + i, LOAD_1((const uint16_t *)from + i));
    else
        for (int64_t i = 0; i < count; i += LANES) FN(store)(to + i, LOAD_2((const uint16_t *)from + i));
}

/* One block of positions for all the query rows of a kv head; q, o [rows, head_dim] and [rows, ldo]. */
typedef struct {
    const Geometry *g;
    const Layout *l;
    const PageTask *task;
    const float *q;
    int64_t rows;
    float *o;
    int64_t ldo;
    float *m, *l_sum;
} FN(HeadTask);

INLINE int64_t FN(seen_by)(const PageTask *task, int64_t row) {
    int64_t visible = task->first_visible;
    /* Without an edge first_visible is filled, and later queries cannot see more than that. */
    visible += row % task->tokens;
    return max64(0, min64(task->filled, visible));
}

static void FN(attend_block)(const FN(HeadTask) *h, int dtype, const void *block, int64_t start) {
    const int64_t dim = h->g->head_dim, block_rows = h->l->block_rows;
    const int64_t element_bytes = dtype == FLOAT32 ? 4 : 2;
    const char *k = block, *v = (const char *)block + h->l->v_offset * element_bytes;
    _Alignas(64) float s[MAX_ROWS * BLOCK_ROWS];
    float keep[MAX_ROWS];
    const int64_t parts = (h->rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = h->rows * part / parts;
        const int rows = (int)(h->rows * (part + 1) / parts - first);
        int64_t seen[MAX_ROWS], most = 0;
        for (int i = 0; i < rows; i++) {
            seen[i] = max64(0, min64(block_rows, FN(seen_by)(h->task, first + i) - start));
            most = max64(most, seen[i]);
        }
        if (most == 0 && start > 0) continue;
        const int64_t width = round_up(most, TILE);
        for (int64_t tile = 0; tile < width; tile += TILE)
            FN(product)(dtype, rows, TILE, h->q + first * dim, dim, k + tile * dim * element_bytes, TILE, dim,
                        s + tile, BLOCK_ROWS, NULL);
        for (int i = 0; i < rows; i++)
            keep[i] = FN(weigh)(s + i * BLOCK_ROWS, seen[i], width, h->g->scale, h->m + first + i, h->l_sum + first + i);
        for (int64_t column = 0; column < h->l->v_cols; column += TILE) {
            const int64_t group = v_group_width(h->l, column);
            FN(product)(dtype, rows, group, s, BLOCK_ROWS, v + column * block_rows * element_bytes, group, most,
                        h->o + first * h->ldo + column, h->ldo, start ? keep : NULL);
        }
    }
}

static int FN(attend_page)(const Geometry *g, const PageTask *task) {
    const Layout l = layout_of(g);
    const int64_t dim = g->head_dim, rows = g->q_heads / g->kv_heads * task->tokens;
    const int padded = l.v_cols != dim;
    const int widened = g->dtype != FLOAT32 && rows >= WIDEN_ROWS;
    /* Scratch: m and l for each row, o if its rows are padded, one block in fp32. */
    const int64_t state = round_up(2 * rows, 16), o_values = padded ? rows * l.v_cols : 0;
    void *memory = NULL;
    if (posix_memalign(&memory, 64, sizeof(float) * (state + o_values + (widened ? l.block_elements : 0)))) return -1;
    float *m = memory, *l_sum = m + rows, *o_padded = m + state, *wide_block = o_padded + o_values;
    int64_t visible = 0; /* positions that any query sees */
    for (int64_t t = 0; t < task->tokens; t++) visible = max64(visible, FN(seen_by)(task, t));

    for (int64_t head = 0; head < g->kv_heads; head++) {
        float *o = task->o + head * rows * dim, *lse = task->lse + head * rows;
        FN(HeadTask) h = {g, &l, task, task->q + head * rows * dim, rows, padded ? o_padded : o, padded ? l.v_cols : dim, m, l_sum};
        const char *page = (const char *)task->page + head * l.head_elements * l.element_bytes;
        for (int64_t row = 0; row < rows; row++) m[row] = -INFINITY, l_sum[row] = 0.0f;
        for (int64_t start = 0; start == 0 || start < visible; start += l.block_rows) {
            const char *block = page + start / l.block_rows * l.block_elements * l.element_bytes;
            if (widened) {
                FN(widen)(g->dtype, block, wide_block, l.block_elements);
                FN(attend_block)(&h, FLOAT32, wide_block, start);
            } else {
                FN(attend_block)(&h, g->dtype, block, start);
            }
        }
        for (int64_t row = 0; row < rows; row++) {
            const float total = l_sum[row] == 0.0f ? 1.0f : l_sum[row];
            const float *from = h.o + row * h.ldo;
            for (int64_t d = 0; d < dim; d++) o[row * dim + d] = from[d] / total;
            lse[row] = l_sum[row] == 0.0f ? -INFINITY : m[row] + logf(total);
        }
    }
    free(memory);
    return 0;
}

#undef WIDE
#undef WIDEN_ROWS
#undef NARROW
#undef HAS_NARROW
#undef LOAD_0
#undef LOAD_1
#undef LOAD_2
#undef ELEMENT_0
#undef ELEMENT_1
#undef ELEMENT_2
#undef DEFINE_PRODUCT
#undef DEFINE_VARIANT
#undef DEFINE_ROWS
#undef ALL_ROWS
