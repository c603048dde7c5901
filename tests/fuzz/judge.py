"""Run one input through everything that reads a configuration, and check the answer.

An answer is correct if it is a configuration that can be split for its receivers, or problems with places in the text;
if a problem points at the mutation; and if migrating a migrated text changes nothing.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems, render
from neoxargs.checks.trainer import trainer_problems
from neoxargs.migrate.deepspeed.command import DeepSpeed
from neoxargs.migrate.megatron.command import Megatron
from neoxargs.migrate.neox.migrate import migrate
from neoxargs.migrate.source import Options, Source
from neoxargs.migrate.sources import source_of
from neoxargs.resolve import File, draft, read_files
from neoxargs.resolve.yaml.compose import LINE_BREAK
from neoxargs.runs import summary
from neoxargs.runs.run_spec import complete_run
from neoxargs.targets import deepspeed, megatron, ranks
from tests.fuzz.free import FREE, keys_fitting
from tests.fuzz.mutant import Mutant, Spot
from tests.fuzz.placed import PLACED
from tests.fuzz.planted import faults_of_planting
from tests.fuzz.sources import other_sources, yaml_sources

#: Line breaks by type of file.
BREAKS = {
    ".yml": LINE_BREAK,
    ".sh": re.compile("\r?\n"),
    ".json": re.compile("\r\n|\n|\r"),
    ".txt": re.compile("\r\n|\n|\r"),
}
#: CPU seconds after which an input is aborted; the slowest of 200,000 took 0.27.
HANG = 60.0


class Input(NamedTuple):
    """A mutant and its reader: `check`, `migrate` of YAML, or `migrate` of other files."""

    mutant: Mutant
    reader: str
    name: str = "my.yml"


class Verdict(NamedTuple):
    """The outcome, the CPU time, and what is wrong with the answer."""

    outcome: str
    seconds: float
    faults: list[str]


def made(seed: int, number: int) -> Input:
    """Return the input with this number."""
    chance = Random(f"{seed}/{number}")
    if chance.random() < 0.15:
        text = chance.choice(other_sources())
        return Input(_freely(chance, text.text), "others", text.name)
    reader = "migrate" if chance.random() < 0.25 else "check"
    source = chance.choice(yaml_sources())
    if source.leaves and chance.random() < 0.4:
        for _ in range(20):
            if mutant := chance.choice(PLACED)(chance, source):
                return Input(mutant, reader)
    if chance.random() < 0.15:
        text = keys_fitting(chance, source.text) if chance.random() < 0.5 else source.text
        return Input(Mutant(text, "an error in it"), "planted")
    if chance.random() < 0.03:
        return Input(_freely(chance, source.text), "bytes")
    return Input(_freely(chance, source.text), reader)


def _freely(chance: Random, text: str) -> Mutant:
    if chance.random() < 0.3:
        return Mutant(keys_fitting(chance, text), "keys_fitting alone")
    kinds = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        mutate = chance.choice(FREE)
        kinds.append(mutate.__name__)
        text = mutate(chance, text)
    return Mutant(text, "+".join(kinds))


class _TooLong(BaseException):
    """Not a subclass of Exception, so that the code under test does not catch it."""


def judged(given: Input) -> Verdict:
    """Read an input and check the answer."""
    faults: list[str] = []

    def stop(_: int, __: FrameType | None) -> None:
        raise _TooLong

    before, start = signal.signal(signal.SIGVTALRM, stop), time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG)
    try:
        outcome = READERS[given.reader](given, faults)
    except _TooLong:
        outcome = "hangs"
        faults.append(f"no answer after {HANG:g} s of CPU")
    except BaseException:
        outcome = "traceback"
        faults.append(traceback.format_exc(limit=-4))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return Verdict(outcome, time.process_time() - start, faults)


def _check(given: Input, faults: list[str]) -> str:
    text = Text(given.name, given.mutant.text)
    return _resolved([text], given, faults)


def _resolved(texts: Sequence[Text], given: Input, faults: list[str]) -> str:
    problems: list[Problem] = []
    outcome = "loads"
    try:
        gpus = (None, None, 8, None, 1, 96)[len(given.mutant.text) % 6]
        spec = complete_run(draft([File(*text) for text in texts]), {"DS_ACCELERATOR": "cpu"}, gpus)
        config = spec.config
        problems = [*spec.warnings, *trainer_problems(config)]
        summary.to_text(spec)
        json.dumps([deepspeed.deepspeed_json(config), deepspeed.runner_flags(config), ranks.train_values(config)])
        megatron.megatron_flags(config)
    except Problems as stop:
        problems += stop.problems
        outcome = "refused"
    faults += faults_of_problems(problems, texts[0], given.mutant.spot)
    return outcome


def _migrate(given: Input, faults: list[str]) -> str:
    text = Text(given.name, given.mutant.text)
    to = "neox-2021" if len(text.text) % 3 == 0 else "neox-2026"
    try:
        once = migrate([text], to)
    except Problems as stop:
        faults += faults_of_problems(stop.problems, text, given.mutant.spot)
        return "refused"
    faults += faults_of_problems(once.problems, text, given.mutant.spot)
    try:
        if migrate(once.texts, to).texts != once.texts:
            faults.append("migrating twice changes something")
    except Problems as stop:
        faults.append(f"what was migrated is refused: {stop}")
    return "migrates"


def _others(given: Input, faults: list[str]) -> str:
    text = Text(given.name, given.mutant.text)
    try:
        is_script = given.name.endswith(".sh") or source_of(text).name == "megatron"
        source: Source = Megatron() if is_script else DeepSpeed()
        result = source.converts([text], Options(choose=None if is_script else 1))
        new = Text("new.yml", result.text)
        problems, outcome = result.problems, "migrates"
        if wrong := draft([File(*new)]).problems:
            faults.append(f"the new file is wrong: {render(wrong)}")
    except Problems as stop:
        problems, outcome = stop.problems, "refused"
    faults += faults_of_problems(problems, text, None)
    return outcome


def _bytes(given: Input, faults: list[str]) -> str:
    """Read the input from a file with some bytes changed."""
    chance = Random(given.mutant.text)
    data = bytearray(given.mutant.text.encode("utf-8", "surrogatepass"))
    for _ in range(chance.randrange(1, 6) if data else 0):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / given.name
        path.write_bytes((b"\xef\xbb\xbf" if chance.random() < 0.2 else b"") + data)
        try:
            texts = read_files([path])
        except Problems as stop:
            faults += [f"no text: {problem}" for problem in stop.problems if not problem.what]
            return "refused"
    return _resolved(texts, given, faults)


def _planted(given: Input, faults: list[str]) -> str:
    faults += faults_of_planting(given.mutant.text)
    return "answered"


READERS: dict[str, Callable[[Input, list[str]], str]] = {"check": _check, "migrate": _migrate, "others": _others,
                                                         "bytes": _bytes, "planted": _planted}  # fmt: skip


# -- text and places of problems -------------------------------------------------------------------------------------


def faults_of_problems(problems: Sequence[Problem], text: Text, spot: Spot | None) -> list[str]:
    """Return what is wrong with the problems of an answer."""
    drawn = render(problems)
    faults = [f"unprintable: {drawn!r}"] if not drawn.replace("\n", "").isprintable() else []
    lines = BREAKS[Path(text.name).suffix].split(text.text)
    for problem in problems:
        if not problem.what:
            faults.append(f"a problem without text: {problem}")
        for place in (problem.where, *problem.also):
            if place and place.file == text.name and place.line and not _is_in(place, lines):
                faults.append(f"no such place: {place} in {problem}")
    if spot and not any(_points_at(problem, spot) for problem in problems):
        faults.append(f"nothing points at line {spot.line}, column {spot.column}:\n{drawn}")
    return faults


def _is_in(place: Place, lines: Sequence[str]) -> bool:
    if not lines:
        return place.line == 1
    if place.line > len(lines) or place.column < 1:
        return False
    return lines[place.line - 1] == place.text and place.column <= len(place.text) + 1


def _points_at(problem: Problem, spot: Spot) -> bool:
    places = (problem.where, *problem.also)
    return any(p and p.line == spot.line and spot.column in (0, p.column) for p in places)


def described(given: Input, verdict: Verdict) -> str:
    """Describe an input with a wrong answer."""
    head = f"{given.reader} after {given.mutant.kind}: {verdict.outcome}, {verdict.seconds:.2f} s of CPU"
    return "\n".join([head, *(f"  {line}" for fault in verdict.faults for line in fault.splitlines()[:30])])
