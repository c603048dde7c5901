"""What narrows the hosts down, and contradictions in it: include, exclude, num_nodes, num_gpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neoxargs.launch.cluster.hostfile import Where
from neoxargs.problems import Place, Problem, Problems

if TYPE_CHECKING:
    from neoxargs.registry.runner import Runner


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
        if include and exclude:
            raise refusal("include and exclude cannot both be given", where("exclude"), "keep one of them")
        key = "include" if include else "exclude"
        if (include or exclude) and num_nodes >= 0:
            what = f"num_nodes ({num_nodes}) and {key} both choose hosts"
            raise refusal(what, where("num_nodes"), f"keep one of them; {key} names hosts and slots")
        warnings = []
        if (include or exclude) and num_gpus >= 0:
            warnings.append(warning(f"num_gpus ({num_gpus}) has no effect beside {key}", where("num_gpus")))
            num_gpus = -1
        return cls(include, exclude, num_nodes, num_gpus, where, tuple(warnings))

    @property
    def any(self) -> bool:
        """Does the runner then pay no attention to CUDA_VISIBLE_DEVICES?"""
        return bool(self.include or self.exclude or self.num_gpus > 0)


def refusal(what: str, where: Place | None = None, hint: str = "") -> Problems:
    return Problems([Problem(what, where, hint)])


def warning(what: str, where: Place | None) -> Problem:
    return Problem(what, where, severity="warning")
