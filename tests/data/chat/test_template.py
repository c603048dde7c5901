"""Chat templates: equal to transformers', and limited in time and size."""

from __future__ import annotations

import resource
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.data.chat import template as templates
from neoxargs.data.chat.template import CLOSE, OPEN, Template, TemplateError
from neoxargs.files.builtin_chat_templates import BUILT_IN
from neoxargs.files.chat_templates import TemplateSource
from tests.support import chat

NOW = datetime(2026, 11, 22)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "é<"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
CHATS = {
    "short": chat.CHATS[0],
    "system": chat.CHATS[1],
    "reasoning": chat.THINKING,
    "tools": [
        {"role": "user", "content": "1 + é?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "add", "content": "error"},
        {"role": "assistant", "content": "I cannot."},
    ],
}


def template(text: str, now: datetime = NOW) -> Template:
    return Template(TemplateSource(text, "t.jinja"), SPECIAL, now)


def published() -> list[Path]:
    """The templates of published models that trl contains."""
    import trl

    return sorted(Path(trl.__file__).parent.joinpath("chat_templates").glob("*.jinja"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("prompt", [False, True])
def test_published_templates_render_as_in_transformers(name, prompt) -> None:
    """About 70 templates: the same text, or both refuse the conversation."""
    files = published()
    assert len(files) > 30
    refused = [file.name for file in files if not _renders_as_in_transformers(file, name, prompt)]
    assert len(refused) < len(files) / 2, refused


def _renders_as_in_transformers(file: Path, name: str, prompt: bool) -> bool:
    """Return whether the template accepts the conversation."""
    from transformers.utils.chat_template_utils import render_jinja_template

    text, tools = file.read_text(encoding="utf-8"), [TOOL] if name == "tools" else None
    try:
        (expected,), _ = render_jinja_template([CHATS[name]], tools=tools, chat_template=text,
                                               add_generation_prompt=prompt, **SPECIAL)  # fmt: skip
    except Exception:  # any error of Python can occur in a template
        with pytest.raises(TemplateError):
            template(text, datetime.now()).render(CHATS[name], {"tools": tools}, prompt=prompt)
        return False
    found = template(text, datetime.now()).render(_normal(CHATS[name]), {"tools": tools}, prompt=prompt)
    assert found == expected, file.name
    return True


def _normal(messages):
    """What `conversation.read` does to messages."""
    from neoxargs.data.conversation import Form, read

    return read({"messages": messages}, Form(("messages",))).messages


@pytest.mark.parametrize("text", [*chat.TEMPLATES.values(), chat.MARKED, chat.REASONING, *BUILT_IN.values()])
def test_templates_render_as_in_transformers(text) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    for messages in (CHATS["short"], CHATS["system"], CHATS["reasoning"]):
        for prompt in (False, True):
            (expected,), _ = render_jinja_template([messages], chat_template=text, add_generation_prompt=prompt,
                                                   **SPECIAL)  # fmt: skip
            assert template(text).render(_normal(messages), prompt=prompt) == expected


@pytest.mark.parametrize(
    "text, rendered",
    {
        "{{ bos_token }}|{{ pad_token }}|{{ tools }}|{{ add_generation_prompt }}": "<s>||None|False",
        "{{ {'a': 'é<', 'b': none} | tojson }}": '{"a": "é<", "b": null}',
        "{{ [1] | tojson(indent=1) }}": "[\n 1\n]",
        "{{ strftime_now('%d %b %Y') }}": "22 Nov 2026",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}"
        "{{ i }}{% endfor %}": "013",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}": "2",
        "{{ dict(a=1).a }}{{ dict.fromkeys('ab', 2).b }}": "12",
        "  {% if true %}\n x\n  {% endif %}\n": " x\n",
    }.items(),
)
def test_what_templates_can_use(text, rendered) -> None:
    assert template(text).render(CHATS["short"]) == rendered


class TestGenerationMarks:
    def test_they_enclose_what_the_assistant_writes(self) -> None:
        marked = template(chat.MARKED)
        assert marked.has_marks and not template(chat.TEMPLATES["chatml"]).has_marks
        text = marked.render(CHATS["short"], marks=True)
        assert text.replace(OPEN, "").replace(CLOSE, "") == marked.render(CHATS["short"])
        assert text.partition(OPEN)[2].partition(CLOSE)[0] == "4<|im_end|>"

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_the_built_in_templates_have_them(self, name) -> None:
        text = template(BUILT_IN[name]).render(CHATS["tools"], marks=True)
        assert text.count(OPEN) == text.count(CLOSE) == 2
        call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é<"}}\n</tool_call>'
        assert text.partition(OPEN)[2].startswith(call)


class TestFailures:
    @pytest.mark.parametrize(
        "text, line, sentence",
        [
            ("\n{{ raise_exception('roles must alternate') }}", 2, "the template reports: roles must alternate"),
            ("{{ messages[0].content.missing() }}", 1, "'str object' has no attribute 'missing'"),
            ("\n\n{{ 1 / 0 }}", 3, "ZeroDivisionError: division by zero"),
            ("{{ messages.append(1) }}", 1, "access to attribute 'append' of 'list' object is unsafe."),
            ("{{ ''.__class__.mro() }}", 1, "access to attribute '__class__' of 'str' object is unsafe."),
            ("{% set ns = namespace(_a=1) %}", 1, "the namespace attribute _a must not begin with an underscore"),
            (
                "{{ 'a' * 10 ** 9 }}",
                1,
                "OverflowError: the product would have 1,000,000,000 characters or items, more than 50,000,000",
            ),
            ("{{ 9 ** 9999 }}", 1, "OverflowError: 9 ** 9999 is too large"),
            ("{% include 'x' %}", 1, "TypeError: no loader for this environment specified"),
        ],
    )
    def test_errors_name_the_line(self, text, line, sentence) -> None:
        with pytest.raises(TemplateError) as caught:
            template(text).render(CHATS["short"])
        assert (str(caught.value), caught.value.line) == (sentence, line)

    def test_endless(self, monkeypatch) -> None:
        monkeypatch.setattr(templates, "MAX_SECONDS", 0.05)
        nested = "{% for a in range(99999) %}\n{% for b in range(99999) %}{% set x = a %}{% endfor %}{% endfor %}"
        with pytest.raises(TemplateError, match=r"the template did not finish within 0.05 s") as caught:
            template(nested).render(CHATS["short"])
        assert caught.value.line in (1, 2)

    def test_too_long(self, monkeypatch) -> None:
        monkeypatch.setattr(templates, "MAX_CHARACTERS", 1000)
        with pytest.raises(TemplateError, match="the template writes more than 1,000 characters"):
            template("{% for a in range(2000) %}xy{% endfor %}").render(CHATS["short"])

    def test_a_thread_renders_without_a_time_limit(self) -> None:
        found = []
        thread = threading.Thread(target=lambda: found.append(template("x").render(CHATS["short"])))
        thread.start()
        thread.join()
        assert found == ["x"]

    def test_invalid(self) -> None:
        with pytest.raises(Problems, match=r"t.jinja:2:1: error: the chat template is not valid Jinja: "):
            template("{% if true %}\n{{ messages }")
        in_json = TemplateSource("a\n{% x %}", "tokenizer_config.json", 0)
        with pytest.raises(
            Problems, match=r"tokenizer_config\.json: error: line 2 of the chat template is not valid Jinja: "
        ):
            Template(in_json, {}, NOW)


def test_contents_in_parts() -> None:
    assert not template(chat.TEMPLATES["chatml"]).takes_parts
    assert not template("{{ messages[0].content.x.y }}").takes_parts
    assert template("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}").takes_parts


class TestParts:
    """A conversation in parts must be what the first messages alone would give; this is certain of few templates."""

    CERTAIN = {
        "first message": "{{ messages[0].role }}{% set all = messages %}{% for m in all %}{{ loop.index }}"
        "{{ m.content }}{% endfor %}{{ 'A:' if add_generation_prompt else '.' }}",
        "state": "{% set n = namespace(users=0) %}{% for m in messages %}"
        "{% set n.users = n.users + (m.role == 'user') %}{{ n.users }}{{ m.content }}{% endfor %}{{ eos_token }}",
        "conditions": "{% macro turn(m) %}[{{ m.role }}]{{ m.content | trim }}{% endmacro %}{% for m in messages %}"
        "{% if not loop.first %}{{ loop.previtem.role }}{% endif %}{{ turn(m) }}{% if m.role == 'user' %}"
        "{% continue %}{% endif %}|{% endfor %}",
    }
    #: Each reads what follows, or writes after the loop what the loop has changed.
    UNCERTAIN = {
        "last": "{% for m in messages %}{{ m.content }}{{ 'end' if loop.last }}{% endfor %}",
        "length": "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "next": "{% for m in messages %}{{ messages[loop.index0 + 1].role }}{{ m.content }}{% endfor %}",
        "slice": "{% for m in messages[1:] %}{{ m.content }}{% endfor %}",
        "last message first": "{{ messages[-1].role }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "two loops": "{% for m in messages %}{{ m.role }}{% endfor %}{% for m in messages %}{{ m.content }}"
        "{% endfor %}",
        "inside": "{% if true %}{% for m in messages %}{{ m.content }}{% endfor %}{% endif %}",
        "filter": "{% for m in messages if m.content %}{{ m.content }}{% endfor %}",
        "copy": "{% set all = messages %}{% if all %}{% set all = all[::-1] %}{% endif %}{% for m in all %}"
        "{{ m.content }}{% endfor %}",
        "prompt in the loop": "{% for m in messages %}{{ m.content }}{{ add_generation_prompt }}{% endfor %}",
        "state after": "{% set n = namespace(x='') %}{% for m in messages %}{% set n.x = m.role %}{{ m.content }}"
        "{% endfor %}{{ n.x }}",
        "macro after": "{% set n = namespace(x='') %}{% macro x() %}{{ n.x }}{% endmacro %}{% for m in messages %}"
        "{% set n.x = m.role %}{{ m.content }}{% endfor %}{{ x() }}",
    }

    @pytest.mark.parametrize("name", ["chatml", "headers", "plain", *CERTAIN, *BUILT_IN])
    @pytest.mark.parametrize("messages", chat.CHATS)
    def test_are_the_text_of_the_first_messages(self, name: str, messages: list[dict[str, Any]]) -> None:
        made = template({**BUILT_IN, **chat.TEMPLATES, **self.CERTAIN}[name])
        turns = made.turns(messages, {})
        assert turns and turns.text == made.render(messages) and len(turns.ends) == len(messages)
        for count, end in enumerate(turns.ends, 1):
            for prompt in (False, True):
                first = turns.text[:end] + made.ending(messages, {}, prompt)
                assert first == made.render(messages[:count], prompt=prompt)

    @pytest.mark.parametrize("name", UNCERTAIN)
    def test_are_refused_if_they_could_depend_on_what_follows(self, name: str) -> None:
        assert template(self.UNCERTAIN[name]).turns(chat.CHATS[1], {}) is None

    def test_a_loop_that_ends_early_has_no_parts(self) -> None:
        assert template("{% for m in messages %}{% break %}{% endfor %}").turns(chat.CHATS[1], {}) is None

    def test_a_failing_template_has_no_parts(self) -> None:
        assert template("{% for m in messages %}{{ m.absent.x }}{% endfor %}").turns(chat.CHATS[1], {}) is None


#: Templates that no limit of time or of what is written stops: what they compute, or how they are nested.
GROWING = {
    "a format": '{{ "%9999999999d" % 1 }}',
    "a filter": '{{ "a"|center(9999999999) }}',
    "a filter in a condition": '{% if "a"|center(9999999999) == "b" %}{% endif %}',
    "a set name": '{% set a = "a"|center(9999999999) %}',
    "a function": '{{ "a".ljust(9999999999) }}',
    "doubling": "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubled lists": "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
}
NESTED = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "signs": "{{ " + "- " * 20_000 + "1 }}",
    "not": "{{ " + "not " * 20_000 + "1 }}",
    "sums": "{{ 1" + " + 1" * 20_000 + " }}",
    "attributes": "{{ messages" + ".a" * 20_000 + " }}",
    "conditions": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "loops": "{% for i in [1] %}" * 200 + "{% endfor %}" * 200,
    "filters": "{{ 'a'" + "|trim" * 20_000 + " }}",
}


@pytest.mark.parametrize("name", GROWING)
def test_memory_is_limited_when_a_template_is_compiled_and_rendered(monkeypatch: Any, name: str) -> None:
    monkeypatch.setattr(templates, "MAX_BYTES", 1 << 28)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(TemplateError, match=r"it needs more than .* of memory"):
        template(GROWING[name]).render(chat.CHATS[0])
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_is_a_problem_and_no_traceback(name: str) -> None:
    with pytest.raises(Problems, match=r"^t\.jinja: error: the chat template cannot be compiled: ") as caught:
        template(NESTED[name])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_problem_of_compilation_names_its_cause() -> None:
    with pytest.raises(Problems, match=r"it is nested too deeply \[chat-template-not-compiled\]$"):
        template(NESTED["parentheses"])
