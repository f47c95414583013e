"""Past messages as chat templates want them; with a template that keeps thoughts, a prompt begins the next one."""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

import backburner
from backburner.api.errors import InvalidRequestError
from backburner.api.parsing.history import ArgumentsForms, for_template, probe
from backburner.api.parsing.parser import Parser
from backburner.api.parsing.pieces import join
from backburner.api.parsing.thinking import thinking_of

TINY = (Path(backburner.__file__).parent / "model" / "tiny" / "chat_template.jinja").read_text()

CALLS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL{% endfor %}\n{% endfor %}"
)
WALKS = CALLS.replace("CALL", "{% for k, v in c.function.arguments|items %}<{{ k }}>{{ v }}{% endfor %}")
DUMPS = CALLS.replace("CALL", "{{ c.function.arguments | tojson }}")
CONCATENATES = CALLS.replace("CALL", "{{ '<tool_call>' + c.function.arguments + '</tool_call>' }}")
PRINTS = CALLS.replace("CALL", "{{ c.function.arguments }}")
EITHER = CALLS.replace(
    "CALL",
    "{% set a = c.function.arguments %}{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}",
)
REFUSES = "{{ raise_exception('no tools here') }}"
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('only the first message may be of the system') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
)

# What Qwen's templates since 3.6 do with thoughts, calls and results; written for this test.
KEEPS_THOUGHTS = """
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if preserve_thinking is defined and preserve_thinking -%}
{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- m.content -}}
{%- for c in m.tool_calls or [] -%}
{{- '\\n\\n' if m.content and loop.first else '' if loop.first else '\\n' -}}
{{- '<tool_call>\\n<function=' + c.function.name + '>\\n' -}}
{%- for k, v in c.function.arguments|items -%}
{{- '<parameter=' + k + '>\\n' + (v if v is string else v | tojson) + '\\n</parameter>\\n' -}}
{%- endfor -%}
{{- '</function>\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""


class Template:
    """Renders as transformers does; counts how often."""

    def __init__(self, chat_template: str) -> None:
        self.chat_template = chat_template
        self.rendered = 0
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = self._raise
        self._compiled = environment.from_string(chat_template)

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        self.rendered += 1
        return self._compiled.render(messages=messages, **kwargs)

    @staticmethod
    def _raise(message: str) -> None:
        raise jinja2.TemplateError(message)


def normal(*messages: dict[str, Any], template: str = WALKS) -> list[dict[str, Any]]:
    return for_template(messages, Template(template), ArgumentsForms())


def replay(arguments: Any, **fields: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call], **fields},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


def refusal(*messages: dict[str, Any], template: str = WALKS) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        normal(*messages, template=template)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (WALKS, "object"),
        (DUMPS, "object"),  # a string would be encoded twice
        (TINY, "object"),
        (KEEPS_THOUGHTS, "object"),
        (REFUSES, "object"),
        (CONCATENATES, "string"),  # an object breaks it
        (PRINTS, "string"),  # an object comes out as Python writes it
        (EITHER, "string"),  # the client's own bytes
    ],
)
def test_the_form_of_arguments_is_read_from_what_a_template_makes_of_each(template: str, form: str) -> None:
    assert probe(Template(template)) == form


def test_a_template_is_asked_once_and_only_if_calls_are_replayed() -> None:
    template, forms = Template(WALKS), ArgumentsForms()
    for_template([{"role": "user", "content": "hi"}], template, forms)
    assert template.rendered == 0
    for _ in range(3):
        for_template(replay("{}"), template, forms)
    assert template.rendered == 2
    assert forms.of(Template(CONCATENATES)) == "string"


@pytest.mark.parametrize("template", [WALKS, TINY, KEEPS_THOUGHTS])
def test_case_11_string_arguments_of_a_replayed_call_render_as_an_object(template: str) -> None:
    messages = normal(*replay('{"city": "Oslo", "none": null}'), template=template)
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo", "none": None}
    assert "Oslo" in Template(template).apply_chat_template(messages)


@pytest.mark.parametrize("arguments", ['{"city":  "Oslo"}', {"city": "Oslo"}])
def test_case_12_a_template_that_wants_strings_gets_strings(arguments: Any) -> None:
    messages = normal(*replay(arguments), template=CONCATENATES)
    text = arguments if isinstance(arguments, str) else '{"city": "Oslo"}'
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == text
    assert f"<tool_call>{text}</tool_call>" in Template(CONCATENATES).apply_chat_template(messages)


@pytest.mark.parametrize("template", [WALKS, CONCATENATES])
@pytest.mark.parametrize(
    "arguments", ['{"x":1', "[1]", '"text"', "NaN", '{"x": NaN}', '{"x": "\\ud83d"}', 5, []]
)
def test_case_19_malformed_replayed_arguments_are_a_clear_400(template: str, arguments: Any) -> None:
    error = refusal(*replay(arguments), template=template)
    assert error.param == "messages[1].tool_calls[0].function.arguments"
    assert error.param in error.message


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    [_, assistant, _] = normal(*replay(arguments))
    assert assistant["tool_calls"][0]["function"]["arguments"] == {}
    [_, assistant, _] = normal(*replay(arguments), template=CONCATENATES)
    assert assistant["tool_calls"][0]["function"]["arguments"] == "{}"


def test_case_21_null_content_beside_calls_is_empty_text() -> None:
    assert normal(*replay("{}"))[1]["content"] == ""
    assert normal({"role": "assistant"}) == [{"role": "assistant", "content": ""}]


def test_case_22_all_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": ""}, {"text": "two"}]
    for role in ("user", "system", "assistant", "tool"):
        assert normal({"role": role, "content": parts})[0]["content"] == "one two"


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "image_url"}, "image_url"),
        ("hi", "str"),
        ({"type": []}, "[]"),
        ({"type": "text"}, "no text"),
    ],
)
def test_other_parts_are_refused_by_the_name_of_their_type(part: Any, named: str) -> None:
    error = refusal({"role": "user", "content": [{"type": "text", "text": "x"}, part]})
    assert error.param == "messages[0].content"
    assert named in error.message
    assert "part 1" in error.message


def test_a_developer_is_the_system_and_unknown_fields_are_left_out() -> None:
    [message] = normal({"role": "developer", "content": "be brief", "refusal": None, "cache_control": {}})
    assert message == {"role": "system", "content": "be brief"}


SYSTEM, DEVELOPER = {"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}
USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
NOTHING = {"role": "system", "content": ""}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([SYSTEM, USER], "[system] Be kind.\n[user] hi\n"),
        ([NOTHING, USER], "[system] \n[user] hi\n"),
        ([SYSTEM, SYSTEM, USER], "[system] Be kind.\n\nBe kind.\n[user] hi\n"),
        ([SYSTEM, NOTHING, DEVELOPER, USER], "[system] Be kind.\n\nBe brief.\n[user] hi\n"),
        ([SYSTEM, USER, NOTHING], "[system] Be kind.\n[user] hi\n"),
        (
            [SYSTEM, USER, ASSISTANT, DEVELOPER, USER],
            "[system] Be kind.\n[user] hi\n[assistant] ho\n"
            "[user] <system-reminder>\nBe brief.\n</system-reminder>\n[user] hi\n",
        ),
        ([USER, SYSTEM], "[user] hi\n[user] <system-reminder>\nBe kind.\n</system-reminder>\n"),
    ],
)
def test_a_template_that_takes_one_system_message_gets_one(messages: Any, text: str) -> None:
    told = normal(*messages, template=ONE_SYSTEM)
    assert Template(ONE_SYSTEM).apply_chat_template(told) == text


def test_names_and_ids_of_results_are_kept() -> None:
    message = {"role": "tool", "name": "look", "tool_call_id": "c1", "content": "42"}
    assert normal(message) == [message]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_replayed_thoughts_reach_the_template_by_one_name(field: str) -> None:
    [message] = normal({"role": "assistant", "content": "a", field: "why"})
    assert message == {"role": "assistant", "content": "a", "reasoning_content": "why"}


def test_thoughts_of_another_shape_are_ignored() -> None:
    [message] = normal(
        {"role": "assistant", "content": "a", "reasoning_content": None, "reasoning": {"x": 1}}
    )
    assert message == {"role": "assistant", "content": "a"}


SCHEMA = {"properties": {"code": {"type": "string"}, "deep": {"type": "boolean"}, "at": {"type": "array"}}}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = (
    "<tool_call>\n<function=look>\n<parameter=code>\n    if x:\n\n</parameter>\n<parameter=deep>\ntrue\n</parameter>\n"
    '<parameter=at>\n[1, "é"]\n</parameter>\n</function>\n</tool_call>'
)


def continued(answer: str) -> tuple[str, str]:
    """The prompt with the answer that came, and the prompt of the turn after it."""
    template = Template(KEEPS_THOUGHTS)
    asked = [{"role": "user", "content": "hi"}]
    prompt = template.apply_chat_template(asked, add_generation_prompt=True, preserve_thinking=True)
    parser = Parser(thinking_of(prompt), tools=[LOOK], parses_calls=True)
    message = join([*parser.feed(answer), *parser.finish()])
    said: dict[str, Any] = {
        "role": "assistant",
        "content": message.content or None,
        "reasoning_content": message.reasoning,
    }
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    messages = for_template([*asked, said, {"role": "user", "content": "go on"}], template, ArgumentsForms())
    return prompt + answer, template.apply_chat_template(
        messages, add_generation_prompt=True, preserve_thinking=True
    )


@pytest.mark.parametrize(
    "answer",
    [
        "why\n\nso\n</think>\n\nYes.",
        f"why\n</think>\n\n{CALL}",
        f"why\n</think>\n\nLet me see:\n\n{CALL}\n{CALL}",
        "\n</think>\n\n    indented\n\n",
    ],
)
def test_case_36_a_replayed_turn_renders_to_the_very_text_that_was_generated(answer: str) -> None:
    so_far, following = continued(answer)
    assert following.startswith(so_far + "<|im_end|>\n")


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), min_size=1)


@settings(max_examples=100, deadline=None)
@given(words, words.filter(lambda text: text[0] not in " \t\r\n"))
def test_case_36_whatever_was_thought_and_said_the_prompt_is_a_prefix(thought: str, said: str) -> None:
    so_far, following = continued(f"{thought}\n</think>\n\n{said}")
    assert following.startswith(so_far + "<|im_end|>\n")
