"""Backburner: an OpenAI-compatible server for Qwen hybrid models with a coprocessor on the cable."""

__version__ = "0.1.0"
