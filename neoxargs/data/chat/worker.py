"""Lines with conversations to token ids and labels, in this process or in several."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.data import text_files
from neoxargs.data.chat.masks import Marked, Span, marked
from neoxargs.data.chat.recipe import ChatRecipe
from neoxargs.data.chat.template import Template, TemplateError
from neoxargs.data.chat.tokens import ChatTokenizer, Labelled
from neoxargs.data.conversation import (
    Conversation,
    Dropped,
    DropReason,
    Form,
    Rejected,
    Row,
    read,
    reward,
)
from neoxargs.data.parallel import chunks, in_parallel
from neoxargs.data.text_files import Raw
from neoxargs.data.tokenizer import Ids
from neoxargs.files import chat_templates
from neoxargs.files.token_files.index import IGNORED


class Sample(NamedTuple):
    """A conversation for people to look at."""

    place: str
    text: str
    spans: list[Span]
    """Character ranges of the trained tokens."""
    end: str
    """The text of the appended end token, "" if none was appended."""
    end_trained: bool


class Found(NamedTuple):
    """The conversations with something in common, such as the reason for which they were left out."""

    conversations: int
    first: str
    """File and line of the first conversation."""

    def after(self, earlier: Found | None) -> Found:
        return earlier._replace(conversations=earlier.conversations + self.conversations) if earlier else self


@dataclass
class Counts:
    """What is counted of the conversations of a chunk, or of all."""

    uncut: array[int] = field(default_factory=lambda: array("i"))
    """Number of tokens in each conversation before it was cut or dropped because of its length."""
    tokens: int = 0
    trained: int = 0
    rewards: Counter[str] = field(default_factory=Counter)
    """Number of conversations with a `positive`, a `negative` and a `zero` reward."""
    problems: list[Problem] = field(default_factory=list)
    drops: dict[DropReason, Found] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    """Number of conversations with each of the peculiarities listed in `report.NOTES`."""
    empty_answers: Found | None = None
    """Conversations that are kept although a trained turn is empty."""
    roles: Counter[str] = field(default_factory=Counter)
    """Role -> number of turns; dropped conversations count as well."""
    unknown_roles: Counter[str] = field(default_factory=Counter)
    """Role -> number of conversations that are dropped because of it."""
    sample: Sample | None = None

    def drop(self, dropped: Dropped, raw: Raw) -> None:
        """Count a conversation that is left out."""
        self.drops[dropped.reason] = _first_found(raw).after(self.drops.get(dropped.reason))
        if dropped.role:
            self.unknown_roles[dropped.role] += 1

    def add(self, later: Counts) -> None:
        """Count the conversations of a later chunk as well."""
        self.uncut += later.uncut
        self.tokens += later.tokens
        self.trained += later.trained
        self.rewards += later.rewards
        self.problems += later.problems
        for reason, drops in later.drops.items():
            self.drops[reason] = drops.after(self.drops.get(reason))
        self.notes += later.notes
        if later.empty_answers:
            self.empty_answers = later.empty_answers.after(self.empty_answers)
        self.roles += later.roles
        self.unknown_roles += later.unknown_roles
        self.sample = self.sample or later.sample


@dataclass
class Encoded:
    """A chunk of conversations as tokens."""

    size: int
    """Bytes on disk, for the progress bar."""
    counts: Counts = field(default_factory=Counts)
    ids: Ids = field(default_factory=lambda: np.empty(0, np.int32))
    labels: Ids = field(default_factory=lambda: np.empty(0, np.int32))
    lengths: list[int] = field(default_factory=list)
    """Number of tokens in each conversation that is kept."""
    rewards: list[float] = field(default_factory=list)
    """The reward of each conversation that is kept, if they have rewards."""


def _first_found(raw: Raw) -> Found:
    return Found(1, f"{raw.path}:{raw.start}")


class Encoder:
    """Encodes chunks of lines.

    forms: file -> where its lines have their conversations. now: the time for templates that write the date.
    Raises Problems if the tokenizer or the template cannot be used.
    """

    def __init__(self, recipe: ChatRecipe, forms: dict[str, Form], now: datetime) -> None:
        self.recipe, self.forms = recipe, forms
        settings = chat_templates.read(recipe.tokenizer.tokenizer_type, recipe.tokenizer.vocab_file)
        self.tokenizer = ChatTokenizer(recipe.tokenizer, settings)
        sources = chat_templates.choose(settings, recipe.chat_template)
        self.templates = {name: Template(source, self.tokenizer.special, now) for name, source in sources.items()}
        unmarked = [template.source.name for template in self.templates.values() if not template.has_marks]
        if recipe.masking == "marks" and unmarked:
            what = f"--mask-by marks needs a template with {{% generation %}} marks, but {unmarked[0]} has none"
            raise Problems(Problem(what, hint=_NO_MARKS, id="chat-template-without-marks"))
        if recipe.masking == "reward" and self.tokenizer.end is None:
            what = "--for-rm needs an end token, at which the model gives its reward, but the tokenizer has none"
            hint = "set eos_token in the tokenizer_config.json of --tokenizer-path"
            raise Problems(Problem(what, hint=hint, id="tokenizer-without-end"))

    def encode(self, chunk: list[Raw]) -> Encoded:
        """Return the tokens and labels of a chunk of lines, in order; problems of lines are returned, not raised."""
        # Rendered one by one, then tokenised in one call, which is faster.
        result = Encoded(sum(raw.size for raw in chunk))
        counts = result.counts
        rendered: list[tuple[Raw, Marked, list[float]]] = []
        for raw in chunk:
            try:
                rendered.append((raw, *self._render(raw, counts)))
            except Dropped as dropped:
                counts.drop(dropped, raw)
            except _BadLine as bad:
                counts.problems.append(bad.problem)
        conversations = [text for _, text, _ in rendered]
        if self.recipe.masking == "reward":
            labelled = self.tokenizer.ended_twice(conversations)
        else:
            labelled = self.tokenizer.label(conversations, self.recipe.tokenizer.append_eod)
        kept: list[Labelled] = []
        for (raw, conversation, rewards), tokens in zip(rendered, labelled, strict=True):
            try:
                fitting = self._fitting(tokens, counts)
            except Dropped as dropped:
                counts.drop(dropped, raw)
                continue
            kept.append(fitting)
            result.rewards += rewards
            self._count_notes(conversation, tokens, counts)
            if conversation.empty_answers:
                counts.empty_answers = _first_found(raw).after(counts.empty_answers)
            counts.sample = counts.sample or self._sample(raw, conversation, fitting)
        result.ids = np.concatenate([result.ids, *(tokens.ids for tokens in kept)])
        result.labels = np.concatenate([result.labels, *(tokens.labels for tokens in kept)])
        result.lengths = [len(tokens.ids) for tokens in kept]
        counts.tokens, counts.trained = len(result.ids), int((result.labels != IGNORED).sum())
        counts.rewards.update("positive" if each > 0 else "negative" if each else "zero" for each in result.rewards)
        return result

    def _render(self, raw: Raw, counts: Counts) -> tuple[Marked, list[float]]:
        """Return the text of a line and its reward, if lines have rewards; raise _BadLine or Dropped."""
        line = raw.line or b""
        row = text_files.json_tree(raw, line)
        if isinstance(row, Problem):
            raise _BadLine(row)
        where = text_files.place(raw, line)
        if not isinstance(row, dict):
            raise _BadLine(Problem("this line is not a JSON object", where=where, id="text-line-not-an-object"))
        try:
            conversation, rewards = read(row, self.forms[raw.path]), self._rewards(row)
        except Rejected as error:
            raise _BadLine(Problem(str(error), where=where, hint=error.advice, id="chat-line-malformed")) from error
        counts.roles.update(message["role"] for message in conversation.messages)
        template = self._template(conversation)
        try:
            return marked(conversation, template, self.recipe), rewards
        except TemplateError as error:
            raise _BadLine(_template_problem(error, template, where)) from error

    def _rewards(self, row: Row) -> list[float]:
        key = self.recipe.reward_key
        return [reward(row, key, self.recipe.binary_reward)] if key else []

    def _template(self, conversation: Conversation) -> Template:
        name = "tool_use" if "tools" in conversation.variables and "tool_use" in self.templates else "default"
        return self.templates[name]

    def _fitting(self, tokens: Labelled, counts: Counts) -> Labelled:
        """Return the tokens, cut if they are too long and the recipe says so; raise Dropped."""
        if not len(tokens.ids):
            raise Dropped("empty")
        limit = self.recipe.max_length
        # Before cutting and dropping, because the summary reports the lengths of the data.
        counts.uncut.append(len(tokens.ids))
        if limit is not None and len(tokens.ids) > limit:
            if self.recipe.overlong == "drop":
                raise Dropped("too long")
            if self.recipe.overlong == "cut":
                # Only if the cut removes what was trained; conversations without any are counted as such.
                if tokens.has_loss and not tokens.cut(limit).has_loss:
                    raise Dropped("answer cut off")
                tokens = tokens.cut(limit)
        if not tokens.has_loss:
            raise Dropped("no trained token")
        return tokens

    def _count_notes(self, conversation: Marked, tokens: Labelled, counts: Counts) -> None:
        counts.notes.update(name for name, count in conversation.notes.items() if count)
        counts.notes["crossing"] += tokens.crossing
        end = self.tokenizer.end
        if self.recipe.masking == "reward":
            return
        if self.recipe.tokenizer.append_eod and end is not None and tokens.last_of(conversation.text) == end:
            counts.notes["two ends"] += 1

    def _sample(self, raw: Raw, conversation: Marked, tokens: Labelled) -> Sample:
        has_end = len(tokens.ids) > len(tokens.located.ids)
        return Sample(
            place=f"{raw.path}:{raw.start}",
            text=conversation.text[: tokens.end],
            spans=tokens.trained_spans(),
            end=(self.tokenizer.text_of_end() or "<end of document>") if has_end else "",
            end_trained=has_end and int(tokens.labels[-1]) != IGNORED,
        )


_NO_MARKS = "remove --mask-by, or put {% generation %} ... {% endgeneration %} around what the assistant writes"


class _BadLine(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.id)
        self.problem = problem


def _template_problem(error: TemplateError, template: Template, where: Place) -> Problem:
    source = template.source
    also: tuple[Place, ...] = ()
    if error.line and source.first_line:
        lines = source.text.splitlines()
        also = (Place(source.name, error.line, 1, lines[error.line - 1] if error.line <= len(lines) else ""),)
    inside = f" (line {error.line} of the template)" if error.line and not also else ""
    what = f"the chat template cannot be used for this conversation: {error}{inside}"
    return Problem(what, where=where, also=also, hint=error.advice, id="chat-template-failed")


def encode(raws: Iterable[Raw], encoder: Encoder, now: datetime, workers: int) -> Iterator[Encoded]:
    """Yield the tokens of each chunk, in order."""
    if workers > 1:
        arguments = (encoder.recipe, encoder.forms, now)
        return in_parallel(chunks(raws), _encoding, arguments, workers)
    return map(encoder.encode, chunks(raws))


def _encoding(recipe: ChatRecipe, forms: dict[str, Form], now: datetime) -> Callable[[list[Raw]], Encoded]:
    return Encoder(recipe, forms, now).encode
