/* Products with a gate for one instruction set: included once for each by gating.c, through each_isa.h. */

#define DEFINE_GATE(NAME, FUNCTION)                                                                                   \
    static void FN(NAME)(int64_t count, const float *x, const float *y, float *out) {                                 \
        int64_t i = 0;                                                                                                \
        for (; i + LANES <= count; i += LANES) FN(store)(out + i, FN(FUNCTION)(FN(load)(x + i)) * FN(load)(y + i));   \
        if (i < count) { /* the rest through the same operations, so that a value's bits do not depend on its place */ \
            float rest_x[LANES] = {0}, rest_y[LANES] = {0};                                                           \
            const size_t bytes = (size_t)(count - i) * sizeof(float);                                                 \
            memcpy(rest_x, x + i, bytes);                                                                             \
            memcpy(rest_y, y + i, bytes);                                                                             \
            FN(store)(rest_x, FN(FUNCTION)(FN(load)(rest_x)) * FN(load)(rest_y));                                     \
            memcpy(out + i, rest_x, bytes);                                                                           \
        }                                                                                                             \
    }
DEFINE_GATE(swiglu, silu)
DEFINE_GATE(sigmoid_gate, sigmoid)
#undef DEFINE_GATE
