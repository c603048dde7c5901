"""What a run trains: all weights, or only adapters or a soft prompt beside a frozen model."""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.facts import lora, model
from neoxargs.registry.architectures import SoftPrompt


def is_frozen(config: Config) -> bool:
    """Whether the model is frozen."""
    return bool(config.lora.rank or config.soft_prompt.enabled)


def prompt_length(options: SoftPrompt) -> int:
    """Return the number of positions that a soft prompt takes in every sample; 0 without one."""
    return options.num_tokens if options.enabled else 0


def trained_parameters(config: Config, rows: int) -> int:
    """Return the number of trained parameters over all ranks. rows: of the embedding."""
    if config.lora.rank:
        return lora.parameters(config)
    if config.soft_prompt.enabled:
        return prompt_length(config.soft_prompt) * config.shape.hidden_size
    return model.parameters(config, rows)
