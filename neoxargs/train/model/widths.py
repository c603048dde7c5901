"""How much wider than its base model a model is, weight by weight: what muP scales initial values and steps by.

Apart from mup.py because `Make` scales what it draws by it, and mup.py describes what `Make` has made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neoxargs.problems import Problem, Problems

#: Weight -> its size in the base model along each dimension; None where it does not grow with the model.
Base = Mapping[str, list[int | None]]
SAVE = "run the configuration of the base model with save_base_shapes: true to write the file"


@dataclass(frozen=True)
class Widths:
    """How much wider than the base model this one is."""

    base: Base
    init_scale: float = 1.0

    def growth(self, name: str, shape: tuple[int, ...]) -> list[float]:
        """Of each dimension that grows, outputs before inputs. Raises Problems for weights the base does not have."""
        sizes = self.base.get(name)
        if sizes is None or len(sizes) != len(shape):
            what = f"base_shapes_file has no {len(shape)}-dimensional weight named {name}"
            raise Problems(Problem(what, hint=SAVE, id="base-shapes-lack-a-weight", about=("base_shapes_file",)))
        return [mine / theirs for mine, theirs in zip(shape, sizes, strict=True) if theirs is not None]

    def deviation(self, name: str, shape: tuple[int, ...]) -> float:
        """Factor on a weight's initial deviation."""
        growth = self.growth(name, shape)
        return self.init_scale * (float(growth[1] ** -0.5) if len(growth) == 2 else 1.0)

    def divisor(self, name: str, shape: tuple[int, ...], normalised: bool) -> float:
        """Of a weight's learning rate; normalised: for optimizers of Adam's kind, otherwise for SGD."""
        growth = self.growth(name, shape)
        if len(growth) == 2:
            return growth[1] if normalised else growth[1] / growth[0]
        return 1.0 if normalised or not growth else 1 / growth[0]
