"""The stages of a launch, in order: any of them can refuse the run, and the fastest come first.

Each command runs a part of the list. `deepy check` ends with the problems, `deepy export` when they are refused,
`--dry-run` with the command, and a process that was started as a rank (become_rank.py) has stages of its own from the
lock on. What a later stage needs is imported when it runs, so that a check stays fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems, has_errors, report
from neoxargs.base.programs import READERS, Script, find_script
from neoxargs.base.record import Record, replace
from neoxargs.base.request import Request
from neoxargs.checks import all as checks
from neoxargs.files.token_files.sources import with_text
from neoxargs.hosts.slurm import requeues
from neoxargs.launch.command.command import Command, command
from neoxargs.launch.start import prepare as preparation
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.suppressions import not_suppressed
from neoxargs.runs.run_spec import RunSpec, resolve_run

if TYPE_CHECKING:
    from neoxargs.processes.run_lock import RunLock


#: Warnings of rules that are about a trained model too.
OF_A_TRAINED_MODEL = (
    "rotary-positions-reach-seq-length", "rope-scaling-factor-at-least-one", "rope-scaling-lengthens-the-context",
)  # fmt: skip


class Incomplete(Problems):
    """Raised if errors of the configuration keep some checks from being made.

    affected: what is checked -> the keys because of which a part of it could not be. texts: the files.
    """

    def __init__(
        self, problems: Iterable[Problem], affected: Mapping[str, Collection[str]], texts: Sequence[Text] = ()
    ) -> None:
        super().__init__(problems)
        self.affected, self.texts = affected, texts


class State(Record):
    """A launch as far as its stages have come."""

    script: Script
    request: Request
    environ: Mapping[str, str]
    subjects: Collection[checks.Subject] = checks.HERE
    """What is checked."""
    lenient: Collection[checks.Subject] = ()
    """The subjects of which every problem is a warning."""
    commit: str | None = None
    """The commit of the working directory."""
    held: ExitStack | None = None
    """Releases the lock when the run has ended."""
    resolved: RunSpec | None = None
    command: Command | None = None
    problems: tuple[Problem, ...] = ()
    lock: RunLock | None = None
    code: int = 0
    """The exit code of the program that ran last."""

    @property
    def spec(self) -> RunSpec:
        """The run, which the first stage resolves."""
        assert self.resolved
        return self.resolved


def launch_of(request: Request, subjects: Collection[checks.Subject] = checks.HERE) -> State:
    """Return the state before the first stage of the script that is launched; raises Problems."""
    from neoxargs.runs.fingerprints import git_hash

    return State(find_script(request.script), request, os.environ, subjects, commit=git_hash())


# -- the stages: each returns what it was given, with what it adds; all raise Problems ---------------------------------


def resolve(state: State) -> State:
    """Resolve the configuration and find the hosts; a job that Slurm has queued again continues what it has saved."""
    try:
        spec = resolve_run(state.request, state.environ)
    except Unresolved as stop:
        raise _with_further(stop, state) from None
    if state.script.program == "train" and requeues(state.environ):
        from neoxargs.launch.start.restarts import requeued

        spec = replace(spec, config=requeued(spec.config, state.environ))
    return replace(state, resolved=spec)


def _with_further(stop: Unresolved, state: State) -> Incomplete:
    """Return the errors of the configuration, together with what checks find in the values that they do not affect."""
    from neoxargs.runs.unaffected import unaffected

    spec, config = unaffected(stop, state.environ, state.request.gpus)
    problems, keys = list(stop.problems), {"values": stop.partial.skipped(config)}
    for kind, subjects in checks.KINDS.items():
        chosen = [subject for subject in subjects if subject in state.subjects]
        problems += checks.problems(spec, state.script.program, chosen, lenient=state.lenient)
        keys[kind] = keys.get(kind, frozenset()) | config.take_missed()
    written = stop.partial.given | stop.partial.draft.broken
    affected = {kind: of_kind & written or of_kind for kind, of_kind in keys.items() if of_kind}
    return Incomplete(problems, affected, stop.partial.draft.files)


def unchanged(state: State) -> State:
    """Do nothing, in place of a stage that a command leaves out."""
    return state


def make_command(state: State) -> State:
    """Add the values that only a launch sets, and make the command that starts the ranks, if it is checked."""
    resources, path = state.spec.resources, state.script.path
    config = with_text(preparation.with_launch(state.spec.config, path, state.spec.texts, state.commit))
    made = command(config, resources, path, state.environ) if "command" in state.subjects else None
    return replace(state, resolved=replace(state.spec, config=config), command=made)


def find_problems(state: State) -> State:
    """Find what the script lacks on this machine and what it does not support."""
    words = state.command.words if state.command else ()
    found = checks.problems(state.spec, state.script.program, state.subjects, words, state.lenient)
    return replace(state, problems=tuple(found))


def refuse(state: State) -> State:
    """Refuse the run if an error was found; print warnings."""
    if has_errors(state.problems):
        raise Problems([*state.problems, *state.spec.warnings])
    report(not_suppressed(state.problems, state.spec.texts))
    return state


def ask_hosts(state: State) -> State:
    """Check the other hosts, last, because that takes seconds."""
    if problems := checks.problems(state.spec, state.script.program, ["hosts"]):
        raise Problems(problems)
    return state


def lock_folders(state: State) -> State:
    """Lock the folders of the run; refuse it if another run holds them."""
    from neoxargs.processes.run_lock import lock_run, new_launch

    if state.script.program in READERS:
        return state
    assert state.held
    lock = lock_run(state.spec.config, state.environ, say, state.request.break_lock, new_launch())
    return replace(state, lock=state.held.enter_context(lock))


def announce(state: State) -> State:
    """Print a summary of the run, in one line for generate.py and eval.py."""
    from neoxargs.runs.summary import print_summary, ranks

    spec, warnings = state.spec, state.spec.warnings
    if state.script.program in READERS:
        warnings = [warning for warning in warnings if warning.id in OF_A_TRAINED_MODEL]
        reads, options = {"generate": "sampling from", "eval": "evaluating"}, spec.config.checkpoint
        count = ranks(spec.config, spec.resources)
        say(f"{reads[state.script.program]} {options.load or options.save}; ranks: {count}")
    else:
        print_summary(spec)
    report(not_suppressed(warnings, spec.texts))
    return state


def prepare(state: State) -> State:
    """Record the run, tokenise and compile once, before all ranks wait for it."""
    assert state.command
    spec, environ = state.spec, state.command.environ(state.environ)
    with preparation.disk_errors_are_problems(spec.config):
        return replace(state, code=preparation.prepare(state.script, spec, environ, say))


def start(state: State) -> State:
    """Start the ranks and wait for them, unless the preparation failed."""
    from neoxargs.launch.start.restarts import start_ranks

    if state.code:
        return state
    with preparation.disk_errors_are_problems(state.spec.config):
        return replace(state, code=start_ranks(state.script.path, state.spec, say, state.lock))


Name = Literal[
    "resolve", "memory", "command", "problems", "refuse", "hosts", "lock", "announce", "prepare", "start"
]  # fmt: skip
Stage = Callable[[State], State]
STAGES: Mapping[Name, Stage] = {
    "resolve": resolve,
    "memory": unchanged,  # cli.py puts plan's gate here: launch and plan do not import each other
    "command": make_command,
    "problems": find_problems,
    "refuse": refuse,
    "hosts": ask_hosts,
    "lock": lock_folders,
    "announce": announce,
    "prepare": prepare,
    "start": start,
}


def run_until(last: Name, state: State, others: Mapping[Name, Stage] = {}) -> State:
    """Run the stages up to the last one, and return what they found; raises Problems.

    others: stages that replace those of the same name.
    """
    for name, stage in STAGES.items():
        state = others.get(name, stage)(state)
        if name == last:
            break
    return state


def say(text: str) -> None:
    """Print a line about the run, marked to distinguish it from the output of the ranks."""
    print(f"deepy: {text}", file=sys.stderr, flush=True)
