"""Conversion between checkpoints and Hugging Face folders: `deepy export` and `deepy import`.

Needs neither transformers nor a process group. families/ has a file per family, with the table of corresponding keys
and weights.
"""

from neoxargs.convert.huggingface.families.table import FAMILIES

__all__ = ["FAMILIES"]
