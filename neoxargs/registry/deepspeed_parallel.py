"""Parallelism in DeepSpeed's JSON: sections `pipeline`, `tensor_parallel` and `expert_parallel`.

train.py has its own tensor parallel layers (`model_parallel_size`); the last two sections are for Hugging Face models
in a user script.
"""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(__name__, "pipeline", "tensor_parallel", "tensor_parallel.tp", "expert_parallel")
