"""What a launcher is: the program that starts the ranks of a run, and everything the package has to know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Start:
    """What is to be started, and where."""

    hosts: dict[str, list[int]]
    """Host -> the numbers of its devices, in rank order."""
    words: tuple[str, ...]
    """The program of one rank with its arguments, the configuration among them."""
    master_addr: str
    """The rendezvous address; empty where a scheduler will choose the hosts."""
    master_port: int
    arguments: tuple[str, ...]
    """`launcher_args`, for the program that starts the ranks."""
    remote: bool = False
    """Are there other machines than this one?"""
    on_gpus: bool = False
    scheduler_picks_hosts: bool = False
    """Are the hosts only numbers or names of a job, because a scheduler chooses them?"""

    @property
    def ranks(self) -> int:
        return sum(map(len, self.hosts.values()))


@dataclass(frozen=True)
class Launcher:
    """A value of `launcher`. The defaults are those of a program that hands its own environment to all ranks."""

    name: str
    program: str = ""
    """The program without which no other machine is reached; empty if there is none to look for."""
    command: Callable[[Start], Sequence[str]] | None = None
    """Builds the words of the command; None leaves that to DeepSpeed's runner, which knows the launcher's name."""

    inherits_environment: bool = True
    """Do ranks on other machines get every variable of this shell that concerns a run?"""
    reads_env_files: bool = False
    """Do they get the lines of `.deepspeed_env`?"""
    argv_visible: bool = False
    """Do these lines, and what DeepSpeed exports, stand on command lines, which every user of the machines can read?"""

    by_ssh: bool = False
    """Are other machines reached by ssh?"""
    quotes: bool = True
    """Do paths with spaces and signs survive the shells of other machines?"""
    one_word: bool = False
    """Does the whole command travel as one word of a command line?"""

    needs_every_slot: bool = False
    """Is a rank started on every slot of the hostfile, whatever else is asked for?"""
    even_slots: bool = False
    """Are equally many ranks started on each host?"""
    allocates_hosts: bool = False
    """Does it do without a hostfile, on the nodes of a job or on as many as `num_nodes` asks for?"""
    always_remote: bool = False
    """Does it reach even a single host over the network?"""
    mpirun: bool = False
    """Is it an `mpirun`, which starts the ranks of this machine as its own children and asks Slurm where it can?"""

    def __post_init__(self) -> None:
        through_runner = "replace(THROUGH_RUNNER, name=...) is a launcher that DeepSpeed's runner starts"
        assert self.command or (self.reads_env_files and self.argv_visible), through_runner

    @property
    def through_deepspeed(self) -> bool:
        """Does DeepSpeed's runner start it?"""
        return self.command is None
