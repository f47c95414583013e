/* What every C part starts with: exported names, names for each instruction set, and the choice between them. */
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

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define FN(name) JOIN(name, ISA)

INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

enum { GENERIC, AVX2, AVX512 };

/* The instruction set of a name, or with NULL the best one. -1: unknown, or this CPU does not have it. */
static int choose_isa(const char *name) {
#if defined(__x86_64__)
    if ((!name || !strcmp(name, "avx512")) && cpu_level() >= CPU_AVX512) return AVX512;
    if ((!name || !strcmp(name, "avx2")) && cpu_level() >= CPU_AVX2) return AVX2;
#endif
    return name && strcmp(name, "generic") ? -1 : GENERIC;
}

/* The variant of a function that each_isa.h has made for an instruction set. */
#if defined(__x86_64__)
#define VARIANT(isa, name) ((isa) == AVX512 ? name##_avx512 : (isa) == AVX2 ? name##_avx2 : name##_generic)
#else
#define VARIANT(isa, name) ((void)(isa), name##_generic)
#endif
