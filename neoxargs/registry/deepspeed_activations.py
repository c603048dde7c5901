"""Activation recomputation in DeepSpeed's JSON: section `activation_checkpointing`."""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(__name__, "activation_checkpointing")
