"""What `deepy init` has to know: each answer is an option of the command line, and a question at a terminal."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.options import gpu_count
from neoxargs.base.problems import Problems, did_you_mean, listed, sentence
from neoxargs.base.record import Record
from neoxargs.base.shipped import CONFIGS
from neoxargs.commands.init.goals import GOALS
from neoxargs.facts.model import parameters, vocabulary_rows
from neoxargs.files.token_files.made_from import sidecar
from neoxargs.files.tokenizer_folder import VOCABULARY, read_json
from neoxargs.hosts.assumed import GPUS_PER_HOST
from neoxargs.hosts.device_table import DEVICES, find_device
from neoxargs.hosts.hostfile import read_hostfile
from neoxargs.resolve import read_draft
from neoxargs.runs.lenient import resolved

STDLIB = "python-stdlib"
#: A tokenizer that needs no file.
BYTES = "ByteLevelTokenizer"
GPUS = tuple(name for name, each in DEVICES.items() if each.kind == "cuda")
_UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}
#: The nearest model differs from a size by this factor at most.
ABOUT = 1.25


class Answers(Record):
    """Everything that the file depends on."""

    model: str
    goal: str
    device: str
    gpus: int
    per_host: int = GPUS_PER_HOST
    hostfile: str | None = None
    data: Sequence[str] = ()
    tokenizer: str = BYTES
    checkpoint: str = ""

    @classmethod
    def of(cls, given: argparse.Namespace) -> Answers:
        slots = list((read_hostfile(given.hostfile) or {}).values()) if given.hostfile else []
        return cls(
            given.model[0], given.goal, find_device(given.device).name,
            sum(slots) or given.gpus, max(slots, default=given.per_host), given.hostfile,
            given.data, given.tokenizer or tokenizer_of(given.data) or BYTES, given.checkpoint or "",
        )  # fmt: skip


def models() -> list[str]:
    return sorted(path.stem for path in (CONFIGS / "models").glob("*.yml"))


@cache
def sizes() -> dict[str, int]:
    """Return the number of parameters of each shipped model without experts, whose cost a size describes."""
    found = {}
    for name in models():
        config, _ = resolved(read_draft([CONFIGS / "models" / f"{name}.yml"]), 1)
        if config.moe.moe_num_experts <= 1:
            found[name] = parameters(config, vocabulary_rows(config) or 0)
    return found


def model(text: str) -> list[str]:
    """Return the shipped model of a name, or all of about a size, the nearest first."""
    if text in models():
        return [text]
    if size := re.fullmatch(r"(\d+(?:\.\d+)?)([MBT])", text.upper()):
        wanted = float(size[1]) * _UNITS[size[2]] or 1.0
        factors = sorted((max(count / wanted, wanted / count), name) for name, count in sizes().items())
        if found := [name for factor, name in factors if factor <= ABOUT]:
            return found
        raise argparse.ArgumentTypeError(f"no shipped model has about {text} parameters; {_known()}")
    raise argparse.ArgumentTypeError(f"there is no model {text!r}; {did_you_mean(text, models()) or _known()}")


def _known() -> str:
    return f"models: {', '.join(models())}, or a size such as 1.3B"


def others_of_the_size(found: list[str]) -> str:
    """Return which model a size was taken for, where there are others of about that size; else empty."""
    others = listed(found[1:], "or")
    return f"model: {found[0]}; --model also takes others of about this size by name: {others}" if others else ""


def device(text: str) -> str:
    try:
        found = find_device(text).name
    except Problems:
        found = ""
    if found in GPUS:
        return found
    hint = did_you_mean(text, GPUS) or f"expected one of: {', '.join(GPUS)}"
    raise argparse.ArgumentTypeError(f"there is no GPU {text!r}; {hint}")


def hostfile(text: str) -> str:
    try:
        if not read_hostfile(text):
            raise argparse.ArgumentTypeError(f"{text}: there is no such file")
    except Problems as problems:
        raise argparse.ArgumentTypeError(sentence(problems.problems[0])) from None
    return text


def goal(text: str) -> str:
    if text not in GOALS:
        raise argparse.ArgumentTypeError(f"there is no goal {text!r}; goals: {', '.join(GOALS)}")
    return text


def is_text(path: str) -> bool:
    """Return whether a path names text rather than token files, which may be written later."""
    if Path(f"{path}.idx").exists():
        return False
    return path == STDLIB or bool(re.search(r"[*?[]", path)) or Path(path).exists() or bool(Path(path).suffix)


def tokenizer_of(data: Sequence[str]) -> str | None:
    """Return a tokenizer without files that suits the data: what token files were written with; None if unknown."""
    if all(map(is_text, data)):
        return BYTES
    kinds = {read_json(record).get("tokenizer_type") for path in data if (record := sidecar(Path(path))).is_file()}
    return kinds.pop() if len(kinds) == 1 and kinds <= {BYTES, "CharLevelTokenizer"} else None


def tokenizer(text: str) -> str:
    """Return the file of a tokenizer, given or in a folder, or the name of one that needs no file."""
    names = [name for files in VOCABULARY.values() for name in files[:1]]
    in_folder = (str(Path(text) / name) for name in names if (Path(text) / name).is_file())
    if text in (BYTES, "CharLevelTokenizer") or text.endswith((".json", ".model")):
        return text
    if found := next(in_folder, None):
        return found
    raise argparse.ArgumentTypeError(f"{text!r} is neither a tokenizer.json, nor a .model file, nor a folder with one")


def _not_of_the_goal(given: argparse.Namespace) -> str:
    """Return what is wrong with the data of a goal that needs certain files; else empty."""
    files = GOALS[given.goal].files
    if not files or len(given.data) == len(files):
        return ""
    return f"--data takes two prefixes for --goal {given.goal}: {' and '.join(files)}"


def _needs_tokenizer(given: argparse.Namespace) -> bool:
    """Return whether the tokenizer is unknown: of token files, or of the checkpoint that is trained on text."""
    return tokenizer_of(given.data) is None or (GOALS[given.goal].needs_checkpoint and all(map(is_text, given.data)))


class Question(NamedTuple):
    """A question, the option that answers it, and when it is asked.

    default: the answer of an empty line. wrong: what is wrong with it beside the earlier answers. says: what it means.
    """

    name: str
    text: str
    read: Callable[[str], Any]
    default: str | None = None
    applies: Callable[[argparse.Namespace], bool] = lambda given: True
    wrong: Callable[[argparse.Namespace], str] = lambda given: ""
    says: Callable[[Any], str] = lambda answer: ""


QUESTIONS = (
    Question("model", "model (a name in configs/models, or a size such as 1.3B)", model,
        says=others_of_the_size),
    Question("goal", "".join(f"  {name.ljust(9)} {each.meaning}\n" for name, each in GOALS.items()) + "goal",
        goal, "pretrain"),
    Question("checkpoint", "folder of the checkpoint to start from", str, None,
        lambda given: GOALS[given.goal].needs_checkpoint),
    Question("device", f"type of GPU ({', '.join(GPUS)})", device),
    Question("gpus", "number of GPUs", gpu_count, None, lambda given: not given.hostfile),
    Question("data", "data (token files without .bin and .idx, or text; several with spaces; nothing: sample text)",
        str.split, "", lambda given: not GOALS[given.goal].files),
    Question("data", "data (two prefixes of deepy data --chat: training and validation; for dpo, chosen and rejected)",
        str.split, None, lambda given: bool(GOALS[given.goal].files), _not_of_the_goal),
    Question("tokenizer", "tokenizer (its folder, tokenizer.json or .model file)",
        tokenizer, None, lambda given: _needs_tokenizer(given)),
)  # fmt: skip
