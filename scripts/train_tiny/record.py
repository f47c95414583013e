"""Records what the released model answers to a few fixed prompts: tests/vectors/tiny.json, for tests/test_tiny.py."""

import hashlib
import json
from pathlib import Path
from typing import Any

from backburner.api.parsing.parser import Parser
from backburner.api.parsing.pieces import join
from backburner.model.load import TINY

from .player import Player

OUT = Path(__file__).parent.parent.parent / "tests" / "vectors" / "tiny.json"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
HARBOUR = json.loads((OUT.parent.parent.parent / "docs" / "examples" / "harbour.json").read_text())[
    "messages"
]


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


CASES: list[dict[str, Any]] = [
    {"name": "greeting", "messages": _user("Hi, I am Maria.")},
    {"name": "question", "messages": _user("What is a held page?")},
    {"name": "thinking", "messages": _user("What is Backburner?"), "thinking": True},
    {"name": "unknown", "messages": _user("Who is the president of France?")},
    {"name": "json", "messages": _user("Return JSON with name Maria and age 31.")},
    {"name": "tool", "messages": _user("What is the weather in Oslo?"), "tools": [WEATHER]},
    {"name": "recall", "messages": HARBOUR},
]


def main() -> None:
    player = Player(TINY)
    for case in CASES:
        text = player.tokenizer.apply_chat_template(
            case["messages"],
            tools=case.get("tools"),
            add_generation_prompt=True,
            enable_thinking=case.get("thinking", False),
            tokenize=False,
        )
        tokens = player.answer_tokens(text)
        answer = player.tokenizer.decode(tokens)
        parser = Parser(
            "open" if case.get("thinking") else "none",
            tools=case.get("tools", []),
            parses_calls=bool(case.get("tools")),
        )
        message = join([*parser.feed(answer), *parser.finish()])
        case["tokens"] = tokens
        case["content"] = message.content
        case["reasoning"] = message.reasoning
        case["calls"] = "".join(c.name + c.arguments for c in message.tool_calls)
        print(f"{case['name']}: {answer!r}")
    hashes = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(TINY.iterdir()) if p.is_file()
    }
    OUT.write_text(json.dumps({"sha256": hashes, "cases": CASES}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
