"""On which machines and devices a run lands: the hostfile, what `include`, `num_gpus` … leave of it, or this machine.

The arithmetic and the launch read the same answer: `Resources.selection` is what DeepSpeed's runner is told, so it
cannot start other ranks than the batch size was computed for. Where DeepSpeed 0.19.6 means something else than its
documentation (`include: worker-0` without slots selects nothing), the documented meaning is written out for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from neoxargs.launch.cluster import rank_env
from neoxargs.launch.cluster.devices import Device, device, installed_devices, local_devices, visible_devices
from neoxargs.launch.cluster.filters import Filters, refusal, warning
from neoxargs.launch.cluster.hostfile import Hosts, Where, nowhere, read_hostfile, select
from neoxargs.problems import Place, Problem, listed

if TYPE_CHECKING:
    from neoxargs.registry.runner import Runner

#: Where DeepSpeed's runner looks for a hostfile when nobody names one.
DEFAULT_HOSTFILE = "/job/hostfile"
#: Launchers that start one rank on every slot of the hostfile, whatever else they are told.
MPI = ("openmpi", "mpich", "impi", "mvapich")
EVERY_SLOT = (*MPI, "slurm", "srun")
#: Those that start equally many on each host.
EVEN_SLOTS = ("mpich", "impi", "mvapich")
#: The runner's flags that `Resources.selection` replaces.
SELECTING = ("hostfile", "include", "exclude", "num_nodes", "num_gpus")


@dataclass(frozen=True)
class Resources:
    """The devices of a run, in rank order."""

    hosts: Hosts
    device: Device
    selection: dict[str, str] = field(default_factory=dict)
    """The runner's flags that select exactly these hosts and devices."""
    remote: bool = False
    """Do the ranks run on machines that the runner reaches over the network?"""
    warnings: tuple[Problem, ...] = ()
    anywhere: bool = False
    """Are the hosts only numbers, because a job system chooses them?"""
    overrides: tuple[str, ...] = ()
    """What the environment said otherwise than the configuration, for the summary."""

    @property
    def gpus(self) -> int:
        """How many ranks run."""
        return sum(map(len, self.hosts.values()))


def pretended(gpus: int) -> Resources:
    """What a run on a machine with this many GPUs would get (`--gpus N`)."""
    return Resources({"localhost": list(range(gpus))}, "cuda", {"num_gpus": str(gpus)})


def resources(
    runner: Runner,
    layout: int,
    environ: Mapping[str, str],
    where: Where = nowhere,
    dev: Path = Path("/dev"),
) -> Resources:
    """Where a run with these launcher parameters lands; raises Problems.

    layout: how many ranks one copy of the model takes (tensor x pipeline parallel); a machine without GPUs runs that
    many processes unless told otherwise. where: the place a parameter was written at, for the problems.
    """
    found = _resources(runner, layout, environ, where, dev)
    told = {name: environ[name] for name in ("DLTS_HOSTFILE", "MASTER_ADDR", "MASTER_PORT") if environ.get(name)}
    if not found.remote:
        told.pop("MASTER_ADDR", None)  # DeepSpeed's runner takes 127.0.0.1
    port = {"master_port": told["MASTER_PORT"]} if "MASTER_PORT" in told else {}
    overrides = tuple(f"{name} {value}  (environment)" for name, value in told.items())
    return replace(found, selection={**found.selection, **port}, overrides=overrides)


def _resources(runner: Runner, layout: int, environ: Mapping[str, str], where: Where, dev: Path) -> Resources:
    filters = Filters.of(runner, where)
    path = environ.get("DLTS_HOSTFILE") or runner.hostfile or DEFAULT_HOSTFILE
    pool = read_hostfile(path)
    idle = [host for host, slots in (pool or {}).items() if not slots]
    if idle:
        raise refusal(f"the hostfile {path} gives {listed(idle, 'and')} no slots", hint="leave them out of it")
    if runner.launcher == "srun":
        return _through_srun(pool, filters, path, runner, environ)
    if pool is None:
        found = _on_this_machine(filters, layout, environ, dev)
        return found if path in (DEFAULT_HOSTFILE, "None") else _without_hostfile(found, path, where("hostfile"))
    here = len(pool) == 1 and next(iter(pool)) in own_names()
    if here and runner.force_multi and not runner.no_ssh and runner.launcher in EVERY_SLOT:
        # mpirun starts local ranks as its children, and srun's are slurmd's
        found = _on_hosts(pool, filters, path, runner, environ)
        return replace(found, device=device(environ, dev), remote=runner.launcher not in MPI)
    if here and device(environ, dev) == "cpu":
        # the runner would first try `ssh localhost`, which a machine without GPUs rarely answers
        return _processes_here(filters, next(iter(pool.values())), {"hostfile": os.devnull})
    return _on_hosts(pool, filters, path, runner, environ)


def _on_hosts(
    pool: Mapping[str, int], filters: Filters, path: str, runner: Runner, environ: Mapping[str, str]
) -> Resources:
    hosts = select(pool, filters.include, filters.exclude, filters.where)
    warnings = [*filters.warnings, *_beyond(hosts, pool, path, filters)]
    selection = {"hostfile": path}
    if filters.include or filters.exclude:
        selection["include"] = _spelled(hosts)
    if filters.num_nodes > 0:
        selection["num_nodes"] = str(filters.num_nodes)
        if filters.num_nodes > len(hosts):
            what = f"num_nodes is {filters.num_nodes}, but {path} lists {len(hosts)} hosts; all are used"
            warnings.append(warning(what, filters.where("num_nodes")))
        hosts = dict(islice(hosts.items(), filters.num_nodes))
    if filters.num_gpus > 0:
        selection["num_gpus"] = str(filters.num_gpus)
        fewer = [host for host in hosts if pool[host] < filters.num_gpus]
        if fewer:
            what = f"num_gpus is {filters.num_gpus}, but {path} gives {listed(fewer, 'and')} fewer slots"
            warnings.append(warning(f"{what}; so many are used all the same", filters.where("num_gpus")))
        hosts = {host: list(range(filters.num_gpus)) for host in hosts}
    remote = (len(hosts) > 1 or runner.force_multi or runner.launcher in ("ssh", "srun")) and not runner.no_ssh
    if remote and runner.launcher in EVERY_SLOT:
        hosts = _every_slot(pool, runner.launcher, selection, filters)
    if environ.get("MASTER_ADDR"):
        selection["master_addr"] = environ["MASTER_ADDR"]
    only = next(iter(hosts))
    if len(hosts) == 1 and not remote and not runner.no_ssh and only not in own_names():
        what = f"{only} is the only host, and DeepSpeed starts the ranks of a single one on this machine"
        warnings.append(replace(warning(what, filters.where("hostfile")), hint=f"force_multi: true goes to {only}"))
    return Resources(hosts, _hosts_device(environ), selection, len(hosts) > 1 or remote, tuple(warnings))


def _beyond(hosts: Hosts, pool: Mapping[str, int], path: str, filters: Filters) -> Iterator[Problem]:
    """DeepSpeed takes `include` at its word: a host that lends 8 slots may have a GPU 12."""
    for host, slots in hosts.items() if filters.include else ():
        if slots[-1] >= pool[host]:
            what = f"include names slot {slots[-1]} of {host}, and {path} gives it slots 0 to {pool[host] - 1}"
            yield warning(f"{what}; it is used all the same", filters.where("include"))


def _through_srun(
    pool: Mapping[str, int] | None, filters: Filters, path: str, runner: Runner, environ: Mapping[str, str]
) -> Resources:
    """On the hostfile's machines, on the nodes of the job that this shell is in, or on as many as are asked for."""
    if pool is not None:
        return replace(_on_hosts(pool, filters, path, runner, environ), remote=True)
    allocated = rank_env.nodes(environ.get("SLURM_JOB_NODELIST", ""))
    count = filters.num_nodes if filters.num_nodes > 0 else len(allocated)
    if allocated and count > len(allocated):
        what = f"num_nodes is {count}, and the job has {len(allocated)} nodes"
        raise refusal(what, filters.where("num_nodes"), "leave num_nodes out, or submit a larger job")
    each = filters.num_gpus if filters.num_gpus > 0 else _slots_of_job(environ)
    if not count or not each:
        missing = " and ".join([*(["num_nodes"] if not count else []), *(["num_gpus"] if not each else [])])
        what = f"launcher srun has no hostfile and is in no job that says {missing}"
        raise refusal(what, filters.where("launcher"), f"write {missing}, or name a hostfile")
    if filters.include or filters.exclude:
        raise refusal("include and exclude need a hostfile", filters.where("include") or filters.where("exclude"))
    names = allocated[:count] or [f"node {number}" for number in range(count)]
    hosts = {name: list(range(each)) for name in names}
    told = {"master_addr": environ["MASTER_ADDR"]} if environ.get("MASTER_ADDR") else {}
    return Resources(hosts, _hosts_device(environ), told, remote=True, anywhere=True, warnings=filters.warnings)


def _slots_of_job(environ: Mapping[str, str]) -> int:
    """How many ranks a node of the job takes: `SLURM_GPUS_PER_NODE=a100:8` is 8."""
    for name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE"):
        number = environ.get(name, "").rpartition(":")[2]
        if number.isdigit():
            return int(number)
    return 0


def _every_slot(pool: Mapping[str, int], launcher: str, selection: dict[str, str], filters: Filters) -> Hosts:
    if len(selection) > 1:
        key = "exclude" if filters.exclude else list(selection)[1]
        what = f"launcher {launcher} starts a rank on every slot of the hostfile; {key} cannot limit it"
        raise refusal(what, filters.where(key), "list only the wanted hosts and slots in the hostfile")
    if launcher in EVEN_SLOTS and len(set(pool.values())) > 1:
        what = f"launcher {launcher} needs the same number of slots on every host of the hostfile"
        raise refusal(what, filters.where("launcher"))
    return {host: list(range(slots)) for host, slots in pool.items()}


def _on_this_machine(filters: Filters, layout: int, environ: Mapping[str, str], dev: Path) -> Resources:
    if filters.num_nodes > 1:
        what = f"num_nodes is {filters.num_nodes}, but no hostfile lists other machines than this one"
        raise refusal(what, filters.where("num_nodes"), "name one: hostfile: /path/to/hostfile")
    if device(environ, dev) == "cpu":
        return _processes_here(filters, layout)
    present = installed_devices(dev)
    visible = None if filters.any else visible_devices(environ)
    if visible is not None and present:
        return _visible_devices(local_devices(environ, dev))
    warnings = list(filters.warnings)
    count = filters.num_gpus
    if count <= 0:
        hosts = select({"localhost": present or layout}, filters.include, filters.exclude, filters.where)
        return Resources(hosts, "cuda", {"include": _spelled(hosts)}, warnings=filters.warnings)
    if 0 < present < count:
        what = f"num_gpus is {count}, but this machine has {present}"
        warnings.append(warning(what, filters.where("num_gpus")))
    return Resources({"localhost": list(range(count))}, "cuda", {"num_gpus": str(count)}, warnings=tuple(warnings))


def _processes_here(filters: Filters, slots: int, selection: Mapping[str, str] = MappingProxyType({})) -> Resources:
    """Without GPUs a rank is a process on this machine, and its number is all the runner needs to know."""
    count = filters.num_gpus
    if count <= 0:
        hosts = select({"localhost": slots}, filters.include, filters.exclude, filters.where)
        count = sum(map(len, hosts.values()))
    hosts = {"localhost": list(range(count))}
    return Resources(hosts, "cpu", {**selection, "num_gpus": str(count)}, warnings=filters.warnings)


def _visible_devices(devices: list[int] | list[str]) -> Resources:
    numbers = [number for number in devices if isinstance(number, int)]
    if len(numbers) < len(devices):
        what = "CUDA_VISIBLE_DEVICES names devices that are no numbers, which DeepSpeed's launcher cannot read"
        raise refusal(what, hint="write their numbers (nvidia-smi -L), or use include")
    hosts = {"localhost": numbers}
    return Resources(hosts, "cuda", {"include": _spelled(hosts)})


def _without_hostfile(found: Resources, path: str, where: Place | None) -> Resources:
    one, several = ("GPU", "GPUs") if found.device == "cuda" else ("process on its CPU", "processes on its CPU")
    used = f"{found.gpus} {one if found.gpus == 1 else several}"
    missing = warning(f"there is no hostfile {path}; only this machine is used: {used}", where)
    return replace(found, warnings=(missing, *found.warnings))


def _hosts_device(environ: Mapping[str, str]) -> Device:
    return "cpu" if environ.get("DS_ACCELERATOR") == "cpu" else "cuda"


def own_names() -> tuple[str, ...]:
    """What this machine is called."""
    return ("localhost", "127.0.0.1", os.uname().nodename)


def _spelled(hosts: Hosts) -> str:
    return "@".join(f"{host}:{','.join(map(str, slots))}" for host, slots in hosts.items())
