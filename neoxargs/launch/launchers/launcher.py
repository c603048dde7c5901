"""The record of a launcher: the program that starts the ranks of a run, and its properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from neoxargs.record import Record


class Start(NamedTuple):
    """The ranks to start, and on which hosts."""

    hosts: dict[str, list[int]]
    """Host -> device numbers, in rank order."""
    words: tuple[str, ...]
    """The command of one rank: Python, the script, and the payloads with the configuration."""
    master_addr: str
    """The rendezvous address; empty if a scheduler will choose the hosts."""
    master_port: int
    arguments: tuple[str, ...]
    """`launcher_args`, for the program that starts the ranks."""
    log_level: str = "warning"
    """The level of DeepSpeed's launcher on each host."""
    remote: bool = False
    """Whether the ranks run on other hosts than this machine."""
    on_gpus: bool = False
    scheduler_picks_hosts: bool = False
    """Whether a scheduler chooses the hosts, so that `hosts` has only placeholders or the job's nodes."""

    @property
    def ranks(self) -> int:
        return sum(map(len, self.hosts.values()))


class Launcher(Record):
    """A value of `launcher`. The defaults describe a program that passes its own environment to all ranks."""

    name: str
    program: str = ""
    """The program that must be installed to reach other hosts; empty if none is needed."""
    command: Callable[[Start], Sequence[str]] | None = None
    """Returns the command; None for a launcher that DeepSpeed's runner starts by its name."""

    inherits_environment: bool = True
    """Whether remote ranks get all variables of this shell that concern a run."""
    reads_env_files: bool = False
    """Whether remote ranks get the lines of `.deepspeed_env`."""
    argv_visible: bool = False
    """Whether these lines and DeepSpeed's exports are put on command lines, which every user on the hosts can read."""

    by_ssh: bool = False
    """Whether other hosts are reached by ssh."""
    quotes: bool = True
    """Whether paths with special characters are quoted for remote shells."""
    one_word: bool = False
    """Whether the complete command is passed as one argument, which limits its length."""

    needs_every_slot: bool = False
    """Whether it always starts a rank on every slot of the hostfile."""
    even_slots: bool = False
    """Whether it starts the same number of ranks on each host."""
    allocates_hosts: bool = False
    """Whether it can run without a hostfile, on the nodes of a job or on `num_nodes` new ones."""
    always_remote: bool = False
    """Whether it reaches even a single host over the network."""
    mpirun: bool = False
    """Whether it is an `mpirun`, which starts local ranks as its own children and uses Slurm inside a job."""

    @property
    def through_deepspeed(self) -> bool:
        """Whether DeepSpeed's runner starts it."""
        return self.command is None
