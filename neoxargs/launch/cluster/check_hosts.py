"""`--check-hosts`: does every machine answer to ssh, has it the GPUs, the Python, the packages and the files?

All are asked at once. `unready` asks only the first two questions, as every start over ssh does.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from neoxargs.launch.cluster import slurm
from neoxargs.launch.cluster.hosts import Resources, own_names
from neoxargs.launch.launchers import launcher_named
from neoxargs.launch.preflight.data_files import TOKEN_FILES
from neoxargs.launch.run_spec import RunSpec
from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.data import listed
from neoxargs.shipped import IMPORT_ROOT

#: Seconds; a machine that is there answers in one.
TIMEOUT = 5
#: Starting Python there and reading versions.
SLOW = 60
#: What must be the same everywhere, by the names of the distributions.
PACKAGES = ("torch", "deepspeed", "megatron-core", "neoxargs")
#: Says in one line of JSON what a machine has; runs there, under the Python that would run the ranks.
PROBE = """
import glob, importlib.metadata as metadata, json, os, platform, re, sys
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
packages, paths = json.loads(sys.argv[1])
sys.path.append(os.getcwd())
gpus = [path for path in glob.glob("/dev/nvidia*") if re.search("nvidia[0-9]+$", path)]
print(json.dumps({
    "python": platform.python_version(), "gpus": len(gpus),
    "packages": {name: version(name) for name in packages}, "absent": [p for p in paths if not os.path.exists(p)],
}))
"""


class Answer(NamedTuple):
    """What a machine has, or why it said nothing useful."""

    has: Mapping[str, Any]
    problem: Problem | None = None


def unready(config: Config, resources: Resources) -> list[Problem]:
    """A sentence for each machine that ssh does not reach or that has fewer GPUs than the hostfile promises.

    The launchers would wait for it, or start what they can.
    """
    launcher, hosts = launcher_named(config.runner.launcher), list(resources.hosts)
    if launcher.mpirun:  # it asks Slurm where it can, and starts what is here itself
        hosts = [] if slurm.in_job(os.environ) else [host for host in hosts if host not in own_names()]
    if not hosts or not resources.remote or not launcher.by_ssh or config.runner.no_ssh_check:
        return []
    answers = _ask(hosts, config.runner.ssh_port, "ls /dev", TIMEOUT + 5)
    hint = "ssh must work without a password; no_ssh_check: true skips this question"
    wrong = [replace(problem, hint=hint) for host, done in answers.items() if (problem := _not_reached(host, done))]
    for host, done in answers.items():
        present = len(re.findall(r"(?m)^nvidia\d+$", done.stdout)) if done else 0
        if present:  # drivers that show no devices there are not spoken of
            wrong += _too_few(config, resources, host, present)
    return wrong


def report(spec: RunSpec) -> tuple[str, list[Problem]]:
    """The table, and what is wrong."""
    config, resources = spec.config, spec.resources
    if resources.scheduler_picks_hosts:
        what = f"launcher {config.runner.launcher}: which machines there will be is the job system's choice"
        hint = "name them in a hostfile to have them asked"
        raise Problems([Problem(what, config.place("launcher"), hint, id="hosts-not-known", about=("launcher",))])
    paths = [str(IMPORT_ROOT), *_files(config)]
    probe = [sys.executable, "-c", PROBE, json.dumps([PACKAGES, paths])]
    there = f"cd {shlex.quote(os.getcwd())} && {shlex.join(probe)}"
    here = json.loads(subprocess.run(probe, capture_output=True, text=True, check=True).stdout)
    if resources.remote:
        done = _ask(list(resources.hosts), config.runner.ssh_port, there, SLOW)
        answers = {host: _answer(host, answer) for host, answer in done.items()}
    else:
        answers = dict.fromkeys(resources.hosts, Answer(here))
    problems = [problem for host in answers for problem in _wrong(host, answers[host], here, spec)]
    return _table(answers, resources), problems


def _ask(hosts: Sequence[str], port: int | None, command: str, timeout: float) -> dict[str, Any]:
    words = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={TIMEOUT}", *(["-p", str(port)] if port else [])]

    def ask(host: str) -> subprocess.CompletedProcess[str] | None:
        line = [*words, host, command]
        try:
            return subprocess.run(
                line, capture_output=True, text=True, errors="replace", timeout=timeout, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            return None
        except FileNotFoundError:
            return subprocess.CompletedProcess(line, 255, "", "there is no ssh on this machine")

    with ThreadPoolExecutor(min(64, len(hosts))) as pool:
        return dict(zip(hosts, pool.map(ask, hosts), strict=True))


def _not_reached(host: str, done: subprocess.CompletedProcess[str] | None) -> Problem | None:
    said = done.stderr.strip().splitlines() if done else []
    if done is None or (done.returncode == 255 and re.search("timed out", " ".join(said), re.IGNORECASE)):
        return Problem(f"host {host} does not answer to ssh within {TIMEOUT} s", id="host-not-reached")
    if done.returncode == 255:
        why = (said or ["it says nothing"])[-1]
        return Problem(f"host {host} does not answer to ssh: {why}", id="host-not-reached")
    return None


def _answer(host: str, done: subprocess.CompletedProcess[str] | None) -> Answer:
    if problem := _not_reached(host, done):
        return Answer({}, problem)
    assert done is not None
    try:
        return Answer(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        what = f"host {host} cannot run {sys.executable} in {os.getcwd()}: it says {said}"
        hint = "the same path must lead to the same Python everywhere; venv_script activates another environment"
        return Answer({}, Problem(what, hint=hint, id="host-without-python", about=("venv_script",)))


def _wrong(host: str, answer: Answer, here: Mapping[str, Any], spec: RunSpec) -> Iterator[Problem]:
    if answer.problem:
        yield answer.problem
        return
    has = answer.has
    yield from _too_few(spec.config, spec.resources, host, has["gpus"])
    if has["python"] != here["python"]:
        what = f"host {host} has Python {has['python']}, this machine {here['python']}"
        yield Problem(what, id="host-other-python")
    for name, version in here["packages"].items():
        there = has["packages"].get(name)
        if there != version:
            what = f"host {host} has {f'{name} {there}' if there else f'no {name}'}, this machine {version}"
            yield Problem(what, id="host-other-package")
    for path in has["absent"]:
        hint = "every host must see the same files under the same paths"
        yield Problem(f"host {host} has no {path}", hint=hint, id="host-without-file")


def _too_few(config: Config, resources: Resources, host: str, gpus: int) -> Iterator[Problem]:
    last = max(resources.hosts[host])
    if resources.device == "cuda" and last >= gpus:
        what = f"host {host} has {_count(gpus, 'GPU')}, and slot {last} is to be used"
        hint = "the hostfile says how many slots a host has"
        yield Problem(what, config.place("hostfile"), hint, id="host-with-fewer-gpus", about=("hostfile",))


def _files(config: Config) -> list[str]:
    """What every host opens."""
    prefixes = [prefix for name in ("data_path", *TOKEN_FILES) for prefix in listed(config.get(name))]
    found = [f"{prefix}.idx" for prefix in prefixes] + [config.tokenizer.vocab_file, config.tokenizer.merge_file]
    return [os.path.abspath(path) for path in found if path and os.path.exists(path)]


def _table(answers: Mapping[str, Answer], resources: Resources) -> str:
    rows = [("host", "slots", "GPUs", "Python", *PACKAGES)]
    for host, (has, problem) in answers.items():
        packages = has.get("packages", {})
        machine = ("-", "-") if problem else (str(has["gpus"]), has["python"])
        cells = (*machine, *(packages.get(name) or "-" for name in PACKAGES))
        rows.append((host, str(len(resources.hosts[host])), *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
