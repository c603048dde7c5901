"""A Megatron-LM launch script: what the program's argument parser and its checks of the arguments make of the flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Literal, NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem, Problems, close_matches, is_one_edit, listed
from neoxargs.base.record import Record
from neoxargs.migrate.as_is.keys import Program, conflict, finite, other_version
from neoxargs.migrate.megatron.command import Megatron
from neoxargs.migrate.megatron.convert import command_of
from neoxargs.migrate.megatron.flags import is_read
from neoxargs.migrate.megatron.launcher import index_of_program, is_of_gpt, kind_of_program
from neoxargs.migrate.megatron.reading import OLD_NAMES
from neoxargs.migrate.megatron.slurm import Job
from neoxargs.migrate.megatron.unsupported_flags import reason
from neoxargs.migrate.shell.script import read_script
from neoxargs.migrate.shell.values import Word
from neoxargs.registry import normal, other_keys
from neoxargs.resolve.yaml.nodes import read_plain

NOT_SCRIPTS = (".yml", ".yaml", ".json", ".toml", ".md", ".py", ".ipynb")
#: Flags that Megatron-LM requires, apart from those of which each has an alternative.
REQUIRED = ("--num-layers", "--hidden-size", "--num-attention-heads", "--max-position-embeddings", "--micro-batch-size")
#: Flags with which the layers of a pipeline are not divided evenly, or are given in another way.
OTHER_DIVISION = ("layout", "first-pipeline", "last-pipeline", "split", "in-pipeline", "uneven", "hybrid", "virtual")


class Flag(NamedTuple):
    """A flag as the script has it, and its values."""

    name: str
    values: list[Word]
    place: Place

    @property
    def number(self) -> int | float | None:
        is_known = len(self.values) == 1 and self.values[0].is_known
        return finite(read_plain(self.values[0].text)) if is_known else None


class Command(Record):
    """The training command of a script.

    flags: by name, the last of each. repeated: pairs of a flag and a later one. is_open: unknown words may be further
    flags. is_own: it starts Megatron-LM's own program for GPTs. is_fork: it has flags that Megatron-LM never had.
    """

    flags: Mapping[str, Flag]
    repeated: Sequence[tuple[Flag, Flag]] = ()
    ranks: int | None = None
    is_open: bool = False
    is_own: bool = False
    is_fork: bool = False
    problems: Sequence[Problem] = ()


def program(given: str) -> Program:
    """Return Megatron-LM in a version of its core."""
    return Program("Megatron-LM", "megatron", other_keys.versions("megatron"), given)


def read(text: Text) -> Command | None:
    """Return the training command of a script; None for another file."""
    if text.name.endswith(NOT_SCRIPTS) or text.text.lstrip().startswith("{") or not Megatron().recognises(text):
        return None
    try:
        job = Job(text)
        script = read_script(text, job.variables)
        words = command_of(script)
    except Problems as stop:
        return Command({}, problems=[problem.as_warning() for problem in stop.problems])
    if not any(word.text.startswith("--") for word in words):
        words = script.variable_flags
    if not any(word.text.startswith("--") for word in words):
        return None
    start = index_of_program([word.text for word in words])
    flags, repeated, is_open = _flags(words[start + 1 :])
    names = [_plain(name) for name in flags]
    is_fork = any(f"--{name}" not in other_keys.keys("megatron") and _is_of_fork(name) for name in names)
    return Command(
        flags,
        repeated,
        _ranks(words[: max(start, 0)]),
        is_open or start < 0,
        start >= 0 and is_of_gpt(words[start].text),
        is_fork or (start >= 0 and bool(kind_of_program(words[start].text))),
    )


def _flags(words: Sequence[Word]) -> tuple[dict[str, Flag], list[tuple[Flag, Flag]], bool]:
    flags: dict[str, Flag] = {}
    repeated, is_open, last = [], False, None
    for word in words:
        if word.text.startswith("--") and len(word.text) > 2:
            name, equals, value = word.text.partition("=")
            last = Flag(name, [word._replace(text=value)] if equals else [], word.place)
            if not word.is_known and not equals:
                is_open = True
            elif name in flags:
                repeated.append((flags[name], last))
            flags[name] = last
        elif word.text.strip():
            is_open = is_open or not word.is_known
            if last:
                last.values.append(word)
    return flags, repeated, is_open


def _ranks(words: Sequence[Word]) -> int | None:
    """Return the number of ranks that torchrun starts, if the command says it."""
    flags = {normal(name.lstrip("-")): flag.number for name, flag in _flags(words)[0].items()}
    nodes, each = flags.get("nnodes", 1), flags.get("nproc_per_node")
    return int(nodes * each) if nodes and each else None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _is_of_fork(name: str) -> bool:
    """Return whether a flag is one of a known fork, or of an older Megatron-LM."""
    return name in OLD_NAMES or is_read(name) or bool(reason(name)) or name.startswith("deepspeed")


def judge(command: Command, text: Text, program: Program, gpus: int | None) -> Iterator[Problem]:
    """Yield what is wrong with the flags."""
    yield from command.problems
    for first, second in command.repeated:
        kind = other_keys.keys("megatron").get(first.name, other_keys.Key("many")).type
        if "many" not in kind and [word.text for word in first.values] != [word.text for word in second.values]:
            what = f"{first.name} is given twice with different values, and the last one counts"
            yield conflict(what, second.place, "remove one of the two", [first.place], "warning")
    for name, flag in command.flags.items():
        yield from _of_flag(name, flag, command, program)
    if command.flags:
        yield from _together(command, gpus or command.ranks)


def remarks(command: Command) -> dict[str, str]:
    """Return lines about a script."""
    lines = {"fork": "flags that only forks of Megatron-LM have, so flags are not compared with its versions"}
    return lines if command.is_fork and command.flags else {}


def _of_flag(name: str, flag: Flag, command: Command, program: Program) -> Iterator[Problem]:
    known = other_keys.keys("megatron").get(name)
    if known is None:
        yield from _unknown(name, flag, command)
        return
    if not command.is_fork:
        yield from other_version(name, flag.place, program, known.since, known.until, does="refuses")
    if all(word.is_known and not word.is_placeholder for word in flag.values):
        yield from _values(name, flag, known, command)


def _severity(command: Command) -> Literal["error", "warning"]:
    """Return how severe it is if Megatron-LM refuses something: another program may accept it."""
    return "error" if command.is_own and not command.is_fork else "warning"


def _unknown(name: str, flag: Flag, command: Command) -> Iterator[Problem]:
    """Yield the problem of a flag that Megatron-LM never had, unless a fork or the program may have it."""
    all_flags, plain = other_keys.keys("megatron"), f"--{_plain(name)}"
    if "$" in name or "`" in name or (plain == name and _is_of_fork(_plain(name))):
        return
    near = [each for each in all_flags if is_one_edit(name, each) and each not in command.flags]
    near = [plain] if plain in all_flags else near
    found = near or close_matches(name, [each for each in all_flags if each not in command.flags], alike=0.9)
    if not near and not (command.is_own and not command.is_fork):
        return
    what = f"{name} is not a flag of Megatron-LM, and its parser refuses unknown flags"
    written = flag.place._replace(width=len(name)).written
    edits = (
        (Edit(flag.place._replace(width=len(name)), "replace", near[0]),) if len(near) == 1 and written == name else ()
    )
    hint = f"did you mean {listed(found)}?" if found else "remove it, unless your fork of Megatron-LM adds it"
    severity = _severity(command) if near else "warning"
    yield Problem(what, flag.place, hint, (), severity, id="other-program-key", edits=edits)


def _values(name: str, flag: Flag, known: other_keys.Key, command: Command) -> Iterator[Problem]:
    kind = "any" if "|" in known.type else known.type  # it was another one in other versions
    texts, most = [word.text for word in flag.values], {"switch": 0, "many": None, "any": None}.get(kind, 1)
    if (command.is_fork or not command.is_own) and (len(texts) > 1 or known.choices):
        return  # its parser may accept other values
    place, hint, edits = flag.values[0].place if flag.values else flag.place, "", tuple[Edit, ...]()
    if not texts and kind not in ("switch", "any"):
        what, hint = f"{name} has no value", "add a value, or remove the flag"
    elif most is not None and len(texts) > most:
        what = f"{name} takes {'no' if not most else 'one'} value, got {' '.join(texts)}"
        place, hint = flag.values[most].place, f"remove {' '.join(texts[most:])}"
    elif known.choices and (wrong := next((word for word in flag.values if word.text not in known.choices), None)):
        found = [choice for choice in known.choices if is_one_edit(choice, wrong.text)]
        what = f"{name} ({wrong.text}) must be one of {listed(known.choices, most=20)}"
        place = wrong.place
        edits = (Edit(place, "replace", found[0]),) if len(found) == 1 and _is_written(place, wrong.text) else ()
        hint = f"did you mean {listed(found)}?" if found else ""
    elif kind in ("int", "float") and not _is_number(texts[0], kind):
        what = f"{name} ({texts[0]}) must be a {'whole ' if kind == 'int' else ''}number"
        value = read_plain(texts[0])
        if kind == "int" and isinstance(value, float) and value.is_integer() and _is_written(place, texts[0]):
            hint, edits = f"write {int(value)}", (Edit(place, "replace", str(int(value))),)
    else:
        return
    yield Problem(what, place, hint, (), _severity(command), id="other-program-value", edits=edits)


def _is_written(place: Place, text: str) -> bool:
    return place.text[place.column - 1 :].startswith(text)


def _is_number(text: str, kind: str) -> bool:
    try:
        int(text) if kind == "int" else float(text)
    except ValueError:
        return False
    return True


# -- flags that belong together ---------------------------------------------------------------------------------------

#: Flags that exclude each other, in the second place only if they are not zero.
EXCLUDING = [
    ("--fp16", "--bf16"),
    *(("--train-iters", f"--{name}-samples") for name in ("train", "lr-decay", "lr-warmup")),
    *(("--train-samples", f"--{name}-iters") for name in ("lr-decay", "lr-warmup")),
    *(("--lr-warmup-fraction", f"--lr-warmup-{name}") for name in ("iters", "samples")),
]
#: The first must be a multiple of the second, unless a flag has one of the words in its name.
MULTIPLES: list[tuple[str, str, tuple[str, ...]]] = [
    ("--num-attention-heads", "--tensor-model-parallel-size", ()),
    ("--hidden-size", "--num-attention-heads", ("kv-channels",)),
    ("--num-layers", "--pipeline-model-parallel-size", OTHER_DIVISION),
]
#: The first must be at most the second.
LIMITS = [("--seq-length", "--max-position-embeddings"), ("--min-lr", "--lr")]
#: A flag, the text of its value ("" for any), and the flag that it needs.
NEEDED = [("--save", "", "--save-interval"), ("--recompute-granularity", "full", "--recompute-method")]
PARALLEL = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")


def _together(command: Command, ranks: int | None) -> Iterator[Problem]:
    """Yield what Megatron-LM's validate_args and its transformer configuration refuse."""
    flags = command.flags
    for one, other in EXCLUDING if "--skip-train" not in flags else ():
        if one in flags and other in flags and flags[other].number != 0:
            yield _refused(command, f"{one} and {other} exclude each other", other, one, hint="remove one of them")
    for one, other, words in MULTIPLES:
        size, factor = _number(flags, one), _number(flags, other)
        if size and factor and size % factor and not any(word in name for name in flags for word in words):
            yield _refused(command, f"{one} ({size}) must be a multiple of {other} ({factor})", one, other)
    for one, other in LIMITS:
        value, limit = _number(flags, one), _number(flags, other)
        if value is not None and limit is not None and value > limit:
            yield _refused(command, f"{one} ({value}) must be at most {other} ({limit})", one, other)
    yield from _batch(command, ranks)
    if _text(flags, "--recompute-granularity") == "selective" and "--recompute-method" in flags:
        what = "--recompute-method is not allowed with --recompute-granularity selective"
        yield _refused(command, what, "--recompute-method", "--recompute-granularity", hint="remove it")
    if not command.is_open and command.is_own and not command.is_fork:
        yield from _missing(command)


def _number(flags: Mapping[str, Flag], name: str) -> int | float | None:
    return flags[name].number if name in flags else None


def _text(flags: Mapping[str, Flag], name: str) -> str:
    return " ".join(word.text for word in flags[name].values) if name in flags else ""


def _refused(command: Command, what: str, *names: str, hint: str = "") -> Problem:
    where, *also = (command.flags[name].place for name in names)
    return conflict(what, where, hint, also, _severity(command))


def _missing(command: Command) -> Iterator[Problem]:
    """Yield what a complete command lacks."""
    flags = command.flags
    for one, value, other in NEEDED:
        if one in flags and _text(flags, one) in (value or _text(flags, one),) and other not in flags:
            yield _refused(command, f"{one} needs {other}", one, hint=f"add {other}")
    if "--sequence-parallel" in flags and (_number(flags, PARALLEL[0]) or 1) == 1:
        what = "--sequence-parallel has no effect without tensor parallelism"
        yield conflict(what, flags["--sequence-parallel"].place, "remove it", severity="warning")
    missing = [name for name in REQUIRED if name not in flags]
    if missing and flags.keys().isdisjoint(("--use-checkpoint-args", "--yaml-cfg")):
        what = f"Megatron-LM requires {listed(missing, 'and')}"
        yield conflict(what, next(iter(flags.values())).place, f"add {listed(missing, 'and')}")


def _batch(command: Command, ranks: int | None) -> Iterator[Problem]:
    """Yield a problem if the ranks or the batch cannot be divided."""
    flags, severity = command.flags, _severity(command)
    there = [flags[name] for name in PARALLEL if name in flags]
    is_known = all(flag.number for flag in there)
    replica = prod(int(flag.number or 1) for flag in there)
    if ranks and is_known and ranks % replica:
        shown = " x ".join(f"{flag.name} ({flag.number})" for flag in there)
        what = f"the number of ranks ({ranks}) must be a multiple of {shown}"
        yield Problem(what, there[0].place, "", (), severity, id="other-program-batch")
        return
    total, micro = (flags.get(name) for name in ("--global-batch-size", "--micro-batch-size"))
    if not total or not micro or not total.number or not micro.number:
        return
    data = ranks // replica if ranks and is_known else 1
    if total.number % (micro.number * data):
        by = f" x data parallel ranks ({data})" if data > 1 else ""
        what = f"--global-batch-size ({total.number}) must be a multiple of --micro-batch-size ({micro.number}){by}"
        near = int(total.number // (micro.number * data) + 1) * int(micro.number * data)
        yield Problem(what, total.place, f"write {near}", (micro.place,), severity, id="other-program-batch")
