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

from neoxargs.launch.cluster import slurm
from neoxargs.launch.cluster.devices import Device, device, installed_devices, local_devices, visible_devices
from neoxargs.launch.cluster.hostfile import MOST_RANKS, Hosts, Where, nowhere, read_hostfile, select, too_many_ranks
from neoxargs.launch.launchers import Launcher, launcher_named
from neoxargs.problems import Problem, Problems, listed

if TYPE_CHECKING:
    from neoxargs.registry.runner import Runner

#: Where DeepSpeed's runner looks for a hostfile when nobody names one.
DEFAULT_HOSTFILE = "/job/hostfile"
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
    scheduler_picks_hosts: bool = False
    """Are the hosts only numbers or names of a job, because a scheduler chooses them?"""
    overrides: tuple[str, ...] = ()
    """What the environment said otherwise than the configuration, for the summary."""

    @property
    def gpus(self) -> int:
        """How many ranks run."""
        return sum(map(len, self.hosts.values()))


@dataclass(frozen=True)
class Filters:
    """What narrows the hosts down, once what contradicts itself is told."""

    include: str
    exclude: str
    num_nodes: int
    num_gpus: int
    where: Where
    warnings: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, runner: Runner, where: Where) -> Filters:
        include, exclude, num_nodes, num_gpus = runner.include, runner.exclude, runner.num_nodes, runner.num_gpus
        for name, count in (("num_nodes", num_nodes), ("num_gpus", num_gpus)):
            _refuse_too_many(count, where, name)
        if include and exclude:
            what, hint = "include and exclude cannot both be given", "keep one of them"
            raise _refusal("include-and-exclude", what, where, "exclude", "include", hint=hint)
        key = "include" if include else "exclude"
        if (include or exclude) and num_nodes >= 0:
            what = f"num_nodes ({num_nodes}) and {key} both choose hosts"
            hint = f"keep one of them; {key} names hosts and slots"
            raise _refusal("num-nodes-beside-filter", what, where, "num_nodes", key, hint=hint)
        warnings = []
        if (include or exclude) and num_gpus >= 0:
            what = f"num_gpus ({num_gpus}) has no effect beside {key}"
            warnings.append(_warning("num-gpus-beside-filter", what, where, "num_gpus", key))
            num_gpus = -1
        return cls(include, exclude, num_nodes, num_gpus, where, tuple(warnings))

    @property
    def any(self) -> bool:
        """Does the runner then pay no attention to CUDA_VISIBLE_DEVICES?"""
        return bool(self.include or self.exclude or self.num_gpus > 0)


def _warning(id: str, what: str, where: Where, *about: str, hint: str = "") -> Problem:
    """At the first of these parameters that was written."""
    place = next(filter(None, map(where, about)), None)
    return Problem(what, place, hint, severity="warning", id=id, about=about)


def _refusal(id: str, what: str, where: Where, *about: str, hint: str = "") -> Problems:
    return Problems([replace(_warning(id, what, where, *about, hint=hint), severity="error")])


def _refuse_too_many(ranks: int, where: Where, *about: str) -> None:
    if ranks > MOST_RANKS:
        raise Problems([too_many_ranks(next(filter(None, map(where, about)), None), *about)])


def pretended(gpus: int) -> Resources:
    """What a run on a machine with this many GPUs would get (`--gpus N`); raises Problems."""
    _refuse_too_many(gpus, nowhere)
    return Resources({"localhost": list(range(gpus))}, "cuda", {"num_gpus": str(gpus)})


def resources(
    runner: Runner,
    replica: int,
    environ: Mapping[str, str],
    where: Where = nowhere,
    dev: Path = Path("/dev"),
) -> Resources:
    """Where a run with these launcher parameters lands; raises Problems.

    replica: how many ranks one replica takes (tensor x pipeline parallel); a machine without GPUs runs that many
    processes by default. where: the place a parameter was written at, for the problems.
    """
    found = _resources(runner, replica, environ, where, dev)
    given = {name: environ[name] for name in ("DLTS_HOSTFILE", "MASTER_ADDR", "MASTER_PORT") if environ.get(name)}
    if not found.remote:
        given.pop("MASTER_ADDR", None)  # DeepSpeed's runner takes 127.0.0.1
    port = {"master_port": given["MASTER_PORT"]} if "MASTER_PORT" in given else {}
    overrides = tuple(f"{name} {value}  (environment)" for name, value in given.items())
    return replace(found, selection={**found.selection, **port}, overrides=overrides)


def _resources(runner: Runner, replica: int, environ: Mapping[str, str], where: Where, dev: Path) -> Resources:
    filters, launcher = Filters.of(runner, where), launcher_named(runner.launcher)
    path = environ.get("DLTS_HOSTFILE") or runner.hostfile or DEFAULT_HOSTFILE
    pool = read_hostfile(path)
    if idle := [host for host, slots in (pool or {}).items() if not slots]:
        what, hint = f"the hostfile {path} gives {listed(idle, 'and')} no slots", "leave them out of it"
        raise Problems([Problem(what, hint=hint, id="hostfile-host-without-slots", about=("hostfile",))])
    if pool is None and launcher.allocates_hosts:
        return _allocated(launcher, filters, environ)
    if pool is None:
        found = _on_this_machine(filters, replica, environ, dev)
        return found if path in (DEFAULT_HOSTFILE, "None") else _without_hostfile(found, path, where)
    if launcher.allocates_hosts:
        return replace(_on_hosts(pool, filters, path, runner, environ), remote=True)
    here = len(pool) == 1 and next(iter(pool)) in own_names()
    if here and runner.force_multi and not runner.no_ssh and launcher.needs_every_slot:
        # mpirun starts local ranks as its children, and srun's are slurmd's
        found = _on_hosts(pool, filters, path, runner, environ)
        return replace(found, device=device(environ, dev), remote=not launcher.mpirun)
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
            warnings.append(_warning("num-nodes-above-hostfile", what, filters.where, "num_nodes"))
        hosts = dict(islice(hosts.items(), filters.num_nodes))
    if filters.num_gpus > 0:
        selection["num_gpus"] = str(filters.num_gpus)
        fewer = [host for host in hosts if pool[host] < filters.num_gpus]
        if fewer:
            what = f"num_gpus is {filters.num_gpus}, but {path} gives {listed(fewer, 'and')} fewer slots"
            what += "; so many are used all the same"
            warnings.append(_warning("num-gpus-above-slots", what, filters.where, "num_gpus"))
        hosts = {host: list(range(filters.num_gpus)) for host in hosts}
    launcher = launcher_named(runner.launcher)
    remote = (len(hosts) > 1 or runner.force_multi or launcher.always_remote) and not runner.no_ssh
    if remote and launcher.needs_every_slot:
        hosts = _every_slot(pool, launcher, selection, filters)
    if environ.get("MASTER_ADDR"):
        selection["master_addr"] = environ["MASTER_ADDR"]
    only = next(iter(hosts))
    if len(hosts) == 1 and not remote and not runner.no_ssh and only not in own_names():
        starter = "DeepSpeed" if launcher.through_deepspeed else launcher.name
        what = f"{only} is the only host, and {starter} starts the ranks of a single one on this machine"
        hint = f"force_multi: true goes to {only}"
        warnings.append(_warning("single-host-not-reached", what, filters.where, "hostfile", hint=hint))
    return Resources(hosts, _hosts_device(environ), selection, len(hosts) > 1 or remote, tuple(warnings))


def _beyond(hosts: Hosts, pool: Mapping[str, int], path: str, filters: Filters) -> Iterator[Problem]:
    """DeepSpeed takes `include` at its word: a host that lends 8 slots may have a GPU 12."""
    for host, slots in hosts.items() if filters.include else ():
        if slots[-1] >= pool[host]:
            what = f"include names slot {slots[-1]} of {host}, and {path} gives it slots 0 to {pool[host] - 1}"
            what += "; it is used all the same"
            yield _warning("include-slot-beyond-hostfile", what, filters.where, "include")


def _allocated(launcher: Launcher, filters: Filters, environ: Mapping[str, str]) -> Resources:
    """On the nodes of the job that this shell is in, or on as many as are asked for."""
    allocated = slurm.nodes_of_job(environ)
    count = filters.num_nodes if filters.num_nodes > 0 else len(allocated)
    if allocated and count > len(allocated):
        what = f"num_nodes is {count}, and the job has {len(allocated)} nodes"
        hint = "leave num_nodes out, or submit a larger job"
        raise _refusal("num-nodes-above-job", what, filters.where, "num_nodes", hint=hint)
    each = filters.num_gpus if filters.num_gpus > 0 else slurm.ranks_per_node(environ)
    if not count or not each:
        missing = " and ".join([*(["num_nodes"] if not count else []), *(["num_gpus"] if not each else [])])
        what = f"launcher {launcher.name} has no hostfile and is in no job that says {missing}"
        hint = f"write {missing}, or name a hostfile"
        raise _refusal("launcher-without-hosts", what, filters.where, "launcher", hint=hint)
    if filters.include or filters.exclude:
        what = "include and exclude need a hostfile"
        raise _refusal("filter-without-hostfile", what, filters.where, "include", "exclude")
    _refuse_too_many(count * each, filters.where, "num_nodes", "num_gpus")
    names = allocated[:count] or [f"node {number}" for number in range(count)]
    hosts = {name: list(range(each)) for name in names}
    address = {"master_addr": environ["MASTER_ADDR"]} if environ.get("MASTER_ADDR") else {}
    return Resources(hosts, _hosts_device(environ), address, True, filters.warnings, scheduler_picks_hosts=True)


def _every_slot(pool: Mapping[str, int], launcher: Launcher, selection: dict[str, str], filters: Filters) -> Hosts:
    if len(selection) > 1:
        key = "exclude" if filters.exclude else list(selection)[1]
        what = f"launcher {launcher.name} starts a rank on every slot of the hostfile; {key} cannot limit it"
        hint = "list only the wanted hosts and slots in the hostfile"
        raise _refusal("launcher-needs-every-slot", what, filters.where, key, hint=hint)
    if launcher.even_slots and len(set(pool.values())) > 1:
        what = f"launcher {launcher.name} needs the same number of slots on every host of the hostfile"
        raise _refusal("launcher-needs-even-slots", what, filters.where, "launcher")
    return {host: list(range(slots)) for host, slots in pool.items()}


def _on_this_machine(filters: Filters, replica: int, environ: Mapping[str, str], dev: Path) -> Resources:
    if filters.num_nodes > 1:
        what = f"num_nodes is {filters.num_nodes}, but no hostfile lists other machines than this one"
        hint = "name one: hostfile: /path/to/hostfile"
        raise _refusal("num-nodes-without-hostfile", what, filters.where, "num_nodes", hint=hint)
    cpu, present = device(environ, dev) == "cpu", installed_devices(dev)
    if cpu or not present:
        _refuse_too_many(replica, filters.where, "global_num_gpus", "model_parallel_size", "pipe_parallel_size")
    if cpu:
        return _processes_here(filters, replica)
    visible = None if filters.any else visible_devices(environ)
    if visible is not None and present:
        return _visible_devices(local_devices(environ, dev))
    warnings = list(filters.warnings)
    count = filters.num_gpus
    if count <= 0:
        hosts = select({"localhost": present or replica}, filters.include, filters.exclude, filters.where)
        return Resources(hosts, "cuda", {"include": _spelled(hosts)}, warnings=filters.warnings)
    if 0 < present < count:
        what = f"num_gpus is {count}, but this machine has {present}"
        warnings.append(_warning("num-gpus-above-present", what, filters.where, "num_gpus"))
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
        hint = "write their numbers (nvidia-smi -L), or use include"
        raise Problems([Problem(what, hint=hint, id="visible-devices-not-numbers")])
    hosts = {"localhost": numbers}
    return Resources(hosts, "cuda", {"include": _spelled(hosts)})


def _without_hostfile(found: Resources, path: str, where: Where) -> Resources:
    one, several = ("GPU", "GPUs") if found.device == "cuda" else ("process on its CPU", "processes on its CPU")
    used = f"{found.gpus} {one if found.gpus == 1 else several}"
    what = f"there is no hostfile {path}; only this machine is used: {used}"
    missing = _warning("hostfile-missing", what, where, "hostfile")
    return replace(found, warnings=(missing, *found.warnings))


def _hosts_device(environ: Mapping[str, str]) -> Device:
    return "cpu" if environ.get("DS_ACCELERATOR") == "cpu" else "cuda"


def own_names() -> tuple[str, ...]:
    """What this machine is called."""
    return ("localhost", "127.0.0.1", os.uname().nodename)


def _spelled(hosts: Hosts) -> str:
    return "@".join(f"{host}:{','.join(map(str, slots))}" for host, slots in hosts.items())
