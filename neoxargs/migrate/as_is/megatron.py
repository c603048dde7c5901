"""A Megatron-LM launch script: what the program's argument parser and its checks of the arguments make of the flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Literal, NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem, Problems, close_matches, is_one_edit, listed
from neoxargs.base.record import Record, replace
from neoxargs.migrate.as_is.conditions import UNKNOWN, Words, broken, sentence
from neoxargs.migrate.as_is.keys import Program, conflict, finite, other_version, removed_choice
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
#: Flags that do something else than those that replaced them.
OTHER_MEANING = ("--checkpoint-activations",)
#: Flags that Megatron-LM requires, apart from those of which each has an alternative.
REQUIRED = ("--num-layers", "--hidden-size", "--num-attention-heads", "--max-position-embeddings", "--micro-batch-size")

#: Of these, it requires one.
SEQUENCE = ("--seq-length", "--encoder-seq-length")


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
        yield from _together(command, gpus or command.ranks, program)


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
        instead, severity = _instead(known, name), _severity(command)
        place = flag.place._replace(width=len(name))
        for problem in other_version(name, place, program, known.since, known.until, instead, "refuses", severity):
            yield replace(problem, edits=()) if name in OTHER_MEANING else problem
    if all(word.is_known and not word.is_placeholder for word in flag.values):
        for word in flag.values if not command.is_fork else ():
            yield from removed_choice(name, word.text, word.place, program, known, _severity(command))
        yield from _values(name, flag, known, command)


def _instead(known: other_keys.Key, name: str) -> str:
    """Return the flag of the newest version that replaces another one, as its source says, or as it is known here."""
    old = f"--{OLD_NAMES.get(_plain(name), '')}"
    return known.instead or (old if old in other_keys.keys("megatron") else "")


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
    elif known.choices and (
        wrong := next((word for word in flag.values if word.text not in {*known.choices, *known.former}), None)
    ):
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

WSD_LENGTHS = ("--lr-wsd-decay-iters", "--lr-wsd-decay-samples")
#: Settings of which every run has one: a condition under which two flags exclude each other is not about them.
LENGTHS = ("train_iters", "train_samples")
PARALLEL = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")


def _together(command: Command, ranks: int | None, program: Program) -> Iterator[Problem]:
    """Yield what Megatron-LM refuses when it validates the arguments and makes its configurations of them."""
    yield from _batch(command, ranks)
    given = {_dest(name): flag for name, flag in command.flags.items()}
    newest = not program.is_before(program.versions[-1])
    is_whole = command.is_own and not command.is_fork and not command.is_open
    usual = _usual() if is_whole and newest else {}
    known = usual | ({"world_size": ranks} if ranks else {})
    for name, flag in given.items():
        known.pop(name, None)
        if (value := _value(flag)) is not UNKNOWN:
            known[name] = value
    steps = [step for step in other_keys.steps("megatron") if not program.is_before(step.since or program.version)]
    words = Words({name: _written(flag) for name, flag in given.items()}, _flags_of)
    told = set[frozenset[str]]()
    for found in (each.beside(LENGTHS, given) for each in broken(steps, known)):
        there = [name for name in found.names if name in given]
        # A flag that is only parsed to be refused is reported as a removed one.
        if there and frozenset(there) not in told and not any(_is_gone(given[name].name, program) for name in there):
            told.add(frozenset(there))
            what, hint = sentence(found, words)
            where, *also = (given[name].place for name in there)
            yield conflict(what, where, hint, also, _severity(command))
    if is_whole:
        yield from _of_schedulers(command.flags)
        yield from _missing(command)


@cache
def _usual() -> dict[str, Any]:
    """Return the value that each setting of the newest version has without its flag, as far as it is known."""
    rows = {name: row for name, row in other_keys.keys("megatron").items() if not row.until}
    found: dict[str, Any] = {}
    for name, row in rows.items():
        value = row.off if row.type == "switch" else row.default
        if row.computed or "switch|" in row.type or "|switch" in row.type or found.get(_dest(name), value) != value:
            found[_dest(name)] = UNKNOWN
        elif found.get(_dest(name)) is not UNKNOWN:
            found[_dest(name)] = value
    return {name: value for name, value in found.items() if value is not UNKNOWN}


def _dest(name: str) -> str:
    """Return the setting that a flag gives."""
    row = other_keys.keys("megatron").get(name)
    return (row.dest if row else "") or name.lstrip("-").replace("-", "_")


@cache
def _flags_of(name: str) -> tuple[str, str]:
    """Return the flag that gives a setting, and the one that switches it off, "" if there is none."""
    names = [flag for flag, row in other_keys.keys("megatron").items() if not row.until and _dest(flag) == name]
    of = [[flag for flag in names if other_keys.keys("megatron")[flag].off == is_off] for is_off in (False, True)]
    given, back = (min(flags, key=len) if flags else "" for flags in of)
    return given, back


def _written(flag: Flag) -> str:
    return f"{flag.name} ({' '.join(word.text for word in flag.values)})" if flag.values else flag.name


def _is_gone(name: str, program: Program) -> bool:
    row = other_keys.keys("megatron").get(name)
    return bool(row and row.until and not program.is_before(row.until))


def _value(flag: Flag) -> Any:
    """Return the value that a flag gives its setting."""
    row = other_keys.keys("megatron").get(flag.name)
    if row is None or not all(word.is_known and not word.is_placeholder for word in flag.values):
        return UNKNOWN
    texts = [word.text for word in flag.values]
    if row.type == "switch":
        return not row.off
    if "many" in row.type:
        return texts if not any(isinstance(read_plain(text), int | float) for text in texts) else UNKNOWN
    if len(texts) == 1 and row.type in ("int", "float") and _is_number(texts[0], row.type):
        return int(texts[0]) if row.type == "int" else float(texts[0])
    return texts[0] if len(texts) == 1 and row.type == "str" else UNKNOWN


def _number(flags: Mapping[str, Flag], name: str) -> int | float | None:
    return flags[name].number if name in flags else None


def _missing(command: Command) -> Iterator[Problem]:
    """Yield what a complete command lacks."""
    flags = command.flags
    if "--sequence-parallel" in flags and (_number(flags, PARALLEL[0]) or 1) == 1:
        what = "--sequence-parallel has no effect without tensor parallelism"
        yield conflict(what, flags["--sequence-parallel"].place, "remove it", severity="warning")
    # What an old or misspelt flag should be is said there.
    meant = {_instead(known, name) for name in flags if (known := other_keys.keys("megatron").get(name))}
    meant |= {f"--{_plain(name)}" for name in flags}
    required = (*REQUIRED, *(SEQUENCE[:1] if meant.isdisjoint(SEQUENCE) else ()))
    missing = [name for name in required if name not in flags and name not in meant]
    if missing and flags.keys().isdisjoint(("--use-checkpoint-args", "--yaml-cfg")):
        what = f"Megatron-LM requires {listed(missing, 'and')}"
        yield conflict(what, next(iter(flags.values())).place, f"add {listed(missing, 'and')}")


def _of_schedulers(flags: Mapping[str, Flag]) -> Iterator[Problem]:
    """Yield what Megatron-LM's schedulers of the learning rate, the weight decay and the batch refuse at the start."""
    style = flags.get("--lr-decay-style")
    if style and [word.text for word in style.values] == ["WSD"] and flags.keys().isdisjoint(WSD_LENGTHS):
        what = f"--lr-decay-style WSD needs {listed(WSD_LENGTHS)}, without which Megatron-LM's scheduler refuses it"
        yield conflict(what, style.place, f"add {WSD_LENGTHS[0]}")
    for unit in ("iters", "samples"):
        names = (f"--lr-warmup-{unit}", f"--lr-decay-{unit}", f"--train-{unit}")
        warm_up, *ends = (_number(flags, name) for name in names)
        end = next((name for name, number in zip(names[1:], ends, strict=True) if number), "")
        if warm_up and end and warm_up >= (_number(flags, end) or 0):
            what = f"{names[0]} ({warm_up}) must be below {end} ({_number(flags, end)}), where the decay ends"
            yield conflict(what, flags[names[0]].place, "", [flags[end].place])
    start, end_decay = (_number(flags, f"--{name}-weight-decay") for name in ("start", "end"))
    if start is not None and end_decay is not None and not 0 <= start <= end_decay:
        what = (
            f"--end-weight-decay ({end_decay:g}) must be at least --start-weight-decay ({start:g}), and both at least 0"
        )
        yield conflict(what, flags["--end-weight-decay"].place, "", [flags["--start-weight-decay"].place])
    yield from _of_ramp(flags)


def _of_ramp(flags: Mapping[str, Flag]) -> Iterator[Problem]:
    """Yield the problem of a ramp of the batch that does not reach the whole batch, or has no samples to count."""
    ramp, total = flags.get("--rampup-batch-size"), _number(flags, "--global-batch-size")
    if ramp is None or not all(word.is_known and not word.is_placeholder for word in ramp.values):
        return
    if "--train-iters" in flags:
        what = "--rampup-batch-size needs --train-samples: Megatron-LM refuses it with --train-iters"
        yield conflict(
            what, ramp.place, "set --train-samples in place of --train-iters", [flags["--train-iters"].place]
        )
    numbers = [read_plain(word.text) for word in ramp.values]
    is_form = len(numbers) == 3 and all(isinstance(number, int) and number > 0 for number in numbers)
    if is_form and (total is None or (numbers[0] <= total and (total - numbers[0]) % numbers[1] == 0)):
        return
    shown = " ".join(word.text for word in ramp.values)
    what = f"--rampup-batch-size ({shown}) must be a first batch, an increment that leads to --global-batch-size"
    what += f"{'' if total is None else f' ({total})'} in equal steps, and a number of samples"
    yield conflict(what, ramp.place, "for example 32 32 1000000")


def _batch(command: Command, ranks: int | None) -> Iterator[Problem]:
    """Yield a problem if the ranks or the batch cannot be divided."""
    flags, severity = command.flags, _severity(command)
    there = [flags[name] for name in PARALLEL if name in flags]
    is_known = all(flag.number for flag in there)
    replica = prod(int(flag.number or 1) for flag in there)
    layouts = [(there, there[0])] if there else []
    if experts := flags.get("--expert-model-parallel-size"):
        # Megatron-LM's layout of the experts: without a size of their own, tensor parallel ranks divide each of them.
        own = "--expert-tensor-parallel-size"
        divided = [flags[name] for name in (own if own in flags else PARALLEL[0], PARALLEL[1]) if name in flags]
        layouts.append(([flag for flag in (*divided, experts) if flag.number != 1], experts))
    for layout, at in layouts:
        if ranks and all(flag.number for flag in layout) and ranks % prod(int(flag.number or 1) for flag in layout):
            shown = " x ".join(f"{flag.name} ({flag.number})" for flag in layout)
            what = f"the number of ranks ({ranks}) must be a multiple of {shown}"
            yield Problem(what, at.place, "", (), severity, id="other-program-batch")
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
