"""Checkpoints as Hugging Face folders, and such folders as checkpoints: `deepy export` and `deepy import`.

Needs neither transformers nor a process group. What of theirs is what of ours stands in tables, one file per family.
"""

from neoxargs.train.huggingface.gpt2 import GPT2
from neoxargs.train.huggingface.llama import LLAMA, MISTRAL
from neoxargs.train.huggingface.neox import NEOX

#: In the order in which they are tried.
FAMILIES = {family.architecture: family for family in (NEOX, GPT2, LLAMA, MISTRAL)}
