"""The `#SBATCH` comments at the top of a script, from which Slurm reads the nodes and GPUs of the job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from neoxargs.base.files import Text
from neoxargs.base.problems import Place
from neoxargs.migrate.megatron.reading import Option, Reading, options_of
from neoxargs.migrate.shell.values import Word

#: Short options of sbatch that a script is likely to use.
_LONG = {
    "-A": "--account", "-c": "--cpus-per-task", "-C": "--constraint", "-e": "--error", "-G": "--gpus",
    "-J": "--job-name", "-N": "--nodes", "-n": "--ntasks", "-o": "--output", "-p": "--partition", "-q": "--qos",
    "-t": "--time", "-w": "--nodelist", "-x": "--exclude",
}  # fmt: skip
#: Options that determine the numbers of nodes and GPUs.
_COUNTS = ("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres")
#: Options that are parameters.
_SAME = ("account", "comment")


class Job:
    """A script's `#SBATCH` options."""

    def __init__(self, text: Text) -> None:
        self.options: Mapping[str, Option] = options_of(list(_words(text)))
        self.nodes = self._number("nodes")

    @property
    def gpus_per_node(self) -> int | None:
        """The number of GPUs that each node has in this job; without GPU options, the number of its tasks."""
        tasks = self._number("ntasks-per-node") or self._divided("ntasks")
        each = self._number("gpus-per-task")
        generic = re.search(r"\bgpu(?::[\w.-]+)?:(\d+)", self._text("gres"))
        counts = (self._number("gpus-per-node"), int(generic[1]) if generic else None, self._divided("gpus"))
        return next((count for count in counts if count), each * (tasks or 1) if each else tasks)

    @property
    def variables(self) -> dict[str, str]:
        """The variables that Slurm sets for the script."""
        each = self._number("ntasks-per-node")
        tasks = self._number("ntasks") or (self.nodes or 0) * (each or 0)
        values = {
            **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), self.nodes),
            **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), self.gpus_per_node),
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), tasks),
            "SLURM_NTASKS_PER_NODE": each,
        }
        return {name: str(value) for name, value in values.items() if value}

    def _divided(self, name: str) -> int | None:
        """Return how many of a total number each node gets; None unless they are evenly distributed."""
        total, nodes = self._number(name), self.nodes or 1
        return total // nodes if total and total % nodes == 0 else None

    def _number(self, name: str) -> int | None:
        """Return an option's number, of GPUs also after their type, as in `a100:8`."""
        match = re.fullmatch(r"(?:[a-zA-Z][\w.-]*:)?(\d+)", self._text(name))
        return int(match[1]) if match and int(match[1]) else None

    def _text(self, name: str) -> str:
        return self.options[name].text if name in self.options else ""


def read_job(reading: Reading, job: Job) -> None:
    """Add a job's nodes, GPUs, account and comment to the settings, and warn about its other options."""
    for name, count in (("num_nodes", job.nodes), ("num_gpus", job.gpus_per_node)):
        if count and name not in {*reading.settings, *reading.to_write}:
            reading.set(name, count, "from #SBATCH")
    nodes = reading.settings.get("num_nodes")
    if job.options and nodes and nodes.value > 1 and "hostfile" not in {*reading.settings, *reading.to_write}:
        reading.set("launcher", "srun", "a Slurm job")
        reading.settings.pop("master_addr", None)  # Slurm decides which nodes the job gets
    for name in _SAME:
        if name in job.options:
            reading.set_from(job.options[name], name)
    _warn_of_others(reading, [option for option in job.options.values() if option.name not in (*_COUNTS, *_SAME)])


def _warn_of_others(reading: Reading, options: list[Option]) -> None:
    if not options:
        return
    shown = ("=".join(word.text for word in option.words[:2]) for option in options)
    what = f"these options of the Slurm job are left out: {', '.join(shown)}"
    hint = "`deepy train.py FILE --emit sbatch` writes a script for a new job; add to it the options that your cluster "
    hint += "needs"
    reading.warn("migrate-slurm-option", what, options[0].place, hint)


def _words(text: Text) -> Iterator[Word]:
    """Yield the words of the `#SBATCH` lines, short options by their long names."""
    for number, line in enumerate(text.text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return  # Slurm ignores those after the first command
        if match := re.match(r"#SBATCH\s+(?=-)", line):
            place = Place(text.name, number, 1, line, len(line.rstrip()))
            for word in _split(line[match.end() :]):
                long = _LONG.get(word[:2], "") if not word.startswith("--") else ""
                yield from (Word(part, place) for part in ([long, word[2:].lstrip("=")] if long else [word]) if part)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote that is not closed
        return text.split()
