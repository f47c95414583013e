/* Page attention on the CPU: the page layout, and the choice of instruction set for attention_body.h.
 *
 * A page is one buffer. For each kv head, blocks of up to 256 positions follow each other, and in each block
 *     K as tiles of 64 positions:       [rows / 64][head_dim][64]
 *     V as groups of up to 64 columns:  [v_cols / 64][rows][64]
 * so that both products, S = Q K^T and O += P V, are the same micro-kernel over rows of 64 contiguous values, and so
 * that one query reads the page as a single linear stream. Tiled K took 7.6 ms where row-major K took 12.1 ms (fp16,
 * 16,384 positions, AVX-512). v_cols is head_dim rounded up to 16; the padding and all unfilled rows are zero.
 *
 * Every row of the result depends on its own query only, by the same operations in the same order, however many
 * queries are asked at once and however the rows were appended.
 */
#include "simd.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };

enum {
    TILE = 64,        /* positions in a K tile, columns in a V group */
    BLOCK_ROWS = 256, /* positions between two looks at the softmax maximum; K and V in fp32 fill half of a 1 MB L2 */
    MAX_ROWS = 6,     /* query rows of a micro-kernel: 6 x 64 values are 24 of the 32 AVX-512 registers */
};

/* Mirrored by kernels.py. */
typedef struct {
    int32_t q_heads, kv_heads, head_dim, page_tokens, dtype;
    float scale;
} Geometry;

typedef struct {
    int64_t element_bytes;
    int64_t v_cols;         /* head_dim rounded up to 16 */
    int64_t block_rows;     /* positions in a block: 256, or less for a short page */
    int64_t v_offset;       /* in elements, from the start of a block */
    int64_t block_elements;
    int64_t head_elements;
} Layout;

typedef struct {
    const float *q;            /* [q_heads, tokens, head_dim] */
    int64_t tokens;
    const void *page;
    int64_t filled;
    int64_t first_visible;     /* rows that query 0 sees; may be negative or beyond filled */
    float *o;                  /* [q_heads, tokens, head_dim] */
    float *lse;                /* [q_heads, tokens] */
} PageTask;

static int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static Layout layout_of(const Geometry *g) {
    Layout l;
    l.element_bytes = g->dtype == FLOAT32 ? 4 : 2;
    l.v_cols = round_up(g->head_dim, 16);
    l.block_rows = min64(BLOCK_ROWS, round_up(g->page_tokens, TILE));
    l.v_offset = l.block_rows * g->head_dim;
    l.block_elements = l.v_offset + l.block_rows * l.v_cols;
    l.head_elements = l.block_elements * ((g->page_tokens + l.block_rows - 1) / l.block_rows);
    return l;
}

/* Where the columns from `column` on (a multiple of 64) of a block's V begin, and how wide their rows are. */
static int64_t v_group_width(const Layout *l, int64_t column) { return min64(TILE, l->v_cols - column); }

EXPORT int64_t bb_page_bytes(const Geometry *g) {
    Layout l = layout_of(g);
    return l.head_elements * l.element_bytes * g->kv_heads;
}

/* ---- rows in and out -------------------------------------------------------------------------------------------- */

/* Moves positions [start, start + count) between a page and k, v [kv_heads, count, head_dim], bit for bit. */
#define DEFINE_MOVE(NAME, TYPE, ASSIGN)                                                                               \
    static void NAME(const Geometry *g, TYPE *page, int64_t start, int64_t count, TYPE *k, TYPE *v) {                 \
        Layout l = layout_of(g);                                                                                      \
        int64_t dim = g->head_dim;                                                                                    \
        for (int64_t head = 0; head < g->kv_heads; head++) {                                                          \
            for (int64_t i = 0; i < count;) {                                                                         \
                int64_t position = start + i, row = position % l.block_rows;                                          \
                int64_t run = min64(count - i, TILE - row % TILE); /* the rest of this K tile */                      \
                TYPE *block = page + head * l.head_elements + position / l.block_rows * l.block_elements;             \
                TYPE *k_tile = block + row / TILE * TILE * dim + row % TILE;                                          \
                TYPE *k_rows = k + (head * count + i) * dim, *v_rows = v + (head * count + i) * dim;                  \
                for (int64_t d = 0; d < dim; d++)                                                                     \
                    for (int64_t r = 0; r < run; r++) ASSIGN(k_tile[d * TILE + r], k_rows[r * dim + d]);              \
                for (int64_t column = 0; column < dim; column += TILE) {                                              \
                    int64_t width = v_group_width(&l, column), used = min64(TILE, dim - column);                      \
                    TYPE *group = block + l.v_offset + column * l.block_rows + row * width;                           \
                    for (int64_t r = 0; r < run; r++)                                                                 \
                        for (int64_t c = 0; c < used; c++)                                                            \
                            ASSIGN(group[r * width + c], v_rows[r * dim + column + c]);                               \
                }                                                                                                     \
                i += run;                                                                                             \
            }                                                                                                         \
        }                                                                                                             \
    }
#define INTO_PAGE(page_value, row_value) ((page_value) = (row_value))
#define FROM_PAGE(page_value, row_value) ((row_value) = (page_value))
DEFINE_MOVE(append_32, uint32_t, INTO_PAGE)
DEFINE_MOVE(append_16, uint16_t, INTO_PAGE)
DEFINE_MOVE(rows_32, uint32_t, FROM_PAGE)
DEFINE_MOVE(rows_16, uint16_t, FROM_PAGE)

EXPORT void bb_append(const Geometry *g, void *page, int64_t start, int64_t count, void *k, void *v) {
    if (g->dtype == FLOAT32) append_32(g, page, start, count, k, v);
    else append_16(g, page, start, count, k, v);
}

EXPORT void bb_rows(const Geometry *g, void *page, int64_t start, int64_t count, void *k, void *v) {
    if (g->dtype == FLOAT32) rows_32(g, page, start, count, k, v);
    else rows_16(g, page, start, count, k, v);
}

/* ---- one body for each instruction set --------------------------------------------------------------------------- */

#define BODY "attention_body.h"
#include "each_isa.h"

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

typedef int (*AttendPage)(const Geometry *, const PageTask *);
static AttendPage attend_page = attend_page_generic;
static const char *isa = "generic";

/* Selects an instruction set by name, or with NULL the best one. -1: unknown, or this CPU does not have it. */
EXPORT int bb_select_isa(const char *name) {
    const int chosen = choose_isa(name);
    if (chosen < 0) return -1;
    attend_page = VARIANT(chosen, attend_page), isa = VARIANT(chosen, isa_name);
    return 0;
}

EXPORT const char *bb_isa(void) { return isa; }

/* One partial for each page: o [pages, q_heads, tokens, head_dim], lse [pages, q_heads, tokens]. first_visible may be
 * NULL. Returns -1 if there is no memory for the scratch space. */
EXPORT int bb_attend(const Geometry *g, const float *q, int64_t tokens, const void *const *pages,
                     const int64_t *filled, const int64_t *first_visible, int64_t n_pages, float *o, float *lse) {
    int64_t lse_stride = g->q_heads * tokens;
    for (int64_t p = 0; p < n_pages; p++) {
        PageTask task = {q, tokens, pages[p], filled[p], first_visible ? first_visible[p] : filled[p],
                         o + p * lse_stride * g->head_dim, lse + p * lse_stride};
        if (attend_page(g, &task)) return -1;
    }
    return 0;
}

/* Reads all of an array as fast as memory gives it: the yardstick of benchmarks/page.py. */
EXPORT uint64_t bb_read(const uint64_t *words, int64_t count) {
    uint64_t mixed[16] = {0}; /* two cache lines, so that no chain of operations holds the reads up */
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __builtin_prefetch(words + i + 1024);
        __builtin_prefetch(words + i + 1032);
        for (int j = 0; j < 16; j++) mixed[j] ^= words[i + j];
    }
    for (; i < count; i++) mixed[0] ^= words[i];
    for (int j = 1; j < 16; j++) mixed[0] ^= mixed[j];
    return mixed[0];
}

/* Python wants every extension module to have an initialiser; this one is only opened with ctypes. */
EXPORT void *PyInit__kernels(void) { return NULL; }
