"""What a run trains: all weights, or only adapters or a soft prompt beside a frozen model."""

from __future__ import annotations

from neoxargs.resolve.config import Config
from neoxargs.sizes import lora, model


def is_frozen(config: Config) -> bool:
    """Whether the model is frozen."""
    return bool(config.lora.rank or config.soft_prompt.enabled)


def trained_parameters(config: Config, rows: int) -> int:
    """Return the number of trained parameters over all ranks. rows: of the embedding."""
    if config.lora.rank:
        return lora.parameters(config)
    if config.soft_prompt.enabled:
        return config.soft_prompt.num_tokens * config.shape.hidden_size
    return model.parameters(config, rows)
