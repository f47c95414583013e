"""Anthropic's Messages API over the same turns, parsers and engine as chat completions."""
