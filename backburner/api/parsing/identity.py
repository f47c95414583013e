"""Names of tool calls: what a client sends back with the result."""

import secrets


def new_call_id() -> str:
    return "call_" + secrets.token_urlsafe(18)  # 18 bytes are 24 characters
