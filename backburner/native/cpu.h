/* Which instruction sets this CPU and its operating system offer; for simd.h.
 *
 * Asked of the CPU itself: __builtin_cpu_supports needs a runtime that not every clang brings (zig's answers no), and
 * older compilers do not know F16C by name.
 */
#if defined(__x86_64__)
#include <cpuid.h>

enum { CPU_BASELINE, CPU_AVX2, CPU_AVX512 }; /* AVX2 together with FMA and F16C; AVX-512F on top of them */

static int cpu_level(void) {
    unsigned a, b, c, d, saved, high;
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c))
        return CPU_BASELINE;
    /* XCR0: which registers the operating system keeps across a switch of threads. */
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5)) return CPU_BASELINE;
    return (saved & 0xe6) == 0xe6 && (b & 1u << 16) ? CPU_AVX512 : CPU_AVX2;
}
#endif
