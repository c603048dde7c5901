"""`--check-hosts`: check that every host answers over ssh and has the GPUs, Python, packages and files of the run.

All hosts are queried in parallel. Every start over ssh runs the first two checks (`host_problems`).
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
from typing import Any, NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import replace
from neoxargs.base.shipped import IMPORT_ROOT
from neoxargs.base.text import aligned
from neoxargs.config.config import Config
from neoxargs.files.token_files.sources import named_token_files
from neoxargs.hosts.hosts import Resources, own_names
from neoxargs.hosts.launchers import launcher_named
from neoxargs.runs.run_spec import RunSpec

#: Seconds until ssh must have connected; a reachable host takes about one.
CONNECT_TIMEOUT = 5
#: Seconds for starting Python on a host and reading the versions of packages.
PROBE_TIMEOUT = 60
#: Distributions whose versions must be the same on all hosts.
PACKAGES = ("torch", "deepspeed", "megatron-core", "neoxargs")
#: The package that has no version if hosts run a checkout, whose path is checked.
CHECKOUT = "neoxargs"
#: Runs on each host, under the Python that would run the ranks, and prints one line of JSON.
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
    """What the probe found on a host, or the problem that kept it from running."""

    found: Mapping[str, Any]
    problem: Problem | None = None


def host_problems(config: Config, resources: Resources) -> list[Problem]:
    """Return a problem for each host that ssh cannot reach or that has fewer GPUs than the hostfile lists.

    Without this check the launchers would wait for such a host, or start only some of the ranks.
    """
    launcher, hosts = launcher_named(config.runner.launcher), list(resources.hosts)
    if launcher.mpirun:  # inside a Slurm job it starts remote ranks through Slurm, and it starts local ranks itself
        hosts = [] if "SLURM_JOB_ID" in os.environ else [host for host in hosts if host not in own_names()]
    if not hosts or not resources.remote or not launcher.by_ssh or config.runner.no_ssh_check:
        return []
    # Later than ssh's own limit, because ssh's message says more than a timeout.
    results = _run_on_hosts(hosts, config.runner.ssh_port, "ls /dev", CONNECT_TIMEOUT + 5)
    hint = "set up passwordless ssh, or set no_ssh_check: true to skip this check"
    problems = [replace(problem, hint=hint) for host, done in results.items() if (problem := _unreachable(host, done))]
    for host, done in results.items():
        present = len(re.findall(r"(?m)^nvidia\d+$", done.stdout)) if done else 0
        if present:  # 0 proves nothing: not every driver creates files /dev/nvidiaN
            problems += _too_few_gpus(config, resources, host, present)
    return problems


def check_hosts(spec: RunSpec) -> tuple[str, list[Problem]]:
    """Return a table of what every host has, and the problems; raises Problems when the hosts are not known."""
    config, resources = spec.config, spec.resources
    if resources.scheduler_picks_hosts:
        what = f"launcher {config.runner.launcher}: the hosts cannot be checked, because the job scheduler has not "
        what += "chosen them yet"
        hint = "set hostfile to check the hosts listed in that file"
        raise Problems([Problem(what, config.place("launcher"), hint, id="hosts-not-known", about=("launcher",))])
    paths = [str(IMPORT_ROOT), *_files(config)]
    probe = [sys.executable, "-c", PROBE, json.dumps([PACKAGES, paths])]
    remote_probe = f"cd {shlex.quote(os.getcwd())} && {shlex.join(probe)}"
    local = json.loads(subprocess.run(probe, capture_output=True, text=True, check=True).stdout)
    if resources.remote:
        results = _run_on_hosts(list(resources.hosts), config.runner.ssh_port, remote_probe, PROBE_TIMEOUT)
        answers = {host: _answer(host, done) for host, done in results.items()}
    else:
        answers = dict.fromkeys(resources.hosts, Answer(local))
    problems = [problem for host in answers for problem in _differences(host, answers[host], local, spec)]
    return _table(answers, resources), problems


def _run_on_hosts(hosts: Sequence[str], port: int | None, command: str, timeout: float) -> dict[str, Any]:
    """Return host -> the completed ssh process, None where it timed out."""
    # BatchMode: fail instead of asking for a password.
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT}", *(["-p", str(port)] if port else [])]

    def run_on(host: str) -> subprocess.CompletedProcess[str] | None:
        line = ["ssh", *options, "--", host, command]
        try:
            # Without stdin, or ssh would read this terminal's input.
            return subprocess.run(
                line, capture_output=True, text=True, errors="replace", timeout=timeout, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            return None
        except FileNotFoundError:
            return subprocess.CompletedProcess(line, 255, "", "ssh is not installed on this machine")

    with ThreadPoolExecutor(min(64, len(hosts))) as pool:
        return dict(zip(hosts, pool.map(run_on, hosts), strict=True))


def _unreachable(host: str, done: subprocess.CompletedProcess[str] | None) -> Problem | None:
    stderr = done.stderr.strip().splitlines() if done else []
    if done is None or (done.returncode == 255 and re.search("timed out", " ".join(stderr), re.IGNORECASE)):
        return Problem(f"host {host} does not answer over ssh within {CONNECT_TIMEOUT} s", id="host-not-reached")
    # ssh's own exit code for a failed connection; others come from the command.
    if done.returncode == 255:
        reason = (stderr or ["ssh failed without an error message"])[-1]
        return Problem(f"host {host} does not answer over ssh: {reason}", id="host-not-reached")
    return None


def _answer(host: str, done: subprocess.CompletedProcess[str] | None) -> Answer:
    if problem := _unreachable(host, done):
        return Answer({}, problem)
    assert done is not None
    try:
        # The last line, because start files of the remote shell may print something before it.
        return Answer(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        what = f"host {host} cannot run {sys.executable} in {os.getcwd()}: {reason}"
        hint = "install the same Python at the same path on every host, or set venv_script to activate an environment"
        return Answer({}, Problem(what, hint=hint, id="host-without-python", about=("venv_script",)))


def _differences(host: str, answer: Answer, local: Mapping[str, Any], spec: RunSpec) -> Iterator[Problem]:
    if answer.problem:
        yield answer.problem
        return
    found = answer.found
    yield from _too_few_gpus(spec.config, spec.resources, host, found["gpus"])
    if found["python"] != local["python"]:
        what = f"host {host} has Python {found['python']}, but this machine has {local['python']}"
        yield Problem(what, hint="install the same Python version on every host", id="host-other-python")
    for name, version in local["packages"].items():
        remote = found["packages"].get(name)
        has = f"host {host} has {f'{name} {remote}' if remote else f'no {name}'}"
        if remote != version:
            hint = f"install the same version of {name} on every host"
            yield Problem(f"{has}, but this machine has {version or 'none'}", hint=hint, id="host-other-package")
        elif remote is None and name != CHECKOUT:
            yield Problem(f"{has}, which training needs", hint=f"install {name} on every host", id="host-other-package")
    for path in found["absent"]:
        hint = "make the same files available at the same paths on every host"
        yield Problem(f"host {host} has no file or folder {path}", hint=hint, id="host-without-file")


def what_was_checked(spec: RunSpec) -> str:
    """Return a sentence for a check that found no problem."""
    if not spec.resources.remote:
        return "only this machine was checked, because the run uses no other host"
    files = len(_files(spec.config))
    data = "; no data file was checked: none is on this machine"
    data = f" and its {files} data and tokenizer files" if files else data
    return f"all {len(spec.resources.hosts)} hosts have this machine's Python, packages and repository{data}"


def _too_few_gpus(config: Config, resources: Resources, host: str, gpus: int) -> Iterator[Problem]:
    last = max(resources.hosts[host])
    if resources.device == "cuda" and last >= gpus:
        has = f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'}"
        what = f"host {host} has {has}, but the run uses its slot {last} (slots are counted from 0)"
        hint = "correct the number of slots in the hostfile"
        yield Problem(what, config.place("hostfile"), hint, id="host-with-fewer-gpus", about=("hostfile",))


def _files(config: Config) -> list[str]:
    """Return the data and tokenizer files that every rank opens and that exist on this machine."""
    indexes = [f"{prefix}.idx" for _, prefix in named_token_files(config.get)]
    paths = [*indexes, config.tokenizer.vocab_file, config.tokenizer.merge_file]
    return [os.path.abspath(path) for path in paths if path and os.path.exists(path)]


def _table(answers: Mapping[str, Answer], resources: Resources) -> str:
    rows = [("host", "slots", "GPUs", "Python", *PACKAGES)]
    for host, (found, problem) in answers.items():
        packages = found.get("packages", {})
        machine = ("-", "-") if problem else (str(found["gpus"]), found["python"])
        cells = (*machine, *(packages.get(name) or "-" for name in PACKAGES))
        rows.append((host, str(len(resources.hosts[host])), *cells))
    return "\n".join(aligned(rows))
