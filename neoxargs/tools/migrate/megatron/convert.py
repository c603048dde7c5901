"""A Megatron-LM command line, or the script around it, as our YAML; the way back of `--emit megatron`.

Most flags are the `megatron=` of one parameter, or its older name. The rest is a table of small functions in flags.py;
what has no counterpart is listed. Where a flag is not given and Megatron-LM's default is not ours, it is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from neoxargs.problems import Place, Problem, Problems, listed, near
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import Text
from neoxargs.resolve.values.coerce import Mismatch, conform
from neoxargs.resolve.yaml.nodes import Scalar, node_of, read_plain
from neoxargs.tools.migrate.deepspeed.convert import Written
from neoxargs.tools.migrate.megatron.flags import SPECIAL
from neoxargs.tools.migrate.megatron.heredoc import here_settings
from neoxargs.tools.migrate.megatron.unsupported_flags import reason
from neoxargs.tools.migrate.shell.script import read_script, variables
from neoxargs.tools.migrate.shell.words import Word
from neoxargs.tools.migrate.yaml_write import Setting, yaml_text

#: Programs that start ranks, and what their flags are here.
LAUNCHER = {
    "nproc_per_node": "num_gpus", "nnodes": "num_nodes", "master_addr": "master_addr", "master_port": "master_port",
    "num_gpus": "num_gpus", "num_nodes": "num_nodes", "hostfile": "hostfile", "include": "include",
    "exclude": "exclude",
}  # fmt: skip
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
#: Megatron-LM's defaults that are not this dialect's.
DEFAULTS = {"attention_dropout": 0.1, "hidden_dropout": 0.1, "weight_decay": 0.01, "warmup": 0.0}
#: The same, where a flag (perhaps with this value) is given.
DEFAULTS_WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("normalization", "RMSNorm"): {"rms_norm_epsilon": 1e-5},
    ("optimizer", "sgd"): {"optimizer.params.momentum": 0.9},
    ("optimizer", "lion"): {"optimizer.params.betas": [0.95, 0.98]},
    ("optimizer", "muon"): {"optimizer.params.momentum": 0.9},
}
#: Fusions that are on unless a flag says no; that of the rotary embedding has no effect here and is not written.
FUSIONS = (
    "scaled_upper_triang_masked_softmax_fusion", "scaled_masked_softmax_fusion", "bias_gelu_fusion",
    "bias_dropout_fusion",
)  # fmt: skip


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


def is_megatrons(text: Text) -> bool:
    """Does some command in the text have flags of Megatron-LM?"""
    return bool(re.search(r"--(num[-_]layers|(tensor|pipeline)[-_]model[-_]parallel[-_]size)\b", text.text))


def converted(
    text: Text,
    given: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    choose: int | None = None,
) -> Written:
    """The YAML of a script's command; raises Problems where there is none, or a value of it is wrong.

    given: variables of the script; where neither they nor the script say one, `environ` is asked. choose: of several
    configurations in DeepSpeed's JSON, which the script writes, the one that is meant.
    """
    script = read_script(text, given)
    if found_outside := {name: value for name, value in (environ or {}).items() if name in script.asked}:
        script = read_script(text, {**found_outside, **(given or {})})
    found = max(script.commands, key=_flags, default=[])
    if not _flags(found) and script.kept:
        what = "nothing is started here with flags of Megatron-LM: those that variables hold are read"
        script.notes.append(Problem(what, Place(text.name, 0, 0), severity="warning"))
        found = script.kept
    if not _flags(found):
        hint = "a command with flags such as --num-layers 24 is looked for"
        raise Problems([Problem("there is no command line of Megatron-LM in this file", Place(text.name, 0, 0), hint)])
    reading = Reading(found)
    reading.documents = script.documents
    reading.read(choose)
    if any(problem.severity == "error" for problem in reading.problems):
        raise Problems(reading.problems)
    outside = [_from_outside(name, text) for name in sorted(found_outside)]
    head = [f"From {os.path.basename(text.name)} by deepy migrate.", *reading.to_do]
    body = yaml_text(reading.settings, head)
    told = [*outside, *script.notes, *_other_runs(script.commands, found), *reading.problems]
    return Written(f"{body}dialect: neox-2026\n", problems=told)


def _other_runs(commands: Sequence[Sequence[Word]], chosen: Sequence[Word]) -> list[Problem]:
    """Told where the script starts several models (not the same one twice, as `echo` before a command does)."""
    others = [words for words in commands if "num-layers" in _options(words) and _given(words) != _given(chosen)]
    if not others:
        return []
    what = f"this is one of {len(others) + 1} commands that describe a model; it has the most flags, so it is read"
    also = tuple(words[0].place for words in others)
    return [Problem(what, chosen[0].place, "migrate each from a script of its own", also, "warning")]


def _given(words: Sequence[Word]) -> dict[str, list[str]]:
    return {name: [word.text for word in option.values] for name, option in _options(words).items()}


def _from_outside(name: str, text: Text) -> Problem:
    return Problem(f"${name} is taken from the environment", Place(text.name, 0, 0), severity="warning")


def _flags(words: Sequence[Word]) -> int:
    return sum(word.text.startswith("--") for word in words)


class Reading:
    """A command's flags on their way to settings."""

    def __init__(self, words: Sequence[Word]) -> None:
        script = next((i for i, word in enumerate(words) if word.text.endswith(".py")), -1)
        self.launcher = _options(words[: max(script, 0)])
        self.options = _options(words[script + 1 :])
        self.settings: dict[str, Setting] = {}
        self.problems: list[Problem] = []
        self.documents: dict[str, Text] = {}
        self.to_do: list[str] = []
        """For the head of the file: what the script leaves open."""

    def read(self, choose: int | None) -> None:
        for option in self.launcher.values():
            if (name := LAUNCHER.get(normal(option.name))) and option.is_known:
                self.say(name, option)
        for name in FUSIONS:
            self.settings[name] = Setting(True, behind="Megatron-LM's default")
        for option in self.options.values():
            self.option(option)
        if "deepspeed-config" in self.options and (text := self.documents.get(self.options["deepspeed-config"].text)):
            self.document(text, choose)
        elif choose is not None:
            self.problems.append(Problem("--choose is for a script that writes DeepSpeed's JSON", hint="leave it out"))
        for name, value in self.defaults().items():
            self.settings.setdefault(name, Setting(value, behind="Megatron-LM's default"))
        if "train_iters" not in self.settings and not any("train_iters" in line for line in self.to_do):
            self.to_do.append("To do: write train_iters, which the script does not say.")
        self.problems += self.left_open()

    def defaults(self) -> dict[str, Any]:
        found = dict(DEFAULTS)
        for (flag, value), settings in DEFAULTS_WITH.items():
            if flag in self.options and self.options[flag].text == value:
                found |= settings
        return found

    def document(self, text: Text, number: int | None) -> None:
        """DeepSpeed reads its own JSON, so what stands there holds where a flag says otherwise."""
        settings, places, problems = here_settings(text, number)
        self.problems += problems
        for name, setting in settings.items():
            flag = self.settings.get(name)
            if flag and flag.value != setting.value:
                what = f"a flag and DeepSpeed's JSON differ in {name}: {flag.value} and {setting.value}"
                hint = "DeepSpeed reads its JSON, so that is taken"
                self.problems.append(Problem(what, places.get(name), hint, severity="warning"))
            self.settings[name] = setting

    def option(self, option: Option) -> None:
        if option.name == "deepspeed-config" and option.text in self.documents:
            pass  # the script writes it, and it is read with the flags
        elif not option.is_known:
            words = " ".join(word.text for word in option.words)
            self.to_do.append(f"To do: what {words} is, the script does not say.")
        elif option.name in SPECIAL:
            SPECIAL[option.name](self, option)
        elif names := by_flag().get(option.name):
            for name in names:
                self.say(name, option)
        elif option.name.startswith("no-") and (names := by_flag().get(f"!{option.name}")):
            for name in names:
                self.put(name, False)
        elif (parameter := REGISTRY.find(option.name)) and "." not in parameter.name:
            self.say(parameter.name, option)
        else:
            self.left_out(option)

    def left_open(self) -> Iterator[Problem]:
        """Each variable that the script does not set, once."""
        needing: dict[str, list[tuple[Option, Word]]] = {}
        launcher = [option for option in self.launcher.values() if normal(option.name) in LAUNCHER]
        for option in [*launcher, *self.options.values()]:
            for name, words in variables(option.words if option.text not in self.documents else ()).items():
                needing.setdefault(name, []).append((option, words[0]))
        for name, needs in needing.items():
            flags = listed(dict.fromkeys(f"--{option.name}" for option, _ in needs), "and")
            what = f"the script does not say what {name} is, for {flags}"
            plain = name.strip("${}")
            hint = (
                f"add --var {plain}=VALUE" if plain.isalnum() or plain.isidentifier() else "write it into the new file"
            )
            yield Problem(what, needs[0][1].place, hint, severity="warning")

    def left_out(self, option: Option, why: str = "") -> None:
        why = why or reason(option.name)
        known = [*SPECIAL, *(flag.lstrip("!") for flag in by_flag())]
        alike = [] if why or option.name in known else near(option.name, known)
        meant = [name for name in alike if name not in self.options or near(option.name, [name], alike=0.85)]
        hint = why or (f"did you mean {' or '.join(f'--{flag}' for flag in meant)}?" if meant else "it is left out")
        values = "".join(f" {word.text}" for word in option.values)
        is_megatrons = why or option.name in known
        what = f"--{option.name}{values} {'has no counterpart' if is_megatrons else 'is no flag of Megatron-LM (2026)'}"
        self.problems.append(Problem(what, option.place, hint, severity="warning"))

    def say(self, name: str, option: Option, value: Any = None) -> None:
        """Set a parameter to the option's value, which must fit its type; a flag alone says true."""
        words = [word.text for word in option.values]
        given = value if value is not None else words if len(words) > 1 else words[0] if words else True
        place = option.values[0].place if option.values else option.place
        node = Scalar(read_plain(given), given, False, place) if isinstance(given, str) else node_of(given)
        try:
            fitting = conform(node, REGISTRY.parameters[name].type)
        except Mismatch as bad:
            self.problems.append(Problem(bad.sentence(f"--{option.name}"), place, bad.advice))
            return
        is_number = isinstance(fitting, int | float) and not isinstance(fitting, bool)
        self.settings[name] = Setting(fitting, given if is_number and isinstance(given, str) else "")

    @property
    def chosen_optimizer(self) -> str:
        return self.options["optimizer"].text if "optimizer" in self.options else "adam"

    def put(self, name: str, value: Any, behind: str = "") -> None:
        self.settings[name] = Setting(value, behind=behind)

    def number(self, name: str) -> float | None:
        """The value of another flag as a number."""
        value = read_plain(self.options[name].text) if name in self.options else None
        return value if isinstance(value, int | float) else None


def _options(words: Sequence[Word]) -> dict[str, Option]:
    """Flags with their values, each under today's spelling; of a repeated flag the last counts, as for argparse."""
    found: dict[str, Option] = {}
    last: Option | None = None
    for word in words:
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            name = name if "$" in name else name.replace("_", "-")
            name = EARLIER.get(name, name)
            last = found[name] = Option(name, [Word(value, word.place)] if equals else [], word.place)
        elif last:
            last.values.append(word)
    return found


@cache
def by_flag() -> dict[str, list[str]]:
    """Flag -> the parameters that are it; a leading `!` marks a flag that says false."""
    found: dict[str, list[str]] = {}
    for parameter in REGISTRY.parameters.values():
        if parameter.megatron and not parameter.replaced_by:
            found.setdefault(parameter.megatron, []).append(parameter.name)
    return found
