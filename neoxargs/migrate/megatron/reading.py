"""The state of converting a Megatron-LM command: its flags, the settings so far, and problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from neoxargs.base.problems import Place, Problem, listed, without_secrets
from neoxargs.migrate.megatron.unsupported_flags import is_harmless, is_in_common, reason
from neoxargs.migrate.shell.values import Unknown, Word
from neoxargs.registry import REGISTRY
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.nodes import Scalar, node_of, read_plain
from neoxargs.resolve.yaml.write import Setting

#: No flag has such a number; with smaller ones, sizes can be computed.
BEYOND = 1e15
#: Old names of Megatron-LM flags that the registry does not have.
OLD_NAMES = {
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
    "muon-use-nesterov": "muon-nesterov",
    # Megatron-DeepSpeed
    "rotary-position-embeddings-theta": "rotary-base",
    "use-flash-attn-v2": "use-flash-attn",
    "use-flash-attn-triton": "use-flash-attn",
    "use-flash-attn-builder": "use-flash-attn",
    "topk": "moe-router-topk",
    "moe-loss-coeff": "moe-aux-loss-coeff",
    "pad-vocab-size-to": "padded-vocab-size",
    # other forks of Megatron-LM
    "rotary-theta": "rotary-base",
    "rope-theta": "rotary-base",
    "no-tie-embed-logits": "untie-embeddings-and-output-weights",
    "use-llama2-rotary-position-embeddings": "use-rotary-position-embeddings",
    "use-mistral-rotary-position-embeddings": "use-rotary-position-embeddings",
    "wandb-project-name": "wandb-project",
    "wandb-proj-name": "wandb-project",
    "wandb-entity-name": "wandb-entity",
}


class Option(NamedTuple):
    """One flag with its values. name: without `--`, with hyphens. in_name: what is unknown of the name."""

    name: str
    values: list[Word]
    place: Place
    in_name: tuple[Unknown, ...] = ()

    @property
    def text(self) -> str:
        return self.values[0].text if self.values else ""

    @property
    def words(self) -> list[Word]:
        return [Word(f"--{self.name}", self.place, self.in_name), *self.values]

    @property
    def is_known(self) -> bool:
        return all(word.is_known for word in self.words)

    @property
    def is_placeholder(self) -> bool:
        """Whether a value is a placeholder that the user has to replace."""
        return self.is_known and any(word.is_placeholder for word in self.values)

    def __str__(self) -> str:
        return without_secrets(" ".join(word.text for word in self.words))


def options_of(words: Sequence[Word]) -> dict[str, Option]:
    """Return the flags by current name. The last of a repeated flag counts, as in argparse."""
    options: dict[str, Option] = {}
    last: Option | None = None
    for word in words:
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            name = name if "$" in name else name.replace("_", "-")  # not within a variable's name
            name = OLD_NAMES.get(name, name)
            in_name = word.unknowns if not equals else tuple(each for each in word.unknowns if each in name)
            values = [Word(value, word.place, tuple(each for each in word.unknowns if each not in in_name))]
            last = options[name] = Option(name, values if equals else [], word.place, in_name)
        elif last and (word.text.strip() or not word.text):  # a lone space is that of a line that ends in `\\ `
            last.values.append(word)
    return options


class Reading:
    """The settings and problems of a command's flags so far."""

    def __init__(self, options: dict[str, Option]) -> None:
        self.options = options
        self.settings: dict[str, Setting] = {}
        self.problems: list[Problem] = []
        self.to_do: list[str] = []
        """Comment lines at the top of the new file about values that the script does not contain."""
        self.has_unknown_flags = False
        """Whether an unknown variable contains further flags."""
        self.to_write: set[str] = set()
        """The parameters that the user still has to set."""
        self._together: dict[str, tuple[int, list[Option]]] = {}
        """Reason -> the index of its only warning, and the flags that it names."""

    def set(self, name: str, value: Any, comment: str = "") -> None:
        self.settings[name] = Setting(value, behind=comment)

    def set_from(self, option: Option, name: str, value: Any = None) -> None:
        """Set a parameter to the option's value (true for a flag without one), or report that it has a wrong type."""
        words = [word.text for word in option.values]
        given = value if value is not None else words if len(words) > 1 else words[0] if words else True
        place = option.values[0].place if option.values else option.place
        node = Scalar(read_plain(given), given, False, place) if isinstance(given, str) else node_of(given)
        try:
            fitting = coerce(node, REGISTRY.parameters[name].type)
        except Mismatch as bad:
            what = bad.sentence(f"--{option.name}")
            self.problems.append(Problem(what, place, bad.advice, id="migrate-flag-value", about=(name,)))
            return
        is_number = isinstance(fitting, int | float) and not isinstance(fitting, bool)
        self.settings[name] = Setting(fitting, given if is_number and isinstance(given, str) else "")

    def leave_out(self, option: Option, why: str = "", hint: str = "") -> None:
        """Warn that a flag is left out. why: a clause, if `unsupported_flags` has none for the flag."""
        because = why or reason(option.name)
        if is_in_common(because) and not hint:
            return self._leave_out_together(option, because)
        if not why and not is_harmless(because):
            self.note_left_out(option, because)
        what = f"{option} is left out, because {because}" if because else f"{option} has no counterpart and is left out"
        self.warn("migrate-flag-without-counterpart", what, option.place, hint)

    def leave_out_with_note(self, option: Option, why: str, hint: str = "") -> None:
        """Do the same for a flag whose absence changes the model or its training."""
        self.note_left_out(option, why)
        self.leave_out(option, why, hint)

    def _leave_out_together(self, option: Option, because: str) -> None:
        """Warn about all flags that are left out for a reason in common in a single warning."""
        number, options = self._together.setdefault(because, (len(self.problems), []))
        options.append(option)
        what = f"{option} is left out, because {because}"
        if len(options) > 1:
            flags = listed([f"--{each.name}" for each in options], "and", most=99)
            what = f"{flags} are left out, because each {because.removeprefix('it ')}"
        place = options[0].place
        self.problems[number : number + 1] = [
            Problem(what, place, severity="warning", id="migrate-flag-without-counterpart")
        ]

    def note_left_out(self, option: Option, why: str) -> None:
        """Add a comment at the top of the new file about a flag whose absence changes the model or its training."""
        self.to_do.append(f"Left out, although it can affect the model or its training: {option}{why and f' ({why})'}.")

    def leave_to_write(self, option: Option, name: str, hint: str, why: str = "") -> None:
        """Warn that a flag cannot be converted, and list its parameter as still to be set. why: a clause."""
        what = f"{option} cannot be converted{why and f', because {why}'}"
        self.warn("migrate-flag-without-counterpart", what, option.place, hint)
        self.note_to_write(option, name)

    def note_to_write(self, option: Option, name: str) -> None:
        """Add a comment at the top of the new file about a parameter that the user has to set."""
        self.to_do.append(f"TODO: set {name} (for {option}).")
        self.to_write.add(name)

    def warn(self, id: str, what: str, place: Place | None, hint: str, about: Sequence[str] = ()) -> None:
        self.problems.append(Problem(what, place, hint, severity="warning", id=id, about=tuple(about)))

    def set_defaults(self, values: Mapping[str, Any], program: str) -> None:
        """Set a program's defaults where the flags neither set the parameter nor leave it to the user."""
        comment = f"{program}'s default{' (the unknown flags may change it)' if self.has_unknown_flags else ''}"
        for name, value in values.items():
            if name not in self.to_write:
                self.settings.setdefault(name, Setting(value, behind=comment))

    def number(self, name: str) -> float | None:
        """The value of another flag, if it is a number, not infinite and below `BEYOND`."""
        value = read_plain(self.options[name].text) if name in self.options else None
        return value if isinstance(value, int | float) and abs(value) < BEYOND else None

    @property
    def default_width(self) -> int:
        """Megatron-LM's width of the feed-forward layers without --ffn-hidden-size; 0 if not known."""
        # The formula of validate_args in megatron/training/arguments.py
        hidden = self.number("hidden-size") or 0
        return int(4 * hidden * 2 / 3 / 64) * 64 if "swiglu" in self.options else int(4 * hidden)

    def set_width(self, width: float, comment: str) -> None:
        """Set the width of the feed-forward layers, of which a gated activation needs three matrices."""
        if not self.is_gated:
            return self.set("intermediate_size", int(width), comment)
        why = f"3 x {comment}: GPT-NeoX's value counts the gate, up and down projections together"
        self.set("intermediate_size", int(3 * width), why)

    @property
    def is_gated(self) -> bool:
        return "swiglu" in self.options or "glu-activation" in self.options

    @property
    def has_experts(self) -> bool:
        return (self.number("num-experts") or 1) > 1

    def text(self, name: str) -> str:
        """The value of another flag; empty if it is missing."""
        return self.options[name].text if name in self.options else ""

    @property
    def chosen_optimizer(self) -> str:
        return self.options["optimizer"].text if "optimizer" in self.options else "adam"
