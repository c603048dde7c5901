"""A conversation with a chat model: its template makes the prompt of the messages so far; the answer is streamed."""

from __future__ import annotations

import sys
from datetime import datetime

from neoxargs.base.problems import Problem, Problems
from neoxargs.data.chat.template import Template, TemplateError
from neoxargs.data.chat.tokens import ChatTokenizer
from neoxargs.data.encode import Recipe
from neoxargs.data.tokenizer import TokenizerOptions
from neoxargs.files import chat_templates
from neoxargs.train.generation.generator import Generator, Sample
from neoxargs.train.generation.typed import next_line
from neoxargs.train.process.from_rank0 import FromRank0

RESET = "/reset"
#: A text that no template writes by itself.
PROBE = "\ufdd2"


class Conversation:
    """The messages so far. Raises Problems if the tokenizer has no chat template, or the template fails."""

    def __init__(self, tokenizer: TokenizerOptions, requested: str | None) -> None:
        """requested: a template's file or name, in place of the tokenizer's own."""
        recipe = Recipe(tokenizer.tokenizer_type, tokenizer.vocab_file, tokenizer.merge_file)
        settings = chat_templates.read(recipe.tokenizer_type, recipe.vocab_file)
        self.tokenizer = ChatTokenizer(recipe, settings)
        source = chat_templates.choose(settings, requested, "chat_template")["default"]
        self.template = Template(source, self.tokenizer.special, datetime.now())
        self.messages: list[dict[str, str]] = []

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def prompt(self) -> list[int]:
        """Return the tokens that the model continues with an answer."""
        return self.tokenizer.ids(self._text(self.messages, prompt=True))

    def end_of_turn(self) -> int | None:
        """Return the token that the template writes after an answer; None if it is text, or nothing."""
        said = [{"role": "user", "content": "."}, {"role": "assistant", "content": PROBE}]
        after = self._text(said).rpartition(PROBE)[2].strip()
        return self.tokenizer.ids(after)[0] if after and self.tokenizer.is_one_token(after) else None

    def _text(self, messages: list[dict[str, str]], prompt: bool = False) -> str:
        try:
            return self.template.render(list(messages), prompt=prompt)
        except TemplateError as error:
            what = f"the chat template {self.template.source.name} cannot render this conversation: {error}"
            raise Problems(Problem(what, id="chat-template-failed")) from error


def chat(generator: Generator, conversation: Conversation, main: bool) -> None:
    """Answer the lines of rank 0's standard input until it ends; every rank makes the same calls."""
    from_rank0, tokenizer = FromRank0(), generator.tokenizer
    if (end := conversation.end_of_turn()) is not None:
        tokenizer.ends |= {end}
    while (line := from_rank0.broadcast(_read() if main else None)) is not None:
        if line == RESET:
            conversation.messages.clear()
        if line in ("", RESET):
            continue
        conversation.add("user", line)
        sample = generator.sample(line, conversation.prompt())
        for warning in generator.overlong([sample]) if main else ():
            print(warning, file=sys.stderr, flush=True)
        stream = _Stream(generator)
        generator.finish([sample], stream.show if main else lambda sample: None)
        answer = tokenizer.detokenize(sample.ids)
        if main:
            print(answer[stream.shown :], flush=True)
        conversation.add("assistant", answer)


class _Stream:
    """Prints an answer while it grows; `shown` is the number of characters so far."""

    def __init__(self, generator: Generator) -> None:
        self.tokenizer, self.shown = generator.tokenizer, 0

    def show(self, sample: Sample) -> None:
        text = self.tokenizer.detokenize(sample.ids)
        if not text.endswith("\ufffd"):  # the first bytes of a character whose other bytes follow
            print(text[self.shown :], end="", flush=True)
            self.shown = len(text)


def _read() -> str | None:
    """Return the next message, without spaces around it; None at the end of the input."""
    asks = sys.stdin is not None and sys.stdin.isatty()
    print("> " if asks else "", end="", flush=True)
    line = next_line()
    if not line and asks:
        print(flush=True)  # after Ctrl-D
    return line.strip() if line else None
