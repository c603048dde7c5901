"""An error planted in a configuration: it hides no other error without saying so, and brings no false one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.request import Request
from neoxargs.checks.all import HERE
from neoxargs.commands.check.command import TRAIN
from neoxargs.launch.stages import Incomplete, State, run_until
from neoxargs.registry import REGISTRY
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.nodes import Scalar, read_plain
from tests.fuzz.mutant import VALUES

#: Settings with errors of files, folders and the machine, and of rules that wait for the ranks.
OTHERS = (
    "text_path=/nonexistent", "load=/nonexistent", "save=/proc/x", "tensorboard_dir=/proc/tb", "aio.use_gds=true",
    "train_batch_size=7", "include=localhost@worker", "num_gpus=3", "amp.enabled=true", "vocab_file=/nonexistent",
)  # fmt: skip


def faults_of_planting(text: str) -> list[str]:
    """Return what is wrong with the answers to a text without and with an error in it."""
    chance = Random(text)
    name, value = _wrong(chance)
    settings = chance.sample(OTHERS, chance.choice((0, 1, 1, 2)))
    settings = [setting for setting in settings if not setting.startswith(f"{name}=")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "my.yml")
        path.write_text(text, encoding="utf-8", errors="replace")
        before, left_out = _told(path, settings)
        after, affected = _told(path, [*settings, f"{name}={value}"])
    if before is None or after is None or not after:
        return []
    more = [each for each in after if not _is_among(each, before) and not _about(each, name)]
    fewer = [each for each in before if not _is_among(each, after) and not _about(each, name)]
    where = f"with {' '.join(settings)} and {name}={value}"
    # What was left out without the planted error may be found with it, which then keeps a rule from running.
    false = [f"{where}, this is false: {each}" for each in more if not left_out]
    named = {name, name.rpartition(".")[0]} & affected  # itself, or the section that it is in
    return false + [f"{where}, this is hidden: {each}" for each in fewer if not named]


def _wrong(chance: Random) -> tuple[str, str]:
    """Return a parameter and a value that it cannot have."""
    while True:
        parameter, value = chance.choice(list(REGISTRY.parameters.values())), chance.choice(VALUES)
        plain = read_plain(value)
        # The section of the writer switches it on, whatever it contains.
        if (
            parameter.name.startswith("checkpoint.writer.")
            or plain is None
            or value == "auto"
            or not value.isascii()
            or len(value) > 100
            or value[0] in "[{\"'"
        ):
            continue
        try:
            coerce(Scalar(plain, value), parameter.type)
        except Mismatch:
            return parameter.name, value


def _told(path: Path, settings: list[str]) -> tuple[list[Problem] | None, set[str]]:
    """Return the errors, and the keys because of which something is not checked; None if the file cannot be read."""
    request = Request([str(path)], settings)
    try:
        state = run_until("problems", State(TRAIN, request, {"DS_ACCELERATOR": "cpu"}, HERE))
    except Incomplete as stop:
        return _errors(stop.problems), set().union(*stop.affected.values())
    except Problems:
        return None, set()
    return _errors(state.problems), set()


def _errors(problems: Iterable[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.severity == "error"]


def _is_among(problem: Problem, others: list[Problem]) -> bool:
    return any((problem.id, problem.about) == (other.id, other.about) for other in others)


def _about(problem: Problem, name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in problem.about)
