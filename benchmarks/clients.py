"""Sixteen clients for a minute: every answer its own client's, and nothing left behind in the server.

    python benchmarks/clients.py --json

`backburner serve` with the embedded model and a worker, over loopback. Each client has its own code to ask for, in its
own conversation, whole or streamed over chat completions, completions, responses or messages; what it is told under
load has to be what it was told alone, before the load. Every seventh request is left in mid-answer. `mixed` counts
answers with another client's code, `changed` those that differ from the one given alone, `own` is the share of clients
whose code tiny copies at all. Memory, threads and open files are those of server and worker together, when idle before
and after.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from harness import fair_environment, finish

ROOT = Path(__file__).parent.parent
KINDS = ("chat", "completions", "responses", "messages")
LEAVES_EVERY = 7
MAX_TOKENS = 24
MiB = 2**20


@dataclass(slots=True)
class Client:
    """Asks for its own code, again and again."""

    number: int
    alone: str = ""
    answers: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    left: int = 0
    waits_s: list[float] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return KINDS[self.number % len(KINDS)]

    @property
    def streams(self) -> bool:
        return self.number // len(KINDS) % 2 == 0

    @property
    def code(self) -> str:
        return str(1357 + 523 * self.number)

    def request(self) -> tuple[str, dict[str, Any]]:
        fact = f"Notes. The code of the blue gate is {self.code}."
        question = "What is the code of the blue gate?"
        body: dict[str, Any] = {"model": "tiny", "temperature": 0, "stream": self.streams}
        user = [{"role": "user", "content": question}]
        if self.kind == "chat":
            system = {"role": "system", "content": fact}
            return "/v1/chat/completions", body | {"messages": [system, *user], "max_tokens": MAX_TOKENS}
        if self.kind == "completions":
            prompt = f"{fact} {question} The code of the blue gate is"
            return "/v1/completions", body | {"prompt": prompt, "max_tokens": MAX_TOKENS}
        if self.kind == "responses":
            return "/v1/responses", body | {
                "instructions": fact,
                "input": question,
                "max_output_tokens": MAX_TOKENS,
            }
        return "/v1/messages", body | {"system": fact, "messages": user, "max_tokens": MAX_TOKENS}

    async def ask(self, http: httpx.AsyncClient) -> str:
        path, body = self.request()
        if not self.streams:
            response = await http.post(path, json=body)
            response.raise_for_status()
            return whole_text(self.kind, response.json())
        return "".join([piece async for piece in self._pieces(http)])

    async def leave(self, http: httpx.AsyncClient) -> None:
        """Closes the connection before the answer is there, or in the middle of it."""
        self.left += 1
        if self.streams:
            async for _ in self._pieces(http):
                break
        else:
            path, body = self.request()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(http.post(path, json=body), 0.2)

    async def _pieces(self, http: httpx.AsyncClient) -> AsyncIterator[str]:
        path, body = self.request()
        async with http.stream("POST", path, json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield piece_text(self.kind, json.loads(line[6:]))

    async def run(self, http: httpx.AsyncClient, until: float) -> None:
        turn = self.number
        while time.monotonic() < until:
            turn += 1
            begun = time.monotonic()
            try:
                if turn % LEAVES_EVERY == 0:
                    await self.leave(http)
                else:
                    self.answers.append(await self.ask(http))
                    self.waits_s.append(time.monotonic() - begun)
            except (httpx.HTTPError, KeyError, ValueError) as e:
                self.errors.append(f"{self.kind}: {type(e).__name__}: {e}")


def whole_text(kind: str, answer: dict[str, Any]) -> str:
    if kind == "chat":
        return str(answer["choices"][0]["message"]["content"])
    if kind == "completions":
        return str(answer["choices"][0]["text"])
    if kind == "responses":
        return "".join(part["text"] for item in answer["output"] for part in item.get("content", ()))
    return "".join(block.get("text", "") for block in answer["content"])


def piece_text(kind: str, frame: dict[str, Any]) -> str:
    if frame.get("error"):
        raise ValueError(str(frame["error"]))
    if kind == "chat":
        return "".join(choice["delta"].get("content") or "" for choice in frame["choices"])
    if kind == "completions":
        return "".join(choice["text"] for choice in frame["choices"])
    if kind == "responses":
        return str(frame["delta"]) if frame["type"] == "response.output_text.delta" else ""
    return str(frame["delta"].get("text", "")) if frame["type"] == "content_block_delta" else ""


@dataclass(frozen=True, slots=True)
class Use:
    """What server and worker hold together."""

    memory_bytes: int
    threads: int
    files: int


def use_of(pid: int) -> Use:
    server = psutil.Process(pid)
    family = [server, *server.children(recursive=True)]
    return Use(
        sum(p.memory_info().rss for p in family),
        sum(p.num_threads() for p in family),
        sum(p.num_fds() for p in family),
    )


async def load(url: str, clients: list[Client], seconds: float) -> float:
    """All at once, each over connections of its own; gives the seconds until the last answer."""
    begun = time.monotonic()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        await asyncio.gather(*(client.run(http, begun + seconds) for client in clients))
    return time.monotonic() - begun


async def each_alone(url: str, clients: list[Client]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        for client in clients:
            client.alone = await client.ask(http)


def run(count: int, seconds: float) -> dict[str, Any]:
    # Not above: the parts of the tests are not on everybody's path.
    sys.path.insert(0, str(ROOT))
    from tests.processes import serve

    clients = [Client(number) for number in range(count)]
    # What the server wrote comes last, and is for whoever looks for a fault.
    with contextlib.redirect_stdout(sys.stderr), serve("--device", "loopback") as server:
        asyncio.run(each_alone(server.url, clients))
        # A short load first: threads and buffers that are made once are no leak.
        asyncio.run(load(server.url, [Client(number) for number in range(count)], min(5.0, seconds / 2)))
        server.until_idle()
        before = use_of(server.pid)
        took_s = asyncio.run(load(server.url, clients, seconds))
        server.until_idle()
        time.sleep(1)
        after = use_of(server.pid)
        alive = server.health()["status"]
    return summary(clients, took_s, before, after) | {"health": alive}


def summary(clients: list[Client], took_s: float, before: Use, after: Use) -> dict[str, Any]:
    codes = {client.code for client in clients}
    answers = [(client, text) for client in clients for text in client.answers]
    waits = sorted(wait for client in clients for wait in client.waits_s)
    return {
        "clients": len(clients),
        "seconds": round(took_s, 1),
        "answers": len(answers),
        "left": sum(client.left for client in clients),
        "errors": [error for client in clients for error in client.errors][:5],
        "mixed": sum(any(code in text for code in codes - {client.code}) for client, text in answers),
        "changed": sum(text != client.alone for client, text in answers),
        "own": round(sum(client.code in client.alone for client in clients) / len(clients), 3),
        "least_answers": min(len(client.answers) for client in clients),
        "most_answers": max(len(client.answers) for client in clients),
        "wait_s_p50": round(waits[len(waits) // 2], 3) if waits else None,
        "wait_s_max": round(waits[-1], 3) if waits else None,
        "memory_growth_mib": round((after.memory_bytes - before.memory_bytes) / MiB, 2),
        "threads": [before.threads, after.threads],
        "files": [before.files, after.files],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    fair_environment()
    result = run(options.clients, options.seconds)
    finish(result, options.json)
    return 0 if not result["errors"] and not result["mixed"] and not result["changed"] else 1


if __name__ == "__main__":
    sys.exit(main())
