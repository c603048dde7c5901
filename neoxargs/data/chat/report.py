"""The output of `deepy data --chat`: a sample with its trained tokens marked, then statistics."""

from __future__ import annotations

from itertools import islice
from textwrap import fill
from typing import NamedTuple

from neoxargs.base.problems import printable
from neoxargs.data.chat.build import Summary, reason_text
from neoxargs.data.chat.worker import Sample

#: Characters of a sample that are printed.
SHOWN = 3000
#: Roles that are printed, the most frequent ones.
ROLES = 12


class Style(NamedTuple):
    """The marks before and after trained text, and their name."""

    begin: str
    end: str
    name: str


TERMINAL = Style("\x1b[7m", "\x1b[0m", "highlighted")
PLAIN = Style("«", "»", "between « and »")

#: Note of the workers -> sentence; {} is the number of conversations.
NOTES = {
    "crossing": "in {}, a token contains both trained and untrained text; the whole token is trained",
    "relocated": "in {}, the template renders a turn differently if more turns follow (for example, without "
    "reasoning), so the end of the turn was located by the content of its message",
    "headers": "in {}, trained turns do not begin with the template's generation prompt, so their headers are "
    "trained too",
    "two ends": "in {}, the end token appears twice, because the template also writes it; use --no-append-eod",
}


def sample_text(sample: Sample, style: Style) -> str:
    """Return the conversation with its trained tokens marked."""
    text, spans = sample.text + sample.end, list(sample.spans)
    if sample.end_trained:  # the last trained range then ends where the text does
        spans = [*spans[:-1], (spans[-1][0] if spans else len(sample.text), len(text))]
    parts, position = [], 0
    for start, end in spans:
        parts += [_lines(text[position:start], None), _lines(text[start:end], style)]
        position = end
    parts.append(_lines(text[position:], None))
    title = f"{sample.place}, with the trained tokens {style.name}:"
    return f"{title}\n\n{_shortened(''.join(parts))}\n"


def _lines(text: str, style: Style | None) -> str:
    """Return printable text; a style begins and ends in each line, as some terminals do not continue it."""
    lines = [printable(line) for line in text.split("\n")]
    if style is TERMINAL:
        lines = [f"{style.begin}{line}{style.end}" if line else line for line in lines]
    body = "\n".join(lines)
    return f"{style.begin}{body}{style.end}" if style is PLAIN and text else body


def _shortened(text: str) -> str:
    left = len(text) - SHOWN
    if left <= 0:
        return text
    end = TERMINAL.end if TERMINAL.end in text else ""
    return f"{text[:SHOWN]}{end}\n... {left:,} more characters"


def summary_text(summary: Summary, prefix: str, seconds: float) -> str:
    """Return the statistics, one per line."""
    share = summary.trained_tokens / summary.tokens
    markers, empty, rewards = ", ".join(summary.split_markers), summary.empty_answers, summary.rewards
    rows = [
        ("input", "; ".join(summary.forms)),
        ("template", summary.chat_template),
        ("tokenizer", f"{summary.tokenizer_type}, vocabulary of {summary.vocab_size:,} tokens"),
        ("conversations", f"{summary.conversations:,}"),
        ("roles", _roles(summary)),
        ("tokens", f"{summary.tokens:,}, of which {summary.trained_tokens:,} ({share:.1%}) are trained"),
        ("length", _lengths(summary)),
        *([("rewards", ", ".join(f"{count:,} {sign}" for sign, count in rewards.items()))] if rewards else ()),
        *_overlong(summary),
        *([("note", f"not in the vocabulary, so tokenised as ordinary text: {markers}")] if markers else ()),
        *(
            ("dropped", f"{drops['conversations']:,}: {reason_text(reason, summary.unknown_roles)} "
             f"(first: {drops['first']})")
            for reason, drops in summary.dropped.items() if reason != "too long"  # which _overlong says
        ),
        *([("empty answers", f"{empty['conversations']:,} (first: {empty['first']})")] if empty else ()),
        *(("note", NOTES[name].format(_conversations(count))) for name, count in summary.notes.items()),
        ("time", f"{seconds:.1f} s"),
        *_parameters(summary, prefix),
    ]  # fmt: skip
    return "\n".join(_row(name, value) for name, value in rows)


def _row(name: str, value: str) -> str:
    indent = " " * 15
    if name != "note":  # the others hold names of files, which are copied
        return f"{name:<15}{value}"
    return fill(value, 110, initial_indent=f"{name:<15}", subsequent_indent=indent, break_on_hyphens=False,
                break_long_words=False)  # fmt: skip


def _lengths(summary: Summary) -> str:
    done = {"drop": " (before dropping)", "cut": " (before cutting)"}.get(summary.overlong, "")
    median, percentile = f"median {summary.median_length:,}", f"95th percentile {summary.length_95:,}"
    return f"{median}, {percentile}, longest {summary.longest:,} tokens" + (done if summary.longer_than_max else "")


def _overlong(summary: Summary) -> list[tuple[str, str]]:
    if summary.max_length is None:
        return []
    done = {"keep": "kept", "drop": "dropped", "cut": "cut"}[summary.overlong]
    count = summary.longer_than_max
    first = f" (first: {summary.dropped['too long']['first']})" if "too long" in summary.dropped else ""
    return [("too long", f"{_conversations(count)} longer than {summary.max_length:,} tokens, {done}{first}")]


def _parameters(summary: Summary, prefix: str) -> list[tuple[str, str]]:
    """Return the lines of YAML that use the files."""
    # Preferred answers, or rejected ones, which need a second run of the command.
    first = "pos_train" if summary.for_rm else "train"
    files = {f"{first}_data_paths": prefix, f"{first}_label_data_paths": f"{prefix}_label"}
    files |= {"train_reward_data_paths": f"{prefix}_reward"} if summary.rewards else {}
    names = ["to use them", *[""] * 2]
    return [(name, f'{key}: ["{path}"]') for name, (key, path) in zip(names, files.items(), strict=False)]


def _roles(summary: Summary) -> str:
    shown = [f"{printable(role)} {turns:,}" for role, turns in islice(summary.roles.items(), ROLES)]
    more = len(summary.roles) - ROLES
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def _conversations(count: int) -> str:
    return f"{count:,} conversation{'' if count == 1 else 's'}"
