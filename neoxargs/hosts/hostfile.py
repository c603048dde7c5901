"""Parsers of a hostfile and of `include`/`exclude`, the two ways to name hosts and their slots.

Both follow DeepSpeed's runner exactly, except that an error carries its place in the file, that a name must be one of a
host, and that every host must have a slot.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator, Mapping

from neoxargs.base.problems import Place, Problem, Problems, did_you_mean
from neoxargs.base.regular_files import read_regular

Hosts = dict[str, list[int]]
#: Returns the place at which a parameter was set, for a problem to point at.
Where = Callable[[str], Place | None]

#: Where DeepSpeed's runner looks for a hostfile when `hostfile` is not set.
DEFAULT_HOSTFILE = "/job/hostfile"
#: The most ranks a run may have. No cluster has more, and a list of them must fit in memory.
MAX_RANKS = 1_000_000

#: DeepSpeed ignores what follows the number, too. At most 12 digits, so that int() is fast for any file.
_ENTRY = re.compile(r"(\S+)\s+slots=(\d{1,12})")

#: A second host behind the first, which DeepSpeed ignores.
_ANOTHER = re.compile(r"\sslots=")

_EXAMPLE = "write one host per line, such as: worker-0 slots=4"
#: A host name or an address, with or without a user. Programs that get a name that begins with `-` as an argument, such
#: as ssh, would take it for an option.
_HOST = re.compile(r"(\w[\w.-]*@)?(\w[\w.-]*|[\da-fA-F]*(:[\da-fA-F.]*){2,}(%\w+)?)", re.ASCII)
#: A line of a hostfile, right or wrong. A file without such a line is another program's, and is not shown: a
#: configuration may name any file.
_SLOTS = re.compile(r"(?m)^[^#\n]*\sslots?\b")
#: The most bytes of a hostfile: more than enough for `MAX_RANKS`.
MAX_BYTES = 1 << 26
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: A range in Slurm's syntax, such as `node[1-4]`, which DeepSpeed would take for one host name.
_RANGE = re.compile(r"\[[\d,-]+\]")


def no_place(key: str) -> None:
    """Return None: the `Where` of a configuration that was not read from files."""


def read_hostfile(path: str) -> dict[str, int] | None:
    """Return host -> number of slots, in the file's order; None if the file does not exist. Raises Problems."""
    try:
        data = read_regular(path, MAX_BYTES) if os.path.isfile(path) else None
    except OSError as error:
        what = f"the hostfile {path} cannot be read: {error.strerror}"
        raise Problems([Problem(what, id="hostfile-unreadable", about=("hostfile",))]) from None
    if data and data.startswith(_BYTE_ORDER_MARKS):  # DeepSpeed takes it for the beginning of the first name
        what, hint = f"the hostfile {path} begins with a byte order mark", "save it as UTF-8 without a byte order mark"
        raise Problems([Problem(what, Place(path, 1, 1), hint, id="hostfile-unreadable", about=("hostfile",))])
    return None if data is None else parse_hostfile(data.decode(errors="replace"), path)


def is_host(name: str) -> bool:
    """Return whether a name can be that of a host."""
    return _HOST.fullmatch(name) is not None


def parse_hostfile(text: str, name: str) -> dict[str, int]:
    """Parse lines such as `worker-0 slots=4`; `#` starts a comment line. Raises Problems with every invalid line."""
    slots: dict[str, int] = {}
    seen: dict[str, Place] = {}
    problems = []
    shown = _SLOTS.search(text) is not None
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        place = Place(name, number, line.index(entry[0]) + 1, line if shown else "", len(entry))
        match = _ENTRY.match(entry)
        if not match or not is_host(match[1]) or _ANOTHER.search(entry, match.end()):
            what, hint = _mistake(entry)
            problems.append(Problem(what, place, hint, id="hostfile-line-without-host", about=("hostfile",)))
        elif not int(match[2]):
            hint = "remove this line, or set slots to the number of GPUs that the run should use on this host"
            what = f"host {match[1]} has slots=0"
            problems.append(Problem(what, place, hint, id="hostfile-host-without-slots", about=("hostfile",)))
        elif match[1].lower() in seen:
            what, hint = f"host {match[1]} is listed twice", "remove one of the two lines"
            also = (seen[match[1].lower()],)
            problems.append(Problem(what, place, hint, also, id="hostfile-duplicate-host", about=("hostfile",)))
        else:
            slots[match[1]], seen[match[1].lower()] = int(match[2]), place
            if slots[match[1]] > MAX_RANKS:
                problems.append(too_many_ranks(slots[match[1]], place, "hostfile"))
    if not slots and not problems:
        what, place = f"the hostfile {name} lists no hosts", Place(name, 1, 1)
        problems.append(Problem(what, place, _EXAMPLE, id="hostfile-without-host", about=("hostfile",)))
    if problems:
        raise Problems(problems)
    return slots


def too_many_ranks(ranks: int, place: Place | None, *about: str) -> Problem:
    """Return the problem of a run with more than `MAX_RANKS` ranks."""
    # Python does not print a product of two numbers with thousands of digits.
    number = f"{ranks:,}" if ranks < 10**18 else "more than 10^18"
    what = f"the run would have {number} ranks; the maximum is {MAX_RANKS:,}"
    return Problem(what, place, id="too-many-ranks", about=about)


def _mistake(entry: str) -> tuple[str, str]:
    """Return what is wrong with a line, and what to write instead."""
    host, *rest = entry.split(None, 1)
    if _RANGE.search(host) and is_host(_RANGE.sub("0", host.replace("],", "]"))):
        what = f"{host} is a range of hosts, which a hostfile cannot contain"
        return what, f"write one line per host; in a Slurm cluster, `scontrol show hostnames '{host}'` lists them"
    if _SLOTS.search(entry) and not is_host(host):
        bare = host.strip("[]") if host.startswith("[") else host.strip(":,;-")
        instead = f"write {bare} {rest[0]}" if is_host(bare) else "write the name or the address of a host"
        return f"{host} is not the name of a host", instead
    if spaced := re.fullmatch(r"slots\s*=\s*(\d+)", "".join(rest)):
        return "slots and its number must not be separated by spaces", f"write {host} slots={spaced[1]}"
    if number := re.fullmatch(r"slots=(\S+)", "".join(rest)):
        return f"slots ({number[1]}) must be a whole number, at least 1", f"write {host} slots=8 for a host with 8 GPUs"
    if _ANOTHER.search(entry):
        return "this line contains more than one host", "write each host on a line of its own"
    return "this line must contain a host name and a number of slots", _EXAMPLE


def parse_nodes(text: str, key: str, where: Place | None = None) -> dict[str, list[int]]:
    """Parse `NAME[:SLOT[,SLOT]]@…` to host -> sorted slots; an empty list means all slots. Raises Problems."""
    nodes: dict[str, list[int]] = {}
    for node in text.split("@"):
        host, colon, slots = node.partition(":")
        numbers = slots.split(",") if colon else []
        if not host or not all(re.fullmatch(r"\s*\d+\s*", number) for number in numbers):
            what = f"{key} ({text}): expected HOST or HOST:SLOT,SLOT, got {node!r}"
            hint = f"separate hosts with @ and slots with commas, such as {key}: worker-0@worker-1:0,2"
            raise Problems([Problem(what, where, hint, id="filter-malformed", about=(key,))])
        nodes.setdefault(host, []).extend(map(int, numbers))
    return {host: sorted(set(slots)) for host, slots in nodes.items()}


def select(pool: Mapping[str, int], include: str, exclude: str, where: Where = no_place) -> Hosts:
    """Apply `include` or `exclude` to a pool of host -> number of slots.

    Returns host -> device numbers, in the pool's order. Raises Problems for an unknown host or slot, or when nothing
    is left.
    """
    everything = {host: list(range(slots)) for host, slots in pool.items()}
    key, text = ("include", include) if include else ("exclude", exclude)
    if not text:
        return everything
    nodes = parse_nodes(text, key, where(key))
    if problems := [*_unknown_nodes(nodes, everything, key, where(key))]:
        raise Problems(problems)
    if include:
        # As in DeepSpeed, slots in `include` are device numbers: a host with `slots=4` may still have a device 7.
        hosts = {host: nodes[host] or everything[host] for host in everything if host in nodes}
    else:
        dropped = {host: slots or everything[host] for host, slots in nodes.items()}
        hosts = {host: [s for s in slots if s not in dropped.get(host, ())] for host, slots in everything.items()}
    hosts = {host: slots for host, slots in hosts.items() if slots}
    if not hosts:
        what, hint = f"{key} ({text}) leaves no slot to run on", f"change {key} so that it leaves at least one slot"
        raise Problems([Problem(what, where(key), hint, id="filter-leaves-nothing", about=(key,))])
    return hosts


def _known_hosts(host: str, everything: Hosts) -> str:
    known = f"known hosts: {', '.join(everything)}"
    names = re.split(r"[,\s]+", host.strip(", "))
    if all(name in everything for name in names):
        return f"separate hosts with @: {'@'.join(names)}"
    # `include: 0,1`, which looks like a list of GPUs.
    if re.fullmatch(r"[\d,]+", host):
        return f"{known}; write slots after a colon, for example {next(iter(everything))}:{host}"
    return known + "; to use others, set hostfile to a file that lists them" * ([*everything] == ["localhost"])


def _unknown_nodes(nodes: Hosts, everything: Hosts, key: str, where: Place | None) -> Iterator[Problem]:
    for host, slots in nodes.items():
        if host not in everything:
            hint = did_you_mean(host, everything) or _known_hosts(host, everything)
            what = f"`{key}` names an unknown host: {host}"
            yield Problem(what, where, hint, id="filter-unknown-host", about=(key, "hostfile"))
            continue
        unknown = [slot for slot in slots if slot not in everything[host]] if key == "exclude" else []
        if unknown:
            last = everything[host][-1]
            hint = f"{host} has slots 0 to {last}" if last else f"{host} has only slot 0"
            what = f"`exclude` names slot {unknown[0]}, which host {host} does not have"
            yield Problem(what, where, hint, id="filter-unknown-slot", about=(key, "hostfile"))
