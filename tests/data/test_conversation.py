"""The forms in which data sets store conversations."""

from __future__ import annotations

import json

import pytest

from neoxargs.data.conversation import Dropped, Form, Rejected, detect, joined, read
from tests.support.snapshots import pinned

QUESTION, ANSWER = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
CALL = {"name": "add", "arguments": {"a": 1}}


def found(row):
    """Return the form of a row and its conversation."""
    form = detect(row)
    assert form
    return form.keys, read(row, form)


@pytest.mark.parametrize(
    "row, keys",
    [
        ({"messages": [QUESTION, ANSWER]}, ("messages",)),
        ({"conversation": [QUESTION, ANSWER]}, ("conversation",)),
        ({"id": 1, "prompt": "Why?", "messages": [QUESTION, ANSWER]}, ("messages",)),
        ({"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]}, ("conversations",)),
        ({"prompt": "Why?", "completion": "So."}, ("prompt", "completion")),
        ({"prompt": [QUESTION], "completion": [ANSWER]}, ("prompt", "completion")),
        ({"prompt": [QUESTION], "response": "So."}, ("prompt", "response")),
        ({"instruction": "Why?", "input": "", "output": "So."}, ("instruction", "output")),
        ({"instruction": "Why?", "context": "", "response": "So."}, ("instruction", "response")),
        ({"question": "Why?", "answer": "So."}, ("question", "answer")),
        ({"query": "Why?", "response": "So."}, ("query", "response")),
        ({"messages": None, "question": "Why?", "answer": "So."}, ("question", "answer")),
    ],
)
def test_forms(row, keys) -> None:
    form, conversation = found(row)
    assert (form, conversation.messages) == (keys, [QUESTION, ANSWER])
    assert conversation.given == isinstance(row.get("prompt"), list)


def test_no_form() -> None:
    assert detect({"text": "x", "prompt": "x", "messages": "x"}) is None


def test_what_a_form_says() -> None:
    assert str(Form(("messages",))) == 'messages under "messages"'
    assert str(Form(("question", "answer"))) == 'questions under "question", answers under "answer"'


def test_context_history_and_system() -> None:
    row = {"system": "Be brief.", "instruction": "Add.", "input": "1, 2", "output": "3", "history": [["Why?", "So."]]}
    assert found(row)[1].messages == [
        {"role": "system", "content": "Be brief."},
        QUESTION,
        ANSWER,
        {"role": "user", "content": "Add.\n\n1, 2"},
        {"role": "assistant", "content": "3"},
    ]
    _, conversation = found({"system": "Be brief.", "prompt": [QUESTION], "completion": "So."})
    assert conversation.given == 2 and conversation.messages[0]["role"] == "system"
    own = [{"role": "system", "content": "Own."}, QUESTION]
    assert found({"system": "Be brief.", "messages": own})[1].messages == own


def test_sharegpt_tools() -> None:
    entries = [
        {"from": "human", "value": "1 + 1?"},
        {"from": "function_call", "value": json.dumps(CALL)},
        {"from": "observation", "value": "2"},
    ]
    assert found({"conversations": entries})[1].messages == [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
        {"role": "tool", "content": "2"},
    ]


def test_a_call_of_a_tool_needs_no_content() -> None:
    message = {"role": "assistant", "tool_calls": [{"function": CALL}]}
    assert found({"messages": [QUESTION, message]})[1].messages == [QUESTION, message]


def test_values_that_are_null_and_reasoning() -> None:
    messages = [{**QUESTION, "tool_calls": None}, {"role": "assistant", "content": None, "reasoning": "Hm."}]
    assert found({"messages": messages})[1].messages == [
        QUESTION,
        {"role": "assistant", "reasoning": "Hm.", "thinking": "Hm.", "reasoning_content": "Hm."},
    ]


def test_variables() -> None:
    row = {
        "messages": [QUESTION],
        "tools": json.dumps([CALL]),
        "documents": [{"title": "x"}],
        "chat_template_kwargs": {"x": 1},
    }
    assert found(row)[1].variables == {"tools": [CALL], "documents": [{"title": "x"}], "x": 1}
    assert found({"messages": [QUESTION], "tools": None, "documents": []})[1].variables == {}


def test_parts() -> None:
    parts = [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y?"}]
    conversation = found({"messages": [{"role": "user", "content": parts}, ANSWER]})[1]
    assert conversation.messages[0]["content"] == parts
    assert joined(conversation.messages) == [QUESTION, ANSWER]


@pytest.mark.parametrize("row", [
    {"messages": ["x"]}, {"messages": [QUESTION, {"content": "x"}]},
    {"messages": [QUESTION, {"role": "assistant"}]}, {"conversations": [{"from": "gpt"}]},
    {"messages": [{"role": "user", "content": 3}]},
    {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    {"messages": [{"role": "user", "content": ["Why?"]}]}, {"messages": [QUESTION], "tools": "{"},
    {"messages": [QUESTION], "tools": {"a": 1}}, {"question": 3, "answer": "x"},
    {"conversations": [{"from": "function_call", "value": "add"}]},
])  # fmt: skip
def test_malformed(row) -> None:
    with pytest.raises(Rejected) as caught:
        found(row)
    pinned(str(caught.value))


def test_a_line_of_another_form() -> None:
    with pytest.raises(Rejected, match='this line has no "messages"') as caught:
        read({"question": "Why?", "answer": "So."}, Form(("messages",)))
    pinned(caught.value.advice)
    with pytest.raises(Rejected) as caught:
        read({"text": "x"}, Form(("messages",)))
    pinned(caught.value.advice)
    with pytest.raises(Rejected) as caught:
        read({}, Form(("messages",)))
    assert caught.value.advice == "it has no keys"
    with pytest.raises(Rejected, match='"messages" must be a list of messages, but is a string'):
        read({"messages": "x"}, Form(("messages",)))


@pytest.mark.parametrize(
    "row, reason",
    [
        ({"messages": []}, "empty"),
        ({"question": "", "answer": "x"}, "empty"),
        ({"question": "x", "answer": ""}, "empty"),
        ({"conversations": [{"from": "moon", "value": "x"}]}, "unknown role"),
        ({"conversations": [{"from": 3, "value": "x"}]}, "unknown role"),
    ],
)
def test_dropped(row, reason) -> None:
    with pytest.raises(Dropped) as caught:
        found(row)
    assert caught.value.reason == reason
