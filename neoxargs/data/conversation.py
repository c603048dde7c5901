"""Conversations in the forms in which data sets store them, read from one JSON object per line.

A new form needs an entry in MESSAGES or QUESTIONS.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from neoxargs.base.problems import listed

Message = dict[str, Any]
Row = Mapping[str, Any]

#: Keys with a list of messages, in the order in which they are searched. GPT-NeoX's is `conversation`.
MESSAGES = ("messages", "conversation", "conversations")
#: Pairs of keys with a question and its answer: texts or lists of messages.
QUESTIONS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("query", "response"),
)
#: Keys with a text that is appended to an `instruction`: Alpaca's and Dolly's.
CONTEXTS = ("input", "context")
#: ShareGPT's names in `from` -> roles.
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
#: Names under which a message has a model's reasoning; templates read the first, gpt-oss's the second.
REASONING = ("reasoning_content", "thinking", "reasoning")

DropReason = Literal["empty", "empty answer", "unknown role", "no trained token", "answer cut off", "too long"]


class Rejected(Exception):
    """A line cannot be read: it is a problem for the user."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.advice = hint


class Dropped(Exception):
    """A conversation is left out and counted. role: the unknown one."""

    def __init__(self, reason: DropReason, role: str = "") -> None:
        super().__init__(reason)
        self.reason: DropReason = reason
        self.role = role


@dataclass(frozen=True)
class Conversation:
    """Messages and what else a template can use."""

    messages: list[Message]
    given: int = 0
    """Number of messages at the start that form the prompt, which is never trained on."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The template's other variables by name, such as `tools` and `documents`."""


class Form(NamedTuple):
    """The keys of a line with its conversation: one with messages, or two with a question and its answer."""

    keys: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.keys) == 1:
            return f'messages under "{self.keys[0]}"'
        return f'questions under "{self.keys[0]}", answers under "{self.keys[1]}"'


def detect(row: Row) -> Form | None:
    """Return the first form whose keys the row has."""
    for key in MESSAGES:
        if isinstance(row.get(key), list):
            return Form((key,))
    return next((Form(pair) for pair in QUESTIONS if all(row.get(key) is not None for key in pair)), None)


def keys_of(row: Row) -> str:
    """Return which keys a row has, in words."""
    if len(row) == 1:
        return f"its only key is {next(iter(row))}"
    return f"its keys are {listed(row, 'and')}" if row else "it has no keys"


def read(row: Row, form: Form) -> Conversation:
    """Return the conversation of a row; raise Rejected or Dropped."""
    missing = [key for key in form.keys if key not in row]
    if missing:
        raise Rejected(f'this line has no "{missing[0]}"', keys_of(row))
    if len(form.keys) == 1:
        given, messages = 0, _messages(row[form.keys[0]], form.keys[0])
    else:
        question, answer = form.keys
        asked = _question(row, question)
        given = len(asked) if isinstance(row[question], list) else 0
        messages = [*asked, *_turn(row[answer], "assistant", answer)]
    system = row.get("system")
    # Some data sets keep the system prompt beside the messages.
    if isinstance(system, str) and system and messages and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
        # The prompt is one message longer, if it is one of messages.
        given += given > 0
    if not messages:
        raise Dropped("empty")
    return Conversation(messages, given, _variables(row))


def reward(row: Row, key: str, binary: bool) -> float:
    """Return the reward of a row; raise Rejected. binary: it is true or false, which stands for 1 or -1."""
    if key not in row:
        raise Rejected(f'this line has no "{key}"', keys_of(row))
    value = row[key]
    if isinstance(value, list) and len(value) == 1:  # GPT-NeoX's tool reads lists, too
        value = value[0]
    if binary:
        if value not in (True, False):  # 1 and 0 equal them
            raise Rejected(f'"{key}" must be true or false, but is {json.dumps(value)}', "remove --binary-reward")
        return 1.0 if value else -1.0
    if isinstance(value, bool):
        raise Rejected(f'"{key}" must be a number, but is {json.dumps(value)}', "add --binary-reward")
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise Rejected(f'"{key}" must be a number, but is {json.dumps(value)}')
    return float(value)


def _question(row: Row, key: str) -> list[Message]:
    contexts = CONTEXTS if key == "instruction" else ()
    texts = [text for name in contexts if isinstance(text := row.get(name), str) and text]
    history = [
        message
        for asked, answered in row.get("history") or []
        for message in ({"role": "user", "content": asked}, {"role": "assistant", "content": answered})
    ]
    value = "\n\n".join([row[key], *texts]) if texts and isinstance(row[key], str) else row[key]
    return [*history, *_turn(value, "user", key)]


def _turn(value: Any, role: str, key: str) -> list[Message]:
    """Return the messages of a question or an answer."""
    if isinstance(value, list):
        return _messages(value, key)
    if not isinstance(value, str):
        raise Rejected(f'"{key}" must be a string or a list of messages, but is {_kind_in_words(value)}')
    if not value:
        raise Dropped("empty")
    return [{"role": role, "content": value}]


def _messages(value: Any, key: str) -> list[Message]:
    if not isinstance(value, list):
        raise Rejected(f'"{key}" must be a list of messages, but is {_kind_in_words(value)}')
    return [_message(entry, number) for number, entry in enumerate(value, start=1)]


def _message(entry: Any, number: int) -> Message:
    if not isinstance(entry, dict):
        raise Rejected(f"message {number} must be an object with role and content, but is {_kind_in_words(entry)}")
    message = _sharegpt(entry, number) if "from" in entry and "role" not in entry else entry
    has_content = "content" in message
    # Rows of Arrow and Parquet files have every key in every message, with null where it is not used; templates test
    # for presence.
    message = {key: value for key, value in message.items() if value is not None}
    if not isinstance(message.get("role"), str):
        raise Rejected(f"message {number} has no role", 'write {"role": "user", "content": "..."}')
    if not has_content and not calls_tools(message):
        what = f"message {number} (role {message['role']}) has no content"
        raise Rejected(what, 'write "content": "" if it is meant to be empty')
    message = _with_reasoning(message)
    content = message.get("content", "")
    if isinstance(content, list):
        _check_parts(content, number)
    elif not isinstance(content, str):
        raise Rejected(f"the content of message {number} must be a string, but is {_kind_in_words(content)}")
    return message


def _sharegpt(entry: Message, number: int) -> Message:
    """Return the message of an entry with `from` and `value`."""
    name, value = entry["from"], entry.get("value")
    role = SHAREGPT_ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise Dropped("unknown role", str(name))
    if "value" not in entry:
        raise Rejected(f"message {number} (from {name}) has no value", 'write "value": "" if it is meant to be empty')
    if name == "function_call":
        return {"role": role, "content": "", "tool_calls": [{"type": "function", "function": _call(value, number)}]}
    return {"role": role, "content": value}


def _call(value: Any, number: int) -> Any:
    try:
        call = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        call = None
    if not isinstance(call, dict) or "name" not in call:
        raise Rejected(f'message {number} is a function_call, so its value must be JSON with a "name"')
    return call


def _with_reasoning(message: Message) -> Message:
    """Return the message with its reasoning under the two names that templates read."""
    reasoning = next((message[key] for key in REASONING if key in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _check_parts(parts: Sequence[Any], number: int) -> None:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            if kind in (None, "text"):
                raise Rejected(f'each part of message {number} must look like {{"type": "text", "text": "..."}}')
            what = f"message {number} has a part of type {kind}, but only text can be tokenised"
            raise Rejected(what, "remove the line, or replace the part with a description in words")


def joined(messages: list[Message]) -> list[Message]:
    """Return the messages with contents of several parts joined to one text."""
    return [
        {**message, "content": "".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _variables(row: Row) -> dict[str, Any]:
    """Return what a row adds for the template: tools, documents, and the variables of `chat_template_kwargs`."""
    more = row.get("chat_template_kwargs")
    variables = dict(more) if isinstance(more, dict) else {}
    for key in ("tools", "documents"):
        value = row.get(key)
        if isinstance(value, str) and value:
            try:
                value = json.loads(value)
            except ValueError:
                raise Rejected(f'"{key}" must be a list, or a string with a JSON list') from None
        if value:
            if not isinstance(value, list):
                raise Rejected(f'"{key}" must be a list, but is {_kind_in_words(value)}')
            variables[key] = value
    return variables


def _kind_in_words(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def calls_tools(message: Message) -> bool:
    return bool(message.get("tool_calls") or message.get("function_call"))


def is_empty(message: Message) -> bool:
    """Whether a message has neither a text nor a call of a tool nor reasoning."""
    content = message.get("content")
    text = "".join(part["text"] for part in content) if isinstance(content, list) else content
    return not (text or calls_tools(message) or message.get("reasoning_content"))
