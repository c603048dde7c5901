"""Names of weights, which are the same in every engine: the name of a part of the model, then the name within it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def named_parts(module: nn.Module) -> Mapping[str, nn.Module]:
    """Return the parts of a model that this rank has, by the prefix of the names of their weights."""
    # Of a pipeline stage, whose own names are numbers; the plain engine's model has the names already.
    return getattr(module, "named_parts", {"": module})


def named_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return this rank's weights by name, each once, in the model's order."""
    weights: dict[str, nn.Parameter] = {}
    seen = set()
    for path, part in named_parts(module).items():
        for name, weight in part.named_parameters(prefix=path):
            if id(weight) not in seen:  # one that several parts have, or that a part has twice
                seen.add(id(weight))
                weights[name] = weight
    return weights
