"""LoRA: which matrices can have adapters, and what adapters cannot be combined with."""

from __future__ import annotations

from neoxargs.base.problems import listed
from neoxargs.facts.lora import ALL, NAMES, adapted_parts
from neoxargs.facts.model import GATED
from neoxargs.resolve.rules.rule import Findings, check, refuse


@check
def lora_has_targets(lora__rank: int, lora__targets: list[str]) -> Findings:
    """The model is frozen, and only adapters are trained. Without a matrix that has adapters, the run would train
    nothing.

        lora: {rank: 8, targets: []}
    """
    if lora__rank and not lora__targets:
        what = "lora.targets is empty, so nothing would be trained"
        yield refuse(what, "set lora.targets to [all-linear]", ["lora.targets"])


@check
def lora_targets_do_not_overlap(lora__rank: int, lora__targets: list[str], activation: str) -> Findings:
    """A matrix has either one adapter for all of its rows, or a separate adapter for each part that is named. Two
    adapters for the same rows could not be written in peft's format.

        lora: {rank: 8, targets: [query_key_value, v_proj]}
    """
    found = adapted_parts(lora__targets, activation in GATED) if lora__rank else {}
    for module, parts in found.items():
        if ALL in parts and len(parts) > 1:
            inside = {name for name, (other, part) in NAMES.items() if other == module and part != ALL}
            named = listed([name for name in lora__targets if name in inside], "and")
            what = f"lora.targets selects both the whole matrix {module} and part of it: {named}"
            advice = f"remove {named}, or list each part of the matrix instead of the whole matrix"
            yield refuse(what, advice, ["lora.targets"])
            return


@check
def lora_gate_needs_gated_activation(lora__rank: int, lora__targets: list[str], activation: str) -> Findings:
    """gate_proj is the matrix that computes the gate of a gated MLP. An MLP without a gate has no such matrix, so there
    would be no adapter.

        lora: {rank: 8, targets: [gate_proj]}
        activation: gelu
    """
    if lora__rank and "gate_proj" in lora__targets and activation not in GATED:
        what = f"lora.targets contains gate_proj, but the MLP has no gate: activation is {activation}"
        yield refuse(what, "remove gate_proj", ["lora.targets", "activation"])


@check
def lora_excludes_experts(lora__rank: int, moe_num_experts: int) -> Findings:
    """The matrices of all experts in a layer are stored in one tensor, and peft has no adapters for such a tensor. A
    frozen router would also keep its load-balancing loss, which then could change only the adapters of attention.

        lora: {rank: 8}
        moe_num_experts: 4
    """
    if lora__rank and moe_num_experts != 1:
        yield refuse("lora and moe_num_experts cannot be combined", "remove lora or moe_num_experts")


@check
def lora_excludes_shared_layers(lora__rank: int, num_unique_layers: int | None, num_layers: int) -> Findings:
    """Layers that share weights would also share adapters. In a Hugging Face model, and therefore in peft, every layer
    has its own weights and adapters.

        lora: {rank: 8}
        num_unique_layers: 1
    """
    if lora__rank and num_unique_layers not in (None, num_layers):
        about = ["lora.rank", "num_unique_layers"]
        yield refuse("lora and num_unique_layers cannot be combined", "remove num_unique_layers", about)


@check
def lora_excludes_mup(lora__rank: int, use_mup: bool) -> Findings:
    """muP scales initial values and learning rates by the ratio of a weight's width to its width in the base model. The
    base model has no adapters, so this ratio is not known for them.

        lora: {rank: 8}
        use_mup: true
        base_shapes_file: shapes.yml
    """
    if lora__rank and use_mup:
        yield refuse("lora and use_mup cannot be combined", "remove use_mup")


@check
def lora_excludes_soft_prompt(lora__rank: int, soft_prompt_tuning__enabled: bool) -> Findings:
    """lora and soft_prompt_tuning both freeze the model, and each trains its own weights. Exported adapters could not
    contain the prompt with which they were trained.

        lora: {rank: 8}
        soft_prompt_tuning: {enabled: true}
    """
    if lora__rank and soft_prompt_tuning__enabled:
        yield refuse("lora and soft_prompt_tuning cannot be combined", "remove one of them")
