"""Builds the C part. It is optional: without a compiler the install succeeds and the numpy twins serve."""

from setuptools import Extension, setup

VECTOR_HEADERS = [
    f"backburner/native/{name}.h" for name in ("cpu", "simd", "each_isa", "each_isa_end", "vector_math")
]

# Plain shared libraries opened with ctypes; each has an empty module init so that setuptools can name and place it.
setup(
    ext_modules=[
        Extension(
            "backburner.native._blas",
            sources=["backburner/native/blas.c"],
            depends=["backburner/native/blas_body.h", *VECTOR_HEADERS],
            extra_compile_args=["-O3", "-std=c11"],
            optional=True,
        ),
        Extension(
            "backburner.native._kernels",
            sources=["backburner/native/attention.c"],
            depends=["backburner/native/attention_body.h", *VECTOR_HEADERS],
            libraries=["m"],
            extra_compile_args=["-O3", "-std=c11"],
            optional=True,
        ),
        Extension(
            "backburner.native._recurrent",
            sources=["backburner/native/recurrent.c"],
            depends=["backburner/native/recurrent_body.h", *VECTOR_HEADERS],
            libraries=["m"],
            extra_compile_args=["-O3", "-std=c11"],
            optional=True,
        ),
        Extension(
            "backburner.native._gating",
            sources=["backburner/native/gating.c"],
            depends=["backburner/native/gating_body.h", *VECTOR_HEADERS],
            extra_compile_args=["-O3", "-std=c11"],
            optional=True,
        ),
    ],
)
