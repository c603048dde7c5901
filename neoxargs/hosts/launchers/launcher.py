"""The record of a launcher: the program that starts the ranks of a run, and its properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from neoxargs.base.record import Record


class Start(NamedTuple):
    """The ranks to start, and on which hosts."""

    hosts: dict[str, list[int]]
    """The device numbers of each host, in rank order."""
    words: tuple[str, ...]
    """The command of one rank: Python, the script, and the payloads with the configuration."""
    master_addr: str
    """The rendezvous address; empty if a scheduler will choose the hosts."""
    master_port: int
    arguments: tuple[str, ...]
    """The arguments in `launcher_args`, for the program that starts the ranks."""
    log_level: str = "warning"
    """The log level of DeepSpeed's launcher on each host."""
    remote: bool = False
    """Whether the ranks run on hosts other than this machine."""
    on_gpus: bool = False
    scheduler_picks_hosts: bool = False
    """Whether a scheduler chooses the hosts, in which case `hosts` contains placeholders or the nodes of the job."""

    @property
    def ranks(self) -> int:
        return sum(map(len, self.hosts.values()))


class Launcher(Record):
    """A value of `launcher`. The defaults describe a program that passes its own environment to all ranks."""

    name: str
    program: str = ""
    """The program that must be installed to reach other hosts; empty if none is needed."""
    command: Callable[[Start], Sequence[str]] | None = None
    """Returns the command that starts the ranks; None if DeepSpeed's runner starts them through this launcher."""

    inherits_environment: bool = True
    """Whether remote ranks receive all relevant environment variables of this shell."""
    reads_env_files: bool = False
    """Whether remote ranks receive the variables in `.deepspeed_env`."""
    argv_visible: bool = False
    """Whether the variables for remote ranks appear on command lines, which every user on the hosts can read."""

    by_ssh: bool = False
    """Whether other hosts are reached by ssh."""
    quotes: bool = True
    """Whether paths with special characters are quoted for remote shells."""
    one_word: bool = False
    """Whether the complete command is passed as one argument, which limits its length."""

    needs_every_slot: bool = False
    """Whether the launcher always starts a rank on every slot in the hostfile."""
    even_slots: bool = False
    """Whether the launcher needs the same number of slots on every host."""
    allocates_hosts: bool = False
    """Whether the launcher can run without a hostfile, on the nodes of a Slurm job or on `num_nodes` new nodes."""
    always_remote: bool = False
    """Whether the launcher starts ranks over the network even if there is only one host."""
    mpirun: bool = False
    """Whether the launcher is an `mpirun`: it starts local ranks itself and, in a Slurm job, the others with Slurm."""

    passes_stop_on: bool = False
    """Whether it is deepy's own: a SIGTERM to it reaches each rank once, and it ends as the first rank that failed."""

    @property
    def through_deepspeed(self) -> bool:
        """Whether DeepSpeed's runner starts it."""
        return self.command is None
