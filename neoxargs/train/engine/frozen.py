"""Training a part of the weights: a soft prompt or adapters are trained, and the model stays frozen."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from neoxargs.config.config import Config
from neoxargs.train.deepspeed.pipeline_module import exclude_tied_gradients, is_pipeline_module
from neoxargs.train.model.lora.adapters import is_adapter
from neoxargs.train.model.soft_prompt.prompt import is_prompt


def freeze(module: nn.Module, config: Config) -> None:
    """Exclude all weights from training that the configuration leaves frozen; none in most runs."""
    if config.soft_prompt.enabled:
        freeze_all_but(is_prompt, module)
    elif config.lora.rank:
        freeze_all_but(is_adapter, module)


def freeze_all_but(is_trained: Callable[[str], bool], module: nn.Module) -> None:
    """Exclude all weights from training but those whose names are accepted.

    A pipeline stage without such a weight gets a number that never has a gradient, because DeepSpeed needs something to
    optimize on every stage. It belongs to no layer, so no checkpoint contains it.
    """
    for name, weight in module.named_parameters():
        weight.requires_grad_(is_trained(name))
    if is_pipeline_module(module):
        exclude_tied_gradients(module)
    if not any(weight.requires_grad for weight in module.parameters()):
        like = next(module.parameters())
        module.register_parameter("nothing_to_train", nn.Parameter(like.detach().new_zeros(1)))
