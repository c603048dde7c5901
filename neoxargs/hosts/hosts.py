"""The hosts and devices of a run: from a hostfile, narrowed by `include`, `num_gpus` and others, or this machine.

The batch arithmetic and the launch use the same `Resources`: its `selection` holds the flags for DeepSpeed's runner, so
the runner starts exactly the ranks that the batch size was computed for. Where DeepSpeed 0.19.6 differs from its own
documentation (`include: worker-0` without slots selects nothing), `selection` spells out the documented meaning.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.base.record import Record, replace
from neoxargs.hosts import slurm
from neoxargs.hosts.devices import Device, device, installed_devices, local_devices, visible_devices
from neoxargs.hosts.hostfile import (
    DEFAULT_HOSTFILE,
    MAX_RANKS,
    Hosts,
    Where,
    no_place,
    parse_nodes,
    read_hostfile,
    select,
    too_many_ranks,
)
from neoxargs.hosts.launchers import Launcher, launcher_named
from neoxargs.registry.runner import Runner

#: The runner's flags that `Resources.selection` replaces.
SELECTION_FLAGS = ("hostfile", "include", "exclude", "num_nodes", "num_gpus")


class Resources(Record):
    """The devices of a run, in rank order."""

    hosts: Hosts
    device: Device
    selection: Mapping[str, str] = {}
    """The runner's flags that select exactly these hosts and devices."""
    remote: bool = False
    """Whether the runner reaches the hosts over the network."""
    warnings: tuple[Problem, ...] = ()
    scheduler_picks_hosts: bool = False
    """Whether a scheduler chooses the hosts, in which case `hosts` contains placeholders or the nodes of the job."""
    overrides: tuple[str, ...] = ()
    """Environment variables that override the configuration, as lines for the summary."""
    assumed: Hosts = {}
    """With `--gpus N`, the hosts that N GPUs are taken to be on; `hosts` has them as one machine."""

    @property
    def gpus(self) -> int:
        """The number of ranks, one per device."""
        return sum(map(len, self.hosts.values()))


class Filters(NamedTuple):
    """The parameters that select hosts and devices, checked against each other."""

    include: str
    exclude: str
    num_nodes: int
    num_gpus: int
    where: Where
    warnings: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, runner: Runner, where: Where) -> Filters:
        include, exclude, num_nodes, num_gpus = runner.include, runner.exclude, runner.num_nodes, runner.num_gpus
        counts = {"num_nodes": num_nodes, "num_gpus": num_gpus}
        problems = [too_many_ranks(n, where(name), name) for name, n in counts.items() if n > MAX_RANKS]
        if include and exclude:
            what, hint = "include and exclude cannot both be set", "remove one of them"
            problems += _refusal("include-and-exclude", what, where, "exclude", "include", hint=hint).problems
        key = "include" if include else "exclude"
        # -1 is the default, for "not set".
        if (include or exclude) and num_nodes >= 0:
            what, hint = f"num_nodes ({num_nodes}) and {key} both select hosts", f"remove either num_nodes or {key}"
            problems += _refusal("num-nodes-beside-filter", what, where, "num_nodes", key, hint=hint).problems
        if problems:
            raise Problems(problems)
        warnings = []
        if (include or exclude) and num_gpus >= 0:
            what, hint = f"num_gpus ({num_gpus}) has no effect, because {key} selects the slots", "remove num_gpus"
            warnings.append(_warning("num-gpus-beside-filter", what, where, "num_gpus", key, hint=hint))
            num_gpus = -1
        return cls(include, exclude, num_nodes, num_gpus, where, tuple(warnings))


def _warning(id: str, what: str, where: Where, *about: str, hint: str = "") -> Problem:
    """Return a warning that points at the first of the parameters `about` that is set."""
    place = next(filter(None, map(where, about)), None)
    return Problem(what, place, hint, severity="warning", id=id, about=about)


def _refusal(id: str, what: str, where: Where, *about: str, hint: str = "") -> Problems:
    return Problems([replace(_warning(id, what, where, *about, hint=hint), severity="error")])


def _refuse_too_many(ranks: int, where: Where, *about: str) -> None:
    if ranks > MAX_RANKS:
        raise Problems([too_many_ranks(ranks, next(filter(None, map(where, about)), None), *about)])


def assumed_resources(gpus: int) -> Resources:
    """Return the resources of a machine with this many GPUs (`--gpus N`); raises Problems."""
    _refuse_too_many(gpus, no_place)
    return Resources({"localhost": list(range(gpus))}, "cuda", {"num_gpus": str(gpus)})


def resources(
    runner: Runner,
    replica: int,
    environ: Mapping[str, str],
    where: Where = no_place,
    dev: Path = Path("/dev"),
) -> Resources:
    """Return the hosts and devices that these launcher parameters select; raises Problems.

    replica: ranks per replica (tensor x pipeline parallel), which is also the default number of processes on a machine
    without GPUs. where: returns the place at which a parameter was set. dev: the folder of device files.
    """
    selected = _resources(runner, replica, environ, where, dev)
    variables = {name: environ[name] for name in ("DLTS_HOSTFILE", "MASTER_ADDR", "MASTER_PORT") if environ.get(name)}
    if not selected.remote:
        variables.pop("MASTER_ADDR", None)  # DeepSpeed's runner uses 127.0.0.1 for a local run
    port = {"master_port": variables["MASTER_PORT"]} if "MASTER_PORT" in variables else {}
    if port and not (variables["MASTER_PORT"].isdecimal() and 0 < int(variables["MASTER_PORT"]) < 1 << 16):
        what = f"the environment variable MASTER_PORT ({variables['MASTER_PORT']}) must be a port from 1 to 65535"
        raise Problems(Problem(what, hint="unset MASTER_PORT, or set it to a free port", id="master-port-invalid"))
    overrides = tuple(f"{name} {value}  (environment)" for name, value in variables.items())
    return replace(selected, selection={**selected.selection, **port}, overrides=overrides)


def _resources(runner: Runner, replica: int, environ: Mapping[str, str], where: Where, dev: Path) -> Resources:
    filters, launcher = Filters.of(runner, where), launcher_named(runner.launcher)
    # As in GPT-NeoX, DLTS_HOSTFILE takes precedence over the configuration.
    path = environ.get("DLTS_HOSTFILE") or runner.hostfile or DEFAULT_HOSTFILE
    pool = read_hostfile(path)
    if pool is None and launcher.allocates_hosts:
        return _allocated(launcher, filters, environ)
    if pool is None:
        try:
            local = _on_this_machine(filters, replica, environ, dev)
        except Problems as stop:
            told = _only_this_machine(runner, None, path, environ, where)
            absent = [problem for problem in told if problem.about == ("hostfile",)]
            raise Problems([*stop.problems, *absent]) from None
        warnings = _only_this_machine(runner, (local.gpus, local.device), path, environ, where)
        return replace(local, warnings=(*warnings, *local.warnings))
    if launcher.allocates_hosts:
        return replace(_on_hosts(pool, filters, path, runner, environ), remote=True)
    is_local = len(pool) == 1 and next(iter(pool)) in own_names()
    if is_local and runner.force_multi and not runner.no_ssh and launcher.needs_every_slot:
        # mpirun starts local ranks as its own children; srun's ranks are children of slurmd
        selected = _on_hosts(pool, filters, path, runner, environ)
        return replace(selected, device=device(environ, dev), remote=not launcher.mpirun)
    if is_local and device(environ, dev) == "cpu":
        # the runner would first try `ssh localhost`, and a machine without GPUs rarely runs an ssh server
        return _local_processes(filters, next(iter(pool.values())), {"hostfile": os.devnull})
    found = _on_hosts(pool, filters, path, runner, environ)
    return replace(found, warnings=(*found.warnings, *_hidden_slots(found, filters, environ, dev)))


def _on_hosts(
    pool: Mapping[str, int], filters: Filters, path: str, runner: Runner, environ: Mapping[str, str]
) -> Resources:
    hosts = select(pool, filters.include, filters.exclude, filters.where)
    warnings = [*filters.warnings, *_slots_beyond_hostfile(hosts, pool, path, filters)]
    selection = {"hostfile": path}
    if filters.include or filters.exclude:
        selection["include"] = _include_text(hosts)
    if filters.num_nodes > 0:
        selection["num_nodes"] = str(filters.num_nodes)
        if filters.num_nodes > len(hosts):
            what = f"num_nodes ({filters.num_nodes}) is more than the number of hosts in {path} ({len(hosts)})"
            what += "; all hosts are used"
            warnings.append(_warning("num-nodes-above-hostfile", what, filters.where, "num_nodes"))
        # The runner takes the first hosts too, after `include`.
        hosts = dict(islice(hosts.items(), filters.num_nodes))
    if filters.num_gpus > 0:
        selection["num_gpus"] = str(filters.num_gpus)
        fewer = [host for host in hosts if pool[host] < filters.num_gpus]
        if fewer:
            what = f"num_gpus ({filters.num_gpus}) is more than the number of slots of {listed(fewer, 'and')} in {path}"
            what += f"; {filters.num_gpus} ranks are started on each host"
            warnings.append(_warning("num-gpus-above-slots", what, filters.where, "num_gpus"))
        hosts = {host: list(range(filters.num_gpus)) for host in hosts}
    launcher = launcher_named(runner.launcher)
    remote = (len(hosts) > 1 or runner.force_multi or launcher.always_remote) and not runner.no_ssh
    if remote and launcher.needs_every_slot:
        # These launchers read the hostfile themselves, so include, num_nodes and num_gpus would only change the
        # arithmetic.
        hosts = _every_slot(pool, launcher, selection, filters)
    if environ.get("MASTER_ADDR"):
        selection["master_addr"] = environ["MASTER_ADDR"]
    first = next(iter(hosts))
    if len(hosts) == 1 and not remote and not runner.no_ssh and first not in own_names():
        starter = "DeepSpeed" if launcher.through_deepspeed else launcher.name
        what = f"{first} is the only host, but with a single host {starter} ignores the host name and starts the ranks "
        what += "on this machine"
        hint = f"set force_multi: true to run on {first}"
        warnings.append(_warning("single-host-not-reached", what, filters.where, "hostfile", hint=hint))
    return Resources(hosts, _hosts_device(environ), selection, len(hosts) > 1 or remote, tuple(warnings))


def _slots_beyond_hostfile(hosts: Hosts, pool: Mapping[str, int], path: str, filters: Filters) -> Iterator[Problem]:
    """DeepSpeed does not check `include` against the hostfile: a host with `slots=8` may have a GPU 12."""
    for host, slots in hosts.items() if filters.include else ():
        if slots[-1] >= pool[host]:
            what = f"`include` names slot {slots[-1]} of {host}, but {path} has slots={pool[host]} for this host"
            what += f"; slot {slots[-1]} is used anyway"
            yield _warning("include-slot-beyond-hostfile", what, filters.where, "include")


def _allocated(launcher: Launcher, filters: Filters, environ: Mapping[str, str]) -> Resources:
    """Return the nodes of the Slurm job that this shell is in, or `num_nodes` placeholders outside of a job."""
    allocated = slurm.nodes_of_job(environ)
    count = filters.num_nodes if filters.num_nodes > 0 else len(allocated)
    if allocated and count > len(allocated):
        what = f"num_nodes ({count}) is more than the number of nodes in this Slurm job ({len(allocated)})"
        hint = "remove num_nodes, or submit a job with more nodes"
        raise _refusal("num-nodes-above-job", what, filters.where, "num_nodes", hint=hint)
    each = filters.num_gpus if filters.num_gpus > 0 else slurm.ranks_per_node(environ)
    if not count or not each:
        missing = " and ".join([*(["num_nodes"] if not count else []), *(["num_gpus"] if not each else [])])
        what = f"launcher {launcher.name} needs {missing}, which neither a hostfile nor a Slurm job provides"
        hint = f"set {missing}, or set hostfile"
        raise _refusal("launcher-without-hosts", what, filters.where, "launcher", hint=hint)
    if filters.include or filters.exclude:
        key = "include" if filters.include else "exclude"
        what, hint = f"{key} needs a hostfile", f"set hostfile, or remove {key}"
        raise _refusal("filter-without-hostfile", what, filters.where, "include", "exclude", hint=hint)
    _refuse_too_many(count * each, filters.where, "num_nodes", "num_gpus")
    names = allocated[:count] or [f"node {number}" for number in range(count)]
    hosts = {name: list(range(each)) for name in names}
    address = {"master_addr": environ["MASTER_ADDR"]} if environ.get("MASTER_ADDR") else {}
    return Resources(hosts, _hosts_device(environ), address, True, filters.warnings, scheduler_picks_hosts=True)


def _every_slot(pool: Mapping[str, int], launcher: Launcher, selection: dict[str, str], filters: Filters) -> Hosts:
    if len(selection) > 1:
        key = "exclude" if filters.exclude else list(selection)[1]
        what = f"launcher {launcher.name} starts a rank on every slot in the hostfile and ignores {key}"
        hint = f"remove {key}, and list in the hostfile only the hosts and slots that the run should use"
        raise _refusal("launcher-needs-every-slot", what, filters.where, key, hint=hint)
    if launcher.even_slots and len(set(pool.values())) > 1:
        what = f"launcher {launcher.name} needs the same number of slots on every host in the hostfile"
        hint = "give every host the same number of slots, or set launcher to pdsh or ssh"
        raise _refusal("launcher-needs-even-slots", what, filters.where, "launcher", hint=hint)
    return {host: list(range(slots)) for host, slots in pool.items()}


def _on_this_machine(filters: Filters, replica: int, environ: Mapping[str, str], dev: Path) -> Resources:
    if filters.num_nodes > 1:
        what = f"num_nodes is {filters.num_nodes}, but there is no hostfile to list the other machines"
        hint = "set hostfile: /path/to/hostfile; in a Slurm cluster, set launcher: srun; or remove num_nodes"
        raise _refusal("num-nodes-without-hostfile", what, filters.where, "num_nodes", hint=hint)
    cpu, present = device(environ, dev) == "cpu", installed_devices(dev)
    _refuse_absent(environ, present)
    if cpu or not present:
        _refuse_too_many(
            replica, filters.where, "global_num_gpus", "model_parallel_size", "pipe_parallel_size",
            "context_parallel_size",
        )  # fmt: skip
    if cpu:
        return _local_processes(filters, replica)
    visible, count = _visible_numbers(environ, dev), filters.num_gpus
    if visible is not None:
        hosts = _among_visible(visible, present, filters)
        return Resources(hosts, "cuda", {"include": _include_text(hosts)}, warnings=filters.warnings)
    warnings = list(filters.warnings)
    if count <= 0:
        hosts = select({"localhost": present or replica}, filters.include, filters.exclude, filters.where)
        return Resources(hosts, "cuda", {"include": _include_text(hosts)}, warnings=filters.warnings)
    if 0 < present < count:
        what = f"num_gpus is {count}, but this machine has {present} {'GPU' if present == 1 else 'GPUs'}"
        warnings.append(_warning("num-gpus-above-present", what, filters.where, "num_gpus"))
    return Resources({"localhost": list(range(count))}, "cuda", {"num_gpus": str(count)}, warnings=tuple(warnings))


def _only_this_machine(
    runner: Runner, used: tuple[int, Device] | None, path: str, environ: Mapping[str, str], where: Where
) -> Iterator[Problem]:
    """Yield a warning if the run was probably meant for other machines too.

    used: number and kind of this machine's devices, None if they cannot be selected. path: of the absent hostfile.
    """
    key, reason, remedy = _expected(runner, path, environ)
    if not reason:
        return
    if used:
        count, kind = used
        one, several = ("GPU", "GPUs") if kind == "cuda" else ("process on the CPU", "processes on the CPU")
        reason += f"; only this machine is used: {count} {one if count == 1 else several}"
    hint = f"{remedy} with one line per machine, such as: node1 slots=8"
    place = None if environ.get("DLTS_HOSTFILE") else where(key)
    yield Problem(reason, place, hint, severity="warning", id="hostfile-missing", about=(key,))


def _expected(runner: Runner, path: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the parameter that needs a hostfile, why, and what to do; empty if this machine is all that is wanted."""
    # The default path is rarely present. `hostfile: None` is a string in YAML, and means no hostfile.
    if path not in (DEFAULT_HOSTFILE, "None"):
        name = f"the hostfile {path}" + (" that DLTS_HOSTFILE names" if environ.get("DLTS_HOSTFILE") else "")
        return "hostfile", f"{name} {'is not a file' if os.path.exists(path) else 'does not exist'}", "create it"
    launcher, nodes = launcher_named(runner.launcher), len(slurm.nodes_of_job(environ))
    if runner.no_ssh or runner.num_nodes == 1 or slurm.in_step(environ):  # each machine gets a command of its own
        return "", "", ""
    if nodes > 1:
        reason = f"this Slurm job has {nodes} nodes, which launcher {launcher.name} uses only with a hostfile"
        return "launcher", reason, "set launcher: srun, or set hostfile to a file"
    reaches_others = launcher.needs_every_slot or launcher.always_remote or runner.force_multi
    reason = f"launcher {launcher.name} has no hostfile" if reaches_others else ""
    return "launcher", reason, "set hostfile to a file"


def _local_processes(filters: Filters, slots: int, selection: Mapping[str, str] = MappingProxyType({})) -> Resources:
    """Return the resources of a machine without GPUs, where a rank is a process and the runner needs only a count."""
    count = filters.num_gpus
    if count <= 0:
        hosts = select({"localhost": slots}, filters.include, filters.exclude, filters.where)
        count = sum(map(len, hosts.values()))
    hosts = {"localhost": list(range(count))}
    return Resources(hosts, "cpu", {**selection, "num_gpus": str(count)}, warnings=filters.warnings)


def _refuse_absent(environ: Mapping[str, str], present: int) -> None:
    """Raise Problems if CUDA_VISIBLE_DEVICES names a GPU that this machine lacks: CUDA ignores it and all after it."""
    names = visible_devices(environ) or [] if environ.get("DS_ACCELERATOR") != "cpu" else []
    absent = [name for name in names if name.isdigit() and int(name) >= present]
    if present and absent:
        has = "1 GPU, 0" if present == 1 else f"{present} GPUs, 0 to {present - 1}"
        what = f"CUDA_VISIBLE_DEVICES ({','.join(names)}) names GPU {absent[0]}, but this machine has {has}"
        hint = "name GPUs that exist, or unset CUDA_VISIBLE_DEVICES to use all of them"
        raise Problems([Problem(what, hint=hint, id="visible-devices-absent")])


def _visible_numbers(environ: Mapping[str, str], dev: Path) -> list[int] | None:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, None if it is not set or there are no GPUs; raises Problems."""
    if visible_devices(environ) is None or not installed_devices(dev):
        return None
    devices = local_devices(environ, dev)
    if repeated := [name for name, times in Counter(devices).items() if times > 1]:
        what = f"CUDA_VISIBLE_DEVICES ({','.join(map(str, devices))}) names GPU {repeated[0]} more than once"
        hint = "name each GPU once: every rank needs a GPU of its own"
        raise Problems([Problem(what, hint=hint, id="visible-devices-repeated")])
    numbers = [number for number in devices if isinstance(number, int)]
    if len(numbers) < len(devices):
        names = ",".join(map(str, devices))
        what = f"CUDA_VISIBLE_DEVICES ({names}): DeepSpeed's launcher accepts only device numbers"
        hint = "use device numbers; nvidia-smi -L lists them"
        raise Problems([Problem(what, hint=hint, id="visible-devices-not-numbers")])
    return numbers


def _among_visible(visible: list[int], present: int, filters: Filters) -> Hosts:
    """Return the GPUs of this machine that are both visible and selected; raises Problems."""
    names = ",".join(map(str, visible))
    if filters.num_gpus > len(visible):
        what = f"num_gpus is {filters.num_gpus}, but CUDA_VISIBLE_DEVICES ({names}) has {len(visible)}"
        hint = f"set num_gpus: {len(visible)}, or add devices to CUDA_VISIBLE_DEVICES"
        raise _refusal("devices-not-visible", what, filters.where, "num_gpus", hint=hint)
    if filters.num_gpus > 0:
        return {"localhost": visible[: filters.num_gpus]}
    if not (filters.include or filters.exclude):
        return {"localhost": visible}
    selected = select({"localhost": present}, filters.include, filters.exclude, filters.where)["localhost"]
    key = "include" if filters.include else "exclude"
    named = parse_nodes(filters.include, key) if filters.include else {}
    if hidden := [slot for slots in named.values() for slot in slots if slot not in visible]:
        what = f"include names GPU {listed(map(str, hidden), 'and')}, which CUDA_VISIBLE_DEVICES ({names}) hides"
        hint = "select among the visible devices, or change or unset CUDA_VISIBLE_DEVICES"
        raise _refusal("devices-not-visible", what, filters.where, "include", hint=hint)
    kept = [slot for slot in visible if slot in selected]
    if not kept:
        what = f"{key} leaves none of the devices in CUDA_VISIBLE_DEVICES ({names})"
        raise _refusal("devices-not-visible", what, filters.where, key, hint=f"change {key} or CUDA_VISIBLE_DEVICES")
    return {"localhost": kept}


def _hidden_slots(found: Resources, filters: Filters, environ: Mapping[str, str], dev: Path) -> Iterator[Problem]:
    """Yield a warning, or raise Problems on one machine, if a hostfile has slots that CUDA_VISIBLE_DEVICES hides."""
    visible = _visible_numbers(environ, dev) if found.device == "cuda" and not found.scheduler_picks_hosts else None
    own = next((slots for host, slots in found.hosts.items() if host in own_names()), [])
    hidden = [slot for slot in own if visible is not None and slot not in visible]
    if visible is None or not hidden:
        return
    names = ",".join(map(str, visible))
    what = f"the run would use GPU {listed(map(str, hidden), 'and')} of this machine, which CUDA_VISIBLE_DEVICES "
    what += f"({names}) hides"
    hint = "select GPUs with include, or change or unset CUDA_VISIBLE_DEVICES"
    if not found.remote:
        raise _refusal("devices-not-visible", what, filters.where, "include", "hostfile", hint=hint)
    what += "; it has no effect on a run on several hosts"
    yield _warning("devices-not-visible", what, filters.where, "include", "hostfile", hint=hint)


def _hosts_device(environ: Mapping[str, str]) -> Device:
    return "cpu" if environ.get("DS_ACCELERATOR") == "cpu" else "cuda"


def own_names() -> tuple[str, ...]:
    """Return the names under which a hostfile may list this machine."""
    return ("localhost", "127.0.0.1", os.uname().nodename)


def _include_text(hosts: Hosts) -> str:
    """Format hosts as the value of the runner's `--include`."""
    return "@".join(f"{host}:{','.join(map(str, slots))}" for host, slots in hosts.items())
