"""Conversion between checkpoints and Hugging Face folders: `deepy export` and `deepy import`.

Needs neither transformers nor a process group. One file per family has the table of corresponding keys and weights.
"""

from neoxargs.train.huggingface.gpt2 import GPT2
from neoxargs.train.huggingface.llama import LLAMA, MISTRAL
from neoxargs.train.huggingface.neox import NEOX

#: Architecture -> family, in the order in which `export` tries them.
FAMILIES = {family.architecture: family for family in (NEOX, GPT2, LLAMA, MISTRAL)}
