"""Thoughts in `encrypted_content`: some agents send back nothing else, and the prompt has to stay the same.

Nothing is secret here, since the thoughts stand beside it in the clear. The form is only what such a client keeps.
"""

import base64

MARK = "backburner-thoughts:"


def pack_thoughts(text: str) -> str:
    return MARK + base64.b64encode(text.encode()).decode()


def unpack_thoughts(packed: str | None) -> str | None:
    """None for what another server has packed, or what was damaged: such thoughts are left out."""
    if packed is None or not packed.startswith(MARK):
        return None
    try:
        return base64.b64decode(packed.removeprefix(MARK), validate=True).decode()
    except ValueError:
        return None
