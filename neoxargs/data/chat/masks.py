"""Find the characters of a conversation that are trained.

`turns` is GPT-NeoX's rule. Turn i is the text that the template adds when message i is appended:

    turn i = template(messages[:i+1], with a generation prompt if turn i+1 is trained)[length of the turns before:]

so the generation prompt, such as `<|im_start|>assistant`, belongs to the turn before the answer and is not trained.
Only the boundaries between trained and untrained turns matter, so only those are determined. If a template certainly
writes one message after the other (`Template.turns`), one rendering has all of them; otherwise each needs its own.
GPT-NeoX slices tokens; here characters are sliced, which gives the same labels wherever tokens end at the boundaries,
and loses no token where they do not.

The rule needs a template that renders the first messages of a conversation in the same way, however many follow. Some
templates do not: they remove a model's reasoning from all turns but the last, for example. `_by_content` then finds the
boundary in the complete text, from the message's content or the function that it calls.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from neoxargs.data.chat.recipe import ChatRecipe
from neoxargs.data.chat.template import CLOSE, OPEN, Template, TemplateError, Turns
from neoxargs.data.conversation import Conversation, Dropped, Message, calls_tools, is_empty, joined

Span = tuple[int, int]
#: A character that no text contains, to find the end of a message's content or of the last function that it calls.
END = "\ufdd3"


@dataclass
class Marked:
    """The text of a conversation, and which of its characters are trained."""

    text: str
    spans: list[Span]
    """Start and end of each trained range, in order."""
    notes: Counter[str] = field(default_factory=Counter)
    """Number of `relocated` boundaries and of trained `headers`, which the summary reports."""
    empty_answers: bool = False
    """Whether a trained turn is empty."""


class _Chat:
    """A conversation with its template."""

    def __init__(self, template: Template, messages: list[Message], variables: dict[str, Any]) -> None:
        self.template, self.messages, self.variables = template, messages, variables
        #: Generation prompt or not -> what the template then writes after the last message of `turns`.
        self._endings: dict[bool, str] = {}

    @cached_property
    def turns(self) -> Turns | None:
        return self.template.turns(self.messages, self.variables)

    @property
    def text(self) -> str:
        return self.turns.text if self.turns else self.render(self.messages)

    def render(self, messages: list[Message], *, prompt: bool = False, marks: bool = False) -> str:
        return self.template.render(messages, self.variables, prompt=prompt, marks=marks)

    def end_of_first(self, text: str, index: int, prompt: bool) -> int | None:
        """Return the length of the first messages' text, up to message `index`, if the complete text starts with it."""
        if self.turns is None:
            first = self.render(self.messages[: index + 1], prompt=prompt)
            return len(first) if text.startswith(first) else None
        if prompt not in self._endings:
            self._endings[prompt] = self.template.ending(self.messages, self.variables, prompt)
        end, ending = self.turns.ends[index], self._endings[prompt]
        return end + len(ending) if text.startswith(ending, end) else None


def marked(conversation: Conversation, template: Template, recipe: ChatRecipe) -> Marked:
    """Return the text and its trained ranges; raise TemplateError, or Dropped if nothing is trained."""
    messages = conversation.messages if template.takes_parts else joined(conversation.messages)
    chat = _Chat(template, messages, conversation.variables)
    if recipe.masking == "none":
        text = chat.render(messages)
        return Marked(text, [(0, len(text))])
    if recipe.masking == "reward":
        return Marked(chat.render(messages), [])
    trained = [_is_trained(conversation, index, recipe) for index in range(len(messages))]
    empty = [is_empty(message) for message, is_trained in zip(messages, trained, strict=True) if is_trained]
    # Before the checks of empty turns: with marks, the template decides what is trained, and not the roles.
    if recipe.masking == "marks":
        result = _by_marks(chat, recipe, conversation.given)
    elif not empty:
        raise Dropped("no trained token")
    elif all(empty):  # only the template's end of a turn would be trained: the model would learn to answer nothing
        raise Dropped("empty answer")
    else:
        result = _by_turns(chat, chat.text, trained)
    result.empty_answers = any(empty)
    return result


def _is_trained(conversation: Conversation, index: int, recipe: ChatRecipe) -> bool:
    message = conversation.messages[index]
    if index < conversation.given or (recipe.only_last and index < len(conversation.messages) - 1):
        return False
    return message["role"] in recipe.train_on and (recipe.tool_calls or not calls_tools(message))


def _by_turns(chat: _Chat, text: str, trained: list[bool]) -> Marked:
    result, start = Marked(text, []), 0
    last = len(trained) - 1
    for index, is_trained in enumerate(trained):
        # Between two turns of one kind no boundary is needed, so no rendering either.
        if index < last and trained[index + 1] == is_trained:
            continue
        end = len(text) if index == last else _boundary(chat, text, index, trained[index + 1], result.notes)
        # is_trained: a trained turn of no characters is an error, too, unless its message is empty.
        if end < start + is_trained and str(chat.messages[index].get("content") or "").strip():
            what = f"in the template's output, message {index + 1} does not follow the earlier messages"
            raise TemplateError(what, hint=_UNSTABLE)
        if is_trained and end > start:
            result.spans.append((start, end))
        start = max(start, end)
    return result


def _boundary(chat: _Chat, text: str, index: int, next_trained: bool, notes: Counter[str]) -> int:
    """Return where the turn after message `index` begins in the text; raise TemplateError if it cannot be found.

    Tried in this order: GPT-NeoX's rule, the same without a generation prompt (of templates whose prompt is not how a
    turn begins), and the two with a place in the message.
    """
    failure = TemplateError("")
    prompts = (True, False) if next_trained else (False,)
    for find in (_Chat.end_of_first, _by_content):
        for prompt in prompts:
            try:
                end = find(chat, text, index, prompt)
            except TemplateError as error:
                failure = error
                continue
            if end is not None:
                notes["headers"] += next_trained and not prompt
                notes["relocated"] += find is _by_content
                return end
    reason = f" ({failure})" if str(failure) else ""
    rendered = f"messages 1 to {index + 1}" if index else "message 1"
    what = f"the template renders {rendered} differently if more messages follow{reason}"
    what += ", so it is unclear where the next turn begins"
    raise TemplateError(what, hint=_UNSTABLE)


_UNSTABLE = (
    "use --only-last; or, in a copy of the template, put {% generation %} ... {% endgeneration %} around the text to "
    "train on, and set --chat-template to the copy and --mask-by to marks"
)


def _by_content(chat: _Chat, text: str, index: int, prompt: bool) -> int | None:
    """Find END in the message, and after it what the template writes there at the end of a chat."""
    first, all_messages = (_with_end(messages, index) for messages in (chat.messages[: index + 1], chat.messages))
    turns = chat.render(first, prompt=prompt)
    whole = chat.render(all_messages)
    # Exactly once, and without another effect: some templates test, strip or repeat contents.
    if turns.count(END) != 1 or whole.count(END) != 1 or whole.replace(END, "") != text:
        return None
    after = turns.partition(END)[2]
    end = whole.index(END)
    return end + len(after) if text.startswith(after, end) else None


def _with_end(messages: list[Message], index: int) -> list[Message]:
    """Return the messages with END in one, after the last visible character of its content, or of its last call's name.

    Which of the two a template writes last does not matter: what follows END in the turn is compared anyway.
    """
    message = messages[index]
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, str) and content.strip():
        # Before trailing blanks, which many templates strip.
        visible = len(content.rstrip())
        message = {**message, "content": content[:visible] + END + content[visible:]}
    elif isinstance(calls, list) and calls and isinstance(calls[-1], dict):
        message = {**message, "tool_calls": [*calls[:-1], _called_with_end(calls[-1])]}
    return [*messages[:index], message, *messages[index + 1 :]]


def _called_with_end(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if isinstance(function, dict):
        return {**call, "function": _called_with_end(function)}
    return {**call, "name": call["name"] + END} if isinstance(call.get("name"), str) else call


def _by_marks(chat: _Chat, recipe: ChatRecipe, given: int) -> Marked:
    """Return the ranges inside the template's `generation` marks. given: number of messages that are a prompt."""
    with_marks = chat.render(chat.messages, marks=True)
    text, spans = _without_marks(with_marks)
    # Templates may test the length or the last character of what they enclose.
    if text != chat.render(chat.messages):
        what = (
            "the template's output depends on the text inside its {% generation %} blocks, so deepy cannot determine "
        )
        raise TemplateError(what + "where this text begins and ends")
    if recipe.only_last:
        spans = spans[-1:] if chat.messages[-1]["role"] in recipe.train_on else []
    if given:
        start = _boundary(chat, text, given - 1, True, Counter())
        spans = [span for span in spans if span[0] >= start]
    if not spans:
        raise Dropped("no trained token")
    return Marked(text, spans)


def _without_marks(text: str) -> tuple[str, list[Span]]:
    """Return the text without OPEN and CLOSE, and the ranges that they enclosed."""
    parts, spans, position = [], [], 0
    for number, piece in enumerate(text.split(OPEN)):
        inside, _, outside = piece.partition(CLOSE) if number else ("", "", piece)
        if inside:
            spans.append((position, position + len(inside)))
        parts += [inside, outside]
        position += len(inside) + len(outside)
    return "".join(parts), spans
