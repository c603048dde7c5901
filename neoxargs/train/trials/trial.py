"""A trial: a run of some iterations, with what is to be observed."""

from __future__ import annotations

from typing import NamedTuple


class Trial(NamedTuple):
    """A run to observe."""

    name: str
    arguments: list[str]
    """As of `script_arguments`."""
    reference: str = ""
    """Folder of a checkpoint to compare the final weights with; empty for none."""
    in_plain_torch: bool = False
    """Train with torch's own optimizer and autograd instead of DeepSpeed's engine."""
    with_properties: bool = False
    """Whether to try the properties of the model afterwards."""
