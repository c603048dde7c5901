"""Restart all ranks from the last complete checkpoint after a rank has failed (`restarts`).

A run that ends on request, or because a rank reported a problem with it, is not restarted. Slurm restarts a job by
requeueing it (launch/output/sbatch.py), which starts another deepy.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from neoxargs.base.record import replace
from neoxargs.checks.checkpoint.model import loaded_checkpoint
from neoxargs.config.config import Config
from neoxargs.config.value import Source
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.hosts.rendezvous import free_port, rendezvous_port
from neoxargs.hosts.slurm import job, requeues
from neoxargs.launch.command.command import command
from neoxargs.launch.start import lost_ranks
from neoxargs.launch.start.run import AFTER_LAUNCHER_ENDED, Ended, start
from neoxargs.processes import failures, shared_buffers
from neoxargs.processes.run_lock import RunLock, run_of
from neoxargs.processes.supervisor import AFTER_LAUNCHER_KILLED
from neoxargs.runs.run_spec import RunSpec

#: Seconds before the first restart; each further one without a new checkpoint waits twice as long, up to the longest.
FIRST_WAIT = 1.0
LONGEST_WAIT = 300.0
CONTINUED = Source("derived", text="continued from the run's own checkpoint after a rank failed")

#: Says whether a checkpoint in `save` is one of this run.
Own = Callable[[Path], bool]


def start_ranks(script: str, spec: RunSpec, say: Callable[[str], None], lock: RunLock | None = None) -> int:
    """Start the ranks, wait for them, restart them if one fails, and return the exit code of the last attempt."""
    launch = lock.holder.launch if lock else ""
    own, restarts, fruitless, reached = of_launch(spec.config, launch), spec.config.runner_extras.restarts, 0, None
    for number in range(restarts + 1):
        config = continued(spec.config, own)
        ended = _attempt(script, replace(spec, config=config), say, launch, lock)
        newest, is_last = own_checkpoint(spec.config, own), not ended.may_restart or number == restarts
        failed = ended.may_restart and is_last and newest
        if (ended.asked or failed) and lock:  # generate.py and eval.py, which save nothing, run without a lock
            say(after_stop(spec.config, own))
        if is_last:
            return ended.code
        fruitless = 0 if newest != reached else fruitless + 1
        reached, wait = newest, wait_before(fruitless)
        say(f"restart {number + 1} of {restarts} in {wait:.0f} s, {_starting_point(spec.config, newest)}")
        time.sleep(wait)
    raise AssertionError("unreachable: the last attempt returns")


def _attempt(script: str, spec: RunSpec, say: Callable[[str], None], launch: str, lock: RunLock | None) -> Ended:
    config, resources = spec.config, spec.resources
    for earlier in failures.logs_folder(config, "").glob("*"):  # those of a deepy that was killed
        lost_ranks.tidy(earlier)
    attempt = failures.new_attempt(config)
    logs = failures.logs_folder(config, attempt)
    # choose the port last: tokenising may have taken hours, and another run may use it meanwhile
    port = free_port(config, resources)
    launched = command(config, resources, script, os.environ, port, attempt, launch, spec.planned)
    ended = start(launched, os.environ, say, resources.remote, logs=logs, lock=lock)
    shared_buffers.remove(port or rendezvous_port(config, resources))
    if ended.may_restart and resources.remote:  # ranks that lost their launcher save before they end
        lost_ranks.wait_for_ranks(logs, AFTER_LAUNCHER_KILLED + AFTER_LAUNCHER_ENDED)
    return ended


def wait_before(fruitless: int) -> float:
    """Return the seconds before a restart. fruitless: restarts so far since the last new checkpoint."""
    return float(min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(fruitless, 30)))


def _starting_point(config: Config, own: Path | None) -> str:
    if own:
        return f"from {own}"
    options = config.checkpoint
    loaded = loaded_checkpoint(config)
    reason = "save is not set"
    if options.save:
        reason = f"{'this run has saved no checkpoint' if loaded else 'no checkpoint has been saved'} yet"
    return f"{f'from {options.load} again, at {loaded.name}' if loaded else 'from the beginning'}: {reason}"


# -- what a restarted run continues from -----------------------------------------------------------------------------


def continued(config: Config, own: Own) -> Config:
    """Return the configuration that continues from the run's own newest checkpoint, if it has one."""
    return config.with_values(_continuation(config), CONTINUED) if own_checkpoint(config, own) else config


def _continuation(config: Config) -> dict[str, object]:
    """Return the values to change so that a run continues from the newest checkpoint that it has saved."""
    # These parameters describe the first start, which may have been from another run's checkpoint.
    values = {"load": config.checkpoint.save, "iteration": None, "finetune": False, "no_load_rng": False}
    # Without saved optimizer state, every continuation has to do without it.
    if not config.checkpoint.no_save_optim:
        values["no_load_optim"] = False
    return {name: value for name, value in values.items() if config.get(name) != value}


def after_stop(config: Config, own: Own) -> str:
    """Return the line about a run that was told to end: how to continue it, or that nothing has been saved."""
    newest = own_checkpoint(config, own)
    if not newest:
        return f"no checkpoint was written{'' if config.checkpoint.save else ', because save is not set'}"
    texts = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in _continuation(config).items()
    }
    changes = " ".join(f"--set {shlex.quote(f'{name}={text}')}" for name, text in texts.items())
    how = f"add {changes} to the command" if changes else "run the same command again"
    return f"the newest checkpoint is {newest}; to continue from it, {how}"


def own_checkpoint(config: Config, own: Own) -> Path | None:
    """Return the newest complete checkpoint in `save`, None if it is not one of the run."""
    save = config.checkpoint.save
    newest = checkpoint_folder.newest(Path(save)) if save else None
    return newest if newest and own(newest) else None


def requeued(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the configuration of a job that Slurm has queued again: it continues what the job has saved so far."""
    return continued(config, _of_job(environ)) if requeues(environ) else config


def continues_job(config: Config, environ: Mapping[str, str]) -> bool:
    """Return whether this is a later start of a job that has saved checkpoints, whose first start wrote its record."""
    return bool(requeues(environ) and own_checkpoint(config, _of_job(environ)))


def of_launch(config: Config, launch: str) -> Own:
    """Return whether a checkpoint is one of this launch, or of a script that records no run and one that is new."""
    run, save = run_of(launch), config.checkpoint.save
    # By the inode too, because a script may write a checkpoint of the same iteration again.
    before = {(path.name, path.stat().st_ino) for path in (checkpoint_folder.checkpoints(Path(save)) if save else ())}

    def is_own(path: Path) -> bool:
        by = checkpoint_folder.written_by(path).run
        return by == run if by else (path.name, path.stat().st_ino) not in before

    return is_own


def _of_job(environ: Mapping[str, str]) -> Own:
    """Return whether a checkpoint is one of this Slurm job."""
    this = job(environ)
    return lambda path: bool(this) and checkpoint_folder.written_by(path).job == this
