"""Sampling text from a trained model, and evaluating it on tasks."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, Natural, NonNegative


class Generation(Group, origin="NeoX"):
    """What `generate.py` reads, and where it writes."""

    text_gen_type: Literal["unconditional", "input-file", "interactive", "precompute"] | None = param(None)
    temperature: NonNegative = param(0.0)
    top_p: Fraction = param(0.0)
    top_k: Natural = param(0)
    maximum_tokens: Count = param(64)
    prompt_end: str = param("\n")
    num_samples: Natural = param(1)
    sample_input_file: str | None = param(None)
    sample_output_file: str | None = param("samples.txt", renamed_from="genfile")
    return_logits: bool = param(False)
    recompute: bool = param(False)
    precompute_model_name: str | None = param(None)
    eval_tasks: list[str] | None = param(None)
    eval_results_prefix: str = param("")
    greedy: bool = param(False, becomes={True: {"temperature": 0.0, "top_k": 0, "top_p": 0.0}, False: {}})
