"""The OpenAI-compatible HTTP endpoint; the only package that uses asyncio."""
