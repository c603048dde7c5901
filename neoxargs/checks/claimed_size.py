"""The number of parameters that the model's file claims in its name, such as `llama-7b.yml`, or its first comment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

from neoxargs.base.files import Text
from neoxargs.base.problems import SET, Problem
from neoxargs.base.text import format_count
from neoxargs.config.config import Config
from neoxargs.facts.model import GATED, mlp_width, parameters, vocabulary_rows

#: A number of millions or billions of parameters; a name that begins with 6-7B is GPT-NeoX's form of 6.7 billion. Not
#: 8x7b, of experts.
CLAIM = re.compile(r"(?<![\d.x])(?:(?<![a-z-])(\d+)-)?(\d+(?:\.\d+)?)([bm])(?![a-z\d])", re.IGNORECASE)
UNITS = {"m": 1e6, "b": 1e9}
#: In a comment, where there are numbers of tokens and bytes too, what is meant is written after the number.
IN_WORDS = re.compile(
    r"(?<![\d.x])(\d+(?:\.\d+)?)[ -]?([bm])(?:illion)?[ -](?:parameters?|params|model)\b", re.IGNORECASE
)
#: Rows of the embedding that are assumed where the vocabulary is not known: the fewest and the most.
ROWS = (0, 262_144)
#: How far a count may be from the name. The sizes in names are rounded, and some leave out embeddings.
LEAST, MOST = 0.75, 1.3
#: A comment whose number is further away than this factor is about another model.
ANOTHER = 4


def other_size(config: Config, texts: Iterable[Text]) -> Iterator[Problem]:
    """Yield a warning if the model is far from as large as the file with its sizes says. texts: of the files."""
    place = config.place("hidden_size")
    by_name = claimed(Path(place.file).stem) if place and place.file != SET else []
    claims = by_name or [claim for name, text in texts if place and name == place.file for claim in _in_comment(text)]
    if not claims or config.moe.moe_num_experts > 1 or _is_a_third(config):
        return
    rows = vocabulary_rows(config)
    without, complete = parameters(config, ROWS[0]), parameters(config, rows or ROWS[1])
    if any(without * LEAST <= claim <= complete * MOST for claim in claims):
        return
    if not by_name and not without / ANOTHER <= claims[0] <= complete * ANOTHER:
        return
    assert place is not None
    count = format_count(without if rows is None else complete)
    what = f"the model has {'about ' if rows is None else ''}{count} parameters, but "
    what += f"{place.file} is named after" if by_name else f"the first comment of {place.file} says"
    what += f" {format_count(claims[0])}"
    other = "rename the file" if by_name else "correct the comment"
    hint = f"correct num_layers, hidden_size or intermediate_size, or {other}"
    if config.mlp.activation in GATED:
        hint = f"check intermediate_size (exact_mlp_width: {str(config.shape.exact_mlp_width).lower()}), or {hint}"
    about = ("hidden_size", "num_layers", "intermediate_size")
    yield Problem(what, place, hint, severity="warning", id="size-unlike-the-name", about=about)


def _is_a_third(config: Config) -> bool:
    """Whether `gated_width_is_a_third` reports the width of the feed-forward layers."""
    counts_three = config.mlp.activation in GATED and not config.shape.exact_mlp_width
    narrow = mlp_width(config.shape, config.mlp) < 2 * config.shape.hidden_size
    return counts_three and narrow and config.is_set("intermediate_size")


def _in_comment(text: str) -> list[float]:
    """Return the numbers of parameters that the lines before the first key claim."""
    comment = " ".join(takewhile(lambda line: not line.strip() or line.startswith("#"), text.splitlines()))
    return [float(number) * UNITS[unit.lower()] for number, unit in IN_WORDS.findall(comment)]


def claimed(name: str) -> list[float]:
    """Return the numbers of parameters that a name may claim: `2-7b` is 2.7 billion, or 7 of a second version."""
    found = []
    for whole, number, unit in CLAIM.findall(name):
        found.append(float(number) * UNITS[unit.lower()])
        if whole and "." not in number:
            found.append(float(f"{whole}.{number}") * UNITS[unit.lower()])
    return found
