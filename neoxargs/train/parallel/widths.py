"""Growth of each weight relative to the base model, by which muP scales initial values and learning rates.

A module of its own, because `Weights` needs it for initial values and mup.py imports that module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.base_shapes import SAVE_HINT

#: Weight -> its size in the base model along each dimension; None for a dimension that does not grow with the model.
BaseShapes = Mapping[str, list[int | None]]


@dataclass(frozen=True)
class Widths:
    """Shapes of the base model, and the factors that follow from them."""

    base: BaseShapes
    init_scale: float = 1.0

    def growth(self, name: str, shape: tuple[int, ...]) -> list[float]:
        """Return this model's size / the base model's size for each dimension that grows, outputs before inputs.

        shape: of the unsharded weight. Raises Problems if the base model has no such weight.
        """
        sizes = self.base.get(name)
        if sizes is None or len(sizes) != len(shape):
            what = f"base_shapes_file has no {len(shape)}-dimensional weight named {name}"
            raise Problems(Problem(what, hint=SAVE_HINT, id="base-shapes-weight-missing", about=("base_shapes_file",)))
        return [size / base for size, base in zip(shape, sizes, strict=True) if base is not None]

    def std_factor(self, name: str, shape: tuple[int, ...]) -> float:
        """Return the factor on the standard deviation of a weight's initial values."""
        growth = self.growth(name, shape)
        return self.init_scale * (float(growth[1] ** -0.5) if len(growth) == 2 else 1.0)

    def lr_divisor(self, name: str, shape: tuple[int, ...], normalized: bool) -> float:
        """Return the divisor of a weight's learning rate, for optimizers like Adam (`normalized`) or for SGD."""
        growth = self.growth(name, shape)
        if len(growth) == 2:
            return growth[1] if normalized else growth[1] / growth[0]
        return 1.0 if normalized or not growth else 1 / growth[0]
