/* Loads, sums and elementary functions on vectors of floats, for the instruction set that each_isa.h has defined. */

#define Vec FN(Vec)
#define Int FN(Int)

INLINE Vec FN(load)(const float *p) {
    Vec x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void FN(store)(float *p, Vec x) { memcpy(p, &x, sizeof x); }

/* LANES float16 values as floats, exactly. */
INLINE Vec FN(load_f16)(const uint16_t *p) {
#if LANES == 16
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif LANES == 8
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
    return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    Int bits = {p[0], p[1], p[2], p[3]};
    Int magnitude = (bits & 0x7fff) << 13;
    /* The exponent's bias differs by 112; the product also makes subnormals normal. Infinity and NaN keep theirs. */
    Vec scaled = (Vec)magnitude * 0x1p112f;
    Int special = (bits & 0x7c00) == 0x7c00;
    return (Vec)((Int)scaled | (special & 0x7f800000) | ((bits & 0x8000) << 16));
#endif
}

/* LANES bfloat16 values, the upper halves of floats, as floats. */
INLINE Vec FN(load_bf16)(const uint16_t *p) {
#if LANES == 16
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
#elif LANES == 8
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
#elif defined(__aarch64__)
    return (Vec)vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16);
#else
    Int bits = {p[0], p[1], p[2], p[3]};
    return (Vec)(bits << 16);
#endif
}

/* The sum of the lanes, by halves. */
INLINE float FN(sum)(Vec x) {
    typedef float Four __attribute__((vector_size(16)));
    Four part[LANES / 4];
    memcpy(part, &x, sizeof x);
#if LANES == 16
    Four four = (part[0] + part[2]) + (part[1] + part[3]);
#elif LANES == 8
    Four four = part[0] + part[1];
#else
    Four four = part[0];
#endif
    return (four[0] + four[2]) + (four[1] + four[3]);
}

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
