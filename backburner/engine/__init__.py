"""The engine thread: queue, scheduler, runner and sampling."""

# First of all, for its effect: modules here import MLX, and its BLAS has to be forwarded before that.
import backburner.model  # noqa: F401
