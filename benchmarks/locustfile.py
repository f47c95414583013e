"""Users of locust, each asking for its own code over one of four endpoints: no answer may hold another user's.

    locust -f benchmarks/locustfile.py --headless -u 16 -r 16 -t 60s --host http://127.0.0.1:8080

The conversations are those of `benchmarks/clients.py`, which measures more and needs no locust; here another program
counts. An answer that differs from the user's first one, or that ends without its end, is a failure, and with one the
exit code is 1. Every seventh request of those who stream is left in mid-answer.
"""

import itertools
import json
from typing import Any

from clients import LEAVES_EVERY, Client, piece_text, whole_text
from locust import HttpUser, task

USERS = 16
NUMBERS = itertools.count()
LAST_FRAMES = {
    "chat": "[DONE]",
    "completions": "[DONE]",
    "responses": '"type":"response.completed"',
    "messages": '"type":"message_stop"',
}


class Gatekeeper(HttpUser):
    """Knows the code of one gate, and asks for it again and again."""

    def on_start(self) -> None:
        self.asks = Client(next(NUMBERS) % USERS)
        self.others = {Client(number).code for number in range(USERS)} - {self.asks.code}
        self.turn = self.asks.number
        self.first: str | None = None

    @task
    def ask(self) -> None:
        path, body = self.asks.request()
        self.turn += 1
        leaves = self.asks.streams and self.turn % LEAVES_EVERY == 0
        name = f"{path} {'left' if leaves else 'streamed' if self.asks.streams else 'whole'}"
        with self.client.post(
            path, name=name, json=body, stream=self.asks.streams, catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}: {response.text[:200]}")
            elif leaves:
                next(response.iter_lines())
                response.close()
                response.success()
            elif wrong := self._wrong(self._text(response)):
                response.failure(wrong)
            else:
                response.success()

    def _text(self, response: Any) -> str | None:
        """None: the stream broke off."""
        kind = self.asks.kind
        if not self.asks.streams:
            return whole_text(kind, response.json())
        frames = [line[6:].decode() for line in response.iter_lines() if line.startswith(b"data: ")]
        if not frames or LAST_FRAMES[kind] not in frames[-1]:
            return None
        return "".join(piece_text(kind, json.loads(frame)) for frame in frames if frame != "[DONE]")

    def _wrong(self, text: str | None) -> str | None:
        if text is None:
            return "the stream has no end"
        if any(code in text for code in self.others):
            return f"another user's code: {text[:200]}"
        if self.first is None:
            self.first = text
        return None if text == self.first else f"not what it was told first: {text[:200]}"
