"""Plays the conversations of tests/vectors/conversations/ to a running worker and says where its answers differ.

    backburner worker --listen 127.0.0.1:50060 &
    python -m scripts.converse 127.0.0.1:50060

The worker may be in any language; give it the address of a port that speaks plain frames.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from backburner.config import parse_address
from backburner.errors import BackburnerError, ConfigError, LinkClosed
from backburner.transport import messages as m
from backburner.transport.channel import Channel
from backburner.transport.codec import decode
from backburner.transport.frames import FrameReader
from backburner.transport.tcp import connect
from scripts.make_conversations import FOLDER, hello
from scripts.make_vectors import joined
from scripts.vector_files import as_json, from_json

# For one answer, and for the worker to be free again after a conversation.
REPLY_S = 10.0
FREE_S = 10.0
POLL_S = 0.05


class Caller:
    """A host that sends frames as they are given."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reader = FrameReader()

    def send(self, frame: bytes) -> None:
        self._channel.send([frame], time.monotonic() + REPLY_S)

    def receive(self) -> tuple[int, m.Message] | None:
        """The next message and its tag; None at the end of the stream."""
        deadline = time.monotonic() + REPLY_S
        while (frame := self._reader.next_frame()) is None:
            try:
                count = self._channel.recv_into(self._reader.space(), deadline)
            except LinkClosed:
                count = 0
            if not count:
                return None
            self._reader.filled(count)
        return frame.header.tag, decode(*frame)

    def is_left(self) -> bool:
        """Whether the worker closes now, with a goodbye or without."""
        last = self.receive()
        return last is None or (isinstance(last[1], m.Bye) and self.receive() is None)

    def leave(self) -> None:
        """Says goodbye."""
        with contextlib.suppress(BackburnerError):
            self.send(joined(0, m.Bye()))
        self._channel.close()


def differences(step: dict[str, Any], reply: tuple[int, m.Message] | None) -> Iterator[str]:
    """What is not as it should be, in words."""
    if reply is None:
        yield f"closed the connection where {step['reply']} belongs"
        return
    tag, message = reply
    name = type(message).__name__
    if tag != step["tag"]:
        yield f"tag {tag} where {step['tag']} belongs"
    if name != step["reply"]:
        said = f" {message.code}: {message.message}" if isinstance(message, m.Error) else ""
        yield f"{name}{said} where {step['reply']} {step['fields'].get('code', '')} belongs"
        return
    for field, wanted in step["fields"].items():
        found = as_json(getattr(message, field))
        tolerance = step["tolerances"].get(field)
        if found == wanted or (tolerance is not None and is_close(found, wanted, tolerance)):
            continue
        yield f"{name}.{field} is {found!s:.200}, not {wanted!s:.200}"


def is_close(found: Any, wanted: dict[str, Any], tolerance: float) -> bool:
    """|found - wanted| <= tolerance * max(1, |wanted|), as for the vectors of the attention."""
    if not isinstance(found, dict) or any(found[part] != wanted[part] for part in ("dtype", "shape")):
        return False
    a, b = (from_json(x).astype(np.float64) for x in (found, wanted))
    return bool((np.abs(a - b) <= tolerance * np.maximum(1, np.abs(b))).all())


class Player:
    def __init__(self, address: str) -> None:
        self._host, self._port = parse_address(address)

    def play(self, conversation: dict[str, Any]) -> Iterator[str]:
        """What differs in it."""
        first = bytes.fromhex(conversation["steps"][0]["send"])
        if not conversation["beside_another"]:
            yield from self._go_on(conversation, *self._begin(first))
            return
        before, answer = self._begin(joined(1, hello()))
        try:
            if answer is None or not isinstance(answer[1], m.Welcome):
                yield "did not greet the first host"
                return
            caller = Caller(connect(self._host, self._port))
            caller.send(first)
            yield from self._go_on(conversation, caller, caller.receive())
        finally:
            before.leave()

    def _begin(self, first: bytes) -> tuple[Caller, tuple[int, m.Message] | None]:
        """A connection, and the answer to its first request: not that a host is still there, who has just left."""
        until = time.monotonic() + FREE_S
        while True:
            caller = Caller(connect(self._host, self._port))
            caller.send(first)
            reply = caller.receive()
            busy = reply is not None and isinstance(reply[1], m.Error) and reply[1].code == "worker_busy"
            if not busy or time.monotonic() > until:
                return caller, reply
            caller.leave()
            time.sleep(POLL_S)

    def _go_on(
        self, conversation: dict[str, Any], caller: Caller, reply: tuple[int, m.Message] | None
    ) -> Iterator[str]:
        has_model = reply is not None and isinstance(reply[1], m.Welcome) and reply[1].layers > 0
        try:
            for i, step in enumerate(conversation["steps"]):
                if has_model and step["only_without_model"]:
                    continue
                if i:
                    caller.send(bytes.fromhex(step["send"]))
                    reply = caller.receive()
                found = list(differences(step, reply))
                if step["closes"] and not found and not caller.is_left():
                    found = ["did not close the connection after it"]
                yield from (f"{step['request']} ({step['about']}): {text}" for text in found)
                if found:  # what follows builds on it
                    return
        except BackburnerError as error:
            yield f"{step['request']} ({step['about']}): {error}"
        finally:
            caller.leave()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", help="of the worker, as 127.0.0.1:50060")
    args = parser.parse_args()
    wrong = 0
    try:
        player = Player(args.address)
        for conversation in json.loads((FOLDER / "index.json").read_text())["conversations"]:
            found = list(player.play(conversation))
            wrong += bool(found)
            print(f"{'DIFFERS' if found else 'ok':8}{conversation['name']}: {conversation['about']}")
            for text in found:
                print(f"        {text}")
    except (ConfigError, LinkClosed) as error:
        sys.exit(str(error))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
