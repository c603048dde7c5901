"""One name for a weight, whatever holds it: the name that GPT gives it.

A pipeline numbers its modules in its own way and knows only those of its stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from neoxargs.train.parallel.make import Make

#: The one layer without a `Make`, and what its only member is called.
FINAL_NORM, ITS_NORM = "final_norm", "norm."
#: One module that every layer of a pipeline knows as its own.
RELATIVE = "attention.relative."


def named(module: nn.Module) -> dict[str, nn.Parameter]:
    """This rank's weights, each once, in the model's order."""
    if not hasattr(module, "_layer_specs"):
        return dict(module.named_parameters())
    found: dict[str, nn.Parameter] = {}
    for path, layer, _ in stage(module):
        for name, weight in layer.named_parameters():
            if all(weight is not other for other in found.values()):
                found[in_gpt(path, name)] = weight
    return found


def stage(pipeline: Any) -> Iterator[tuple[str, nn.Module, int]]:
    """The layers of this rank's stage of a PipelineModule: their names, and their numbers within the stage."""
    specs = pipeline._layer_specs[pipeline._local_start : pipeline._local_stop]
    for number, (spec, layer) in enumerate(zip(specs, pipeline.forward_funcs, strict=True)):
        makes = [argument for argument in spec.module_args if isinstance(argument, Make)]
        # Tied layers are called through a function; the module itself is kept by its key.
        module = pipeline.tied_modules[spec.key] if hasattr(spec, "key") else layer
        yield makes[0].path if makes else FINAL_NORM, module, number


def in_gpt(path: str, name: str) -> str:
    """The name in GPT of a layer's weight."""
    if name.startswith(RELATIVE):
        return name.removeprefix("attention.")
    return f"{path}.{name.removeprefix(ITS_NORM) if path == FINAL_NORM else name}"
