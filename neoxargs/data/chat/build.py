"""Conversations to token files: `<prefix>.bin` and `.idx` with the tokens, `<prefix>_label` with the labels, and with
`--reward-key` `<prefix>_reward` with the rewards.

`<prefix>.json` records what they were made from, so that `--if-missing` can tell whether they are up to date, and the
statistics that are printed. Tokens and labels are int32, so the files are byte for byte those of GPT-NeoX's tool.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from neoxargs.base.problems import Problem, Problems, close_matches, listed, printable, shortened
from neoxargs.data.chat import sources
from neoxargs.data.chat.recipe import ChatRecipe
from neoxargs.data.chat.worker import Counts, Encoded, Encoder, Sample, encode
from neoxargs.data.command import identity
from neoxargs.data.conversation import SHAREGPT_ROLES
from neoxargs.data.meter import Meter
from neoxargs.data.parallel import worker_count
from neoxargs.facts.vocab import vocabulary_hashes
from neoxargs.files import chat_templates
from neoxargs.files.token_files import writer as indexed
from neoxargs.files.token_files.made_from import (
    label_prefix,
    refuse_other_files,
    reward_prefix,
    sidecar,
    write_json,
)

#: Version of the output; increase it when the same conversations and recipe would give different files.
FORMAT = 2
#: After so many problems, no more lines are read.
MAX_PROBLEMS = 20


@dataclass(frozen=True)
class Summary:
    """Statistics of a token file with labels, as `<prefix>.json` stores them."""

    conversations: int
    tokens: int
    trained_tokens: int
    median_length: int
    """In tokens, as are the next two; of the conversations before any were cut or dropped because of their length."""
    length_95: int
    """95th percentile."""
    longest: int
    longer_than_max: int
    """Conversations of more than `max_length` tokens."""
    max_length: int | None
    overlong: str
    roles: dict[str, int]
    """Role -> number of turns, the most frequent first; dropped conversations count as well."""
    dropped: dict[str, dict[str, Any]]
    """Reason -> number of conversations, and the first one's file and line."""
    unknown_roles: dict[str, int]
    """Role -> number of conversations that were dropped because of it."""
    empty_answers: dict[str, Any] | None
    """Number of conversations that were kept although a trained turn is empty, and the first one's file and line."""
    notes: dict[str, int]
    split_markers: list[str]
    """Markers in the template that look like special tokens, but are not in the vocabulary."""
    forms: list[str]
    """The keys under which lines store their conversations, in words; one entry per form."""
    chat_template: str
    tokenizer_type: str
    vocab_size: int
    fingerprint: str
    """Hash of the files, the template and the recipe (see `fingerprint`)."""
    for_rm: bool = False
    """Whether the labels are those of a reward model."""
    rewards: dict[str, int] | None = None
    """Numbers of conversations with a positive, a negative and a zero reward; None without rewards."""
    vocab_file_hash: str = ""
    vocabulary_hash: str = ""
    """See `VocabularyHashes`; earlier versions recorded neither."""
    eod: int | None = None
    """The token that is appended to each conversation; None if there is none. Earlier versions did not record it."""


def build(texts: Sequence[str], recipe: ChatRecipe, prefix: Path, workers: int | None = None) -> tuple[Summary, Sample]:
    """Write the token files and return their statistics and a sample; the result does not depend on `workers`.

    Raises Problems if files are missing or have malformed lines, the tokenizer or the template cannot be used, or no
    conversation is left.
    """
    refuse_other_files(prefix)
    files = sources.find(texts)
    # One time for all workers and conversations, so that the result does not depend on when each was rendered.
    now = datetime.now()
    encoder = Encoder(recipe, sources.forms_of(files, recipe.json_keys), now)
    size, totals = sum(file.stat().st_size for file in files), Counts()
    with ExitStack() as stack:
        writers = [
            stack.enter_context(indexed.new_file(path, stored)) for path, stored in _files(recipe, prefix).items()
        ]
        meter = stack.enter_context(Meter(size, f"tokenising {size / 1e6:.1f} MB"))
        chunks = encode(sources.conversations(files), encoder, now, worker_count(size, workers))
        for chunk in chunks:
            totals.add(chunk.counts)
            # Read on past the first problem, so that a file with few mistakes can be corrected at once.
            if len(totals.problems) >= MAX_PROBLEMS:
                break
            _add(writers, chunk)
            meter.advance(chunk.size)
        if totals.problems:
            complete = next(chunks, None) is None
            raise Problems(shortened(totals.problems, complete=complete)[:MAX_PROBLEMS])
        if totals.sample is None:
            raise Problems(_nothing_left(texts, recipe, totals))
        summary = _summary(writers[0].documents, totals, encoder, fingerprint(files, recipe))
        # Before the files change, so that no summary describes others.
        sidecar(prefix).unlink(missing_ok=True)
    write_json(sidecar(prefix), asdict(summary))
    return summary, totals.sample


def _files(recipe: ChatRecipe, prefix: Path) -> dict[Path, type[np.generic]]:
    """Return the prefix of each file to write, and the type of its numbers."""
    rewards = {reward_prefix(prefix): indexed.REWARD} if recipe.reward_key else {}
    return {prefix: np.int32, label_prefix(prefix): np.int32, **rewards}


def _add(writers: Sequence[indexed.Writer], chunk: Encoded) -> None:
    last = [True] * len(chunk.lengths)
    for writer, values in zip(writers, (chunk.ids, chunk.labels), strict=False):
        writer.add(values, chunk.lengths, last)
    if len(writers) > 2:
        writers[2].add(np.array(chunk.rewards, indexed.REWARD), [1] * len(last), last)


def _nothing_left(texts: Sequence[str], recipe: ChatRecipe, totals: Counts) -> Problem:
    reasons = [
        f"{reason_text(reason, totals.unknown_roles)}: {drops.conversations:,} (first: {drops.first})"
        for reason, drops in totals.drops.items()
    ]
    dropped = f"every conversation was dropped; {', '.join(reasons)}" if reasons else "there are no conversations"
    what = f"{', '.join(texts)}: {dropped}"
    return Problem(what, hint=_advice(recipe, totals), id="chat-empty")


def reason_text(reason: str, unknown_roles: Mapping[str, int]) -> str:
    """Return the reason for which conversations were dropped, with the unknown roles' names."""
    return f"{reason} {printable(listed(unknown_roles, 'and'))}" if reason == "unknown role" else reason


def _advice(recipe: ChatRecipe, totals: Counts) -> str:
    """Return what to do about the most frequent reason for which conversations were dropped."""
    if not totals.drops:
        return ""
    reason = max(totals.drops, key=lambda reason: totals.drops[reason].conversations)
    if reason == "no trained token":
        return _no_trained_token(recipe, totals.roles)
    return {
        "answer cut off": f"the answers begin after token {recipe.max_length}: set a larger --max-length",
        "empty answer": f"no turn with the role {listed(recipe.train_on)} has content: correct the file",
        "too long": "set a larger --max-length, or add --overlong cut",
        "unknown role": f"correct the roles; the known roles are {listed(SHAREGPT_ROLES, 'and', most=99)}",
    }.get(reason, "")


def _no_trained_token(recipe: ChatRecipe, roles: Counter[str]) -> str:
    trained = listed(recipe.train_on)
    if recipe.masking == "turns" and not any(role in roles for role in recipe.train_on):
        return f"no turn has the role {trained} {_roles_found(recipe, roles)}, or correct the roles"
    if recipe.only_last and not recipe.tool_calls:
        return f"--only-last and --no-tool-calls exclude all turns with the role {trained}: remove one or both options"
    if not recipe.tool_calls:
        return f"all turns with the role {trained} call tools: remove --no-tool-calls"
    if recipe.only_last:
        return f"the last turn never has the role {trained}: remove --only-last"
    if recipe.masking == "marks":
        return "the template marks nothing in these conversations: remove --mask-by marks"
    return "set --train-on to the role whose turns the model should learn"


def _roles_found(recipe: ChatRecipe, roles: Counter[str]) -> str:
    names = [role for role, _ in roles.most_common()]
    found = f"the roles are {listed(names, 'and')}" if len(names) > 1 else f"the only role is {names[0]}"
    similar = [name for role in recipe.train_on for name in close_matches(role, names)]
    answering = [name for name in names if SHAREGPT_ROLES.get(name.lower()) == "assistant"]
    return printable(f"({found}): use --train-on {next(iter([*similar, *answering]), 'ROLE')}")


def _summary(conversations: int, totals: Counts, encoder: Encoder, fingerprint: str) -> Summary:
    lengths, recipe, template = np.array(totals.uncut), encoder.recipe, encoder.templates["default"].source
    return Summary(
        conversations=conversations,
        tokens=totals.tokens,
        trained_tokens=totals.trained,
        median_length=int(np.percentile(lengths, 50, method="inverted_cdf")),
        length_95=int(np.percentile(lengths, 95, method="inverted_cdf")),
        longest=int(lengths.max()),
        longer_than_max=int((lengths > recipe.max_length).sum()) if recipe.max_length else 0,
        max_length=recipe.max_length,
        overlong=recipe.overlong,
        roles=dict(totals.roles.most_common()),
        dropped={reason: drops._asdict() for reason, drops in sorted(totals.drops.items())},
        unknown_roles=dict(totals.unknown_roles.most_common()),
        empty_answers=totals.empty_answers._asdict() if totals.empty_answers else None,
        notes={name: count for name, count in sorted(totals.notes.items()) if count},
        split_markers=encoder.tokenizer.split_markers(template.text),
        forms=list(dict.fromkeys(map(str, encoder.forms.values()))),
        chat_template=template.name,
        tokenizer_type=recipe.tokenizer.tokenizer_type,
        vocab_size=encoder.tokenizer.vocab_size,
        fingerprint=fingerprint,
        eod=encoder.tokenizer.end if recipe.tokenizer.append_eod else None,
        for_rm=recipe.masking == "reward",
        rewards=dict(sorted(totals.rewards.items(), reverse=True)) if recipe.reward_key else None,
        **vocabulary_hashes(recipe.tokenizer.tokenizer_type, recipe.tokenizer.vocab_file)._asdict(),
    )


def up_to_date(texts: Sequence[str], recipe: ChatRecipe, prefix: Path) -> Summary | None:
    """Return the summary of the token files if they were made from the same files with the same recipe."""
    try:
        summary = Summary(**json.loads(sidecar(prefix).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    complete = all(map(indexed.exists, _files(recipe, prefix)))
    return summary if complete and summary.fingerprint == fingerprint(sources.find(texts), recipe) else None


def fingerprint(files: Sequence[Path], recipe: ChatRecipe) -> str:
    """Hash of the recipe, and of the names, sizes and modification times of all files that it reads."""
    tokenizer = recipe.tokenizer
    named = [Path(file) for file in (tokenizer.vocab_file, tokenizer.merge_file, recipe.chat_template) if file]
    read = [*files, *named, *chat_templates.files(tokenizer.tokenizer_type, tokenizer.vocab_file)]
    content = json.dumps([FORMAT, [identity(file) for file in read], asdict(recipe)])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
