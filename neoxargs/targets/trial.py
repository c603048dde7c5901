"""A trial of `deepy verify` as a line of JSON, from the command to the ranks that run it."""

from __future__ import annotations

import json
from typing import NamedTuple


class Trial(NamedTuple):
    """A run of some iterations, with what is to be observed."""

    name: str
    arguments: list[str]
    """As of `script_arguments`."""
    reference: str = ""
    """Folder of a run whose final weights are compared with this one's; empty for none."""
    in_plain_torch: bool = False
    """Train with torch's own optimizer and autograd instead of DeepSpeed's engine."""
    with_properties: bool = False
    """Whether to try all properties of the model, not only that an evaluation draws nothing."""

    def line(self) -> str:
        return json.dumps(self._asdict()) + "\n"

    @classmethod
    def of(cls, line: str) -> Trial:
        """Return the trial of a line."""
        return cls(**json.loads(line))
