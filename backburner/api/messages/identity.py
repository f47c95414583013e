"""Names of messages, requests and calls, with Anthropic's prefixes."""

import secrets

from backburner.api.format import new_id


def new_message_id() -> str:
    return new_id("msg", "_")


def new_request_id() -> str:
    return new_id("req", "_")


def new_tool_use_id() -> str:
    return "toolu_" + secrets.token_urlsafe(18)
