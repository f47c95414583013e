"""Qwen hybrid models, loaded by mlx-lm and run layer by layer with paged attention."""

from backburner.native.blas import forward_blas

# MLX binds its BLAS when it is first imported, so forwarding has to happen before any module here imports it.
blas_status = forward_blas()
