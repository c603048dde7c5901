"""A command line of Megatron-LM on its way to settings: its flags, what they have set so far, what is to be said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from neoxargs.problems import Place, Problem
from neoxargs.registry import REGISTRY
from neoxargs.resolve.values.coerce import Mismatch, conform
from neoxargs.resolve.yaml.nodes import Scalar, node_of, read_plain
from neoxargs.tools.migrate.megatron.unsupported_flags import reason
from neoxargs.tools.migrate.shell.words import Word
from neoxargs.tools.migrate.yaml_write import Setting

#: Earlier names of Megatron-LM's flags that the registry does not have.
EARLIER = {
    "batch-size": "micro-batch-size",
    "encoder-num-layers": "num-layers",
    "encoder-seq-length": "seq-length",
    "intra-layer-model-parallel-size": "tensor-model-parallel-size",
    "activations-checkpoint-num-layers": "recompute-num-layers",
    "activations-checkpoint-method": "recompute-method",
    "layernorm-epsilon": "norm-epsilon",
    "min-scale": "min-loss-scale",
    "lr-warmup-percent": "lr-warmup-fraction",
    "use-custom-fsdp": "use-megatron-fsdp",
    "pp-partition-method": "pipe-partition-method",
}


class Option(NamedTuple):
    """One flag with its values."""

    name: str
    values: list[Word]
    place: Place

    @property
    def text(self) -> str:
        return self.values[0].text if self.values else ""

    @property
    def words(self) -> list[Word]:
        return [Word(f"--{self.name}", self.place), *self.values]

    @property
    def is_known(self) -> bool:
        return all(word.is_known for word in self.words)

    @property
    def is_placeholder(self) -> bool:
        """Does it wait for a value that a person is to write?"""
        return self.is_known and any(word.is_placeholder for word in self.values)

    def __str__(self) -> str:
        return " ".join(word.text for word in self.words)


def options_of(words: Sequence[Word]) -> dict[str, Option]:
    """Flags with their values, each under today's spelling; of a repeated flag the last counts, as for argparse."""
    options: dict[str, Option] = {}
    last: Option | None = None
    for word in words:
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            name = name if "$" in name else name.replace("_", "-")
            name = EARLIER.get(name, name)
            last = options[name] = Option(name, [Word(value, word.place)] if equals else [], word.place)
        elif last:
            last.values.append(word)
    return options


class Reading:
    """What the flags of a command have come to so far."""

    def __init__(self, options: dict[str, Option]) -> None:
        self.options = options
        self.settings: dict[str, Setting] = {}
        self.problems: list[Problem] = []
        self.to_do: list[str] = []
        """For the head of the file: what the script leaves open."""
        self.to_write: set[str] = set()
        """The parameters that a person has to write."""

    def set(self, name: str, value: Any, comment: str = "") -> None:
        self.settings[name] = Setting(value, behind=comment)

    def set_from(self, option: Option, name: str, value: Any = None) -> None:
        """Set a parameter to the option's value, which must fit its type; a flag alone says true."""
        words = [word.text for word in option.values]
        given = value if value is not None else words if len(words) > 1 else words[0] if words else True
        place = option.values[0].place if option.values else option.place
        node = Scalar(read_plain(given), given, False, place) if isinstance(given, str) else node_of(given)
        try:
            fitting = conform(node, REGISTRY.parameters[name].type)
        except Mismatch as bad:
            what = bad.sentence(f"--{option.name}")
            self.problems.append(Problem(what, place, bad.advice, id="migrate-flag-value", about=(name,)))
            return
        is_number = isinstance(fitting, int | float) and not isinstance(fitting, bool)
        self.settings[name] = Setting(fitting, given if is_number and isinstance(given, str) else "")

    def leave_out(self, option: Option, why: str = "") -> None:
        """Say of a flag of Megatron-LM that nothing here stands for it."""
        hint = why or reason(option.name) or "it is left out"
        self.warn("migrate-flag-without-counterpart", f"{option} has no counterpart", option.place, hint)

    def leave_to_write(self, option: Option, name: str, why: str) -> None:
        """Say of a flag that it cannot be read here, and leave its parameter for a person to write."""
        self.leave_out(option, why)
        self.note_to_write(option, name)

    def note_to_write(self, option: Option, name: str) -> None:
        """A line in the file for a parameter that a person has to write."""
        self.to_do.append(f"To do: write {name}, for {option}.")
        self.to_write.add(name)

    def warn(self, id: str, what: str, place: Place | None, hint: str, about: Sequence[str] = ()) -> None:
        self.problems.append(Problem(what, place, hint, severity="warning", id=id, about=tuple(about)))

    def number(self, name: str) -> float | None:
        """The value of another flag as a number."""
        value = read_plain(self.options[name].text) if name in self.options else None
        return value if isinstance(value, int | float) else None

    @property
    def chosen_optimizer(self) -> str:
        return self.options["optimizer"].text if "optimizer" in self.options else "adam"
