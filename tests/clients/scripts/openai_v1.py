"""openai 1.x: what it makes of the scripted server's streams and errors, as one JSON object."""

import json
import sys

import openai

url, tiny_url, given = sys.argv[1:]
case = json.loads(given)
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=30)
found = {"version": openai.__version__}


def ask(client=client, **fields):
    body = {"model": "tiny-qwen", "messages": [{"role": "user", "content": fields.pop("say", "hi")}]}
    return client.chat.completions.create(**body, **fields)


def error(**fields):
    try:
        for _ in ask(**fields):
            pass
    except openai.APIError as e:
        return {"class": type(e).__name__, "message": str(e), "code": e.code}
    return None


whole = ask()
found["whole"] = whole.model_dump()
chunks = list(ask(stream=True, stream_options={"include_usage": True}))
found["streamed"] = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
found["usage"] = chunks[-1].usage.model_dump()
with client.beta.chat.completions.stream(
    model="tiny-qwen", messages=[{"role": "user", "content": case["calls"]}], tools=case["tools"]
) as stream:
    kinds = [event.type for event in stream]
    found["assembled"] = stream.get_final_completion().model_dump()["choices"][0]
found["kinds"] = kinds
found["thinks"] = ask(say=case["thinks"], reasoning_effort="high").choices[0].message.model_dump()
found["errors"] = {
    "breaks": error(say=case["breaks"], stream=True),
    "defect": error(say=case["defect"]),
    "lost": error(say=case["lost"]),
    "overflow": error(say=case["overflow"]),
    "value": error(n=0),
}
tiny = openai.OpenAI(base_url=tiny_url, api_key="none", max_retries=0, timeout=60)
answer = tiny.chat.completions.create(model="tiny", messages=case["messages"], temperature=0, max_tokens=60)
found["tiny"] = answer.choices[0].message.content
print(json.dumps(found))
