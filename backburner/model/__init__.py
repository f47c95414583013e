"""Qwen hybrid models, loaded by mlx-lm and run layer by layer with paged attention."""
