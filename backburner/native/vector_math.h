/* Elementary functions on vectors of floats, for the instruction set that each_isa.h or attention.c has defined. */

#define Vec FN(Vec)
#define Int FN(Int)

INLINE Vec FN(load)(const float *p) {
    Vec x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void FN(store)(float *p, Vec x) { memcpy(p, &x, sizeof x); }


/* e^x for x <= 0, within 1 ulp; 0 below -87.3, where floats become subnormal; NaN stays NaN. */
INLINE Vec FN(exp)(Vec x) {
    const Vec lowest = VSET1(-87.3f), magic = VSET1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    Int visible = ~(x < lowest);
    Vec y = VMAX(lowest, x);
    Vec shifted = VFMA(y, VSET1(1.44269504f), magic);
    Vec n = shifted - magic;
    Vec r = VFMA(n, VSET1(2.12194440e-4f), VFMA(n, VSET1(-0.693359375f), y)); /* ln 2 in two parts */
    Vec p = VSET1(1.9875691500e-4f);
    p = VFMA(p, r, VSET1(1.3981999507e-3f));
    p = VFMA(p, r, VSET1(8.3334519073e-3f));
    p = VFMA(p, r, VSET1(4.1665795894e-2f));
    p = VFMA(p, r, VSET1(1.6666665459e-1f));
    p = VFMA(p, r, VSET1(5.0000001201e-1f));
    p = VFMA(p, r * r, r) + VSET1(1.0f);
    Int power = (((Int)shifted - (Int)magic) + 127) << 23;
    return (Vec)((Int)(p * (Vec)power) & visible);
}

INLINE Vec FN(minus_abs)(Vec x) { return (Vec)((Int)x | (Int)VSET1(-0.0f)); }

/* 1 / (1 + e^-x), with one exponential of -|x|, which cannot overflow. */
INLINE Vec FN(sigmoid)(Vec x) {
    const Vec one = VSET1(1.0f);
    Vec e = FN(exp)(FN(minus_abs)(x));
    Int negative = x < VSET1(0.0f);
    Vec top = (Vec)((negative & (Int)e) | (~negative & (Int)one));
    return top / (one + e);
}

INLINE Vec FN(silu)(Vec x) { return x * FN(sigmoid)(x); }
