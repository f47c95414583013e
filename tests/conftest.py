"""What all tests share: the environment that MLX needs, before anything imports it."""

import os

# Before any import of MLX or numpy's BLAS: see docs/architecture.md, "Threads and BLAS".
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from backburner.native.blas import forward_blas

forward_blas()
