"""LoRA: which matrices can have adapters, and what adapters cannot be combined with."""

from __future__ import annotations

from neoxargs.base.problems import listed
from neoxargs.facts.lora import ALL, NAMES, adapted_parts
from neoxargs.facts.model import GATED
from neoxargs.resolve.rules.rule import Finding, check, refuse


@check
def lora_has_targets(lora__rank: int, lora__targets: list[str]) -> Finding | None:
    """The model is frozen, and only adapters are trained. Without a matrix that has adapters, the run would train
    nothing.

        lora: {rank: 8, targets: []}
    """
    if not lora__rank or lora__targets:
        return None
    return refuse(
        "lora.targets is empty, so nothing would be trained", "set lora.targets to [all-linear]", ["lora.targets"]
    )


@check
def lora_targets_do_not_overlap(lora__rank: int, lora__targets: list[str], activation: str) -> Finding | None:
    """A matrix has either one adapter for all of its rows, or a separate adapter for each part that is named. Two
    adapters for the same rows could not be written in peft's format.

        lora: {rank: 8, targets: [query_key_value, v_proj]}
    """
    found = adapted_parts(lora__targets, activation in GATED) if lora__rank else {}
    for module, parts in found.items():
        if ALL in parts and len(parts) > 1:
            inside = [
                name for name in lora__targets if NAMES.get(name, ("", ALL))[0] == module and NAMES[name][1] != ALL
            ]
            named = listed(inside, "and")
            what = f"lora.targets selects both the whole matrix {module} and part of it: {named}"
            advice = f"remove {named}, or list each part of the matrix instead of the whole matrix"
            return refuse(what, advice, ["lora.targets"])
    return None


@check
def lora_gate_needs_gated_activation(lora__rank: int, lora__targets: list[str], activation: str) -> Finding | None:
    """gate_proj is the matrix that computes the gate of a gated MLP. An MLP without a gate has no such matrix, so there
    would be no adapter.

        lora: {rank: 8, targets: [gate_proj]}
        activation: gelu
    """
    if not lora__rank or "gate_proj" not in lora__targets or activation in GATED:
        return None
    what = f"lora.targets contains gate_proj, but the MLP has no gate: activation is {activation}"
    return refuse(what, "remove gate_proj", ["lora.targets", "activation"])


@check
def lora_excludes_experts(lora__rank: int, moe_num_experts: int) -> Finding | None:
    """The matrices of all experts in a layer are stored in one tensor, and peft has no adapters for such a tensor. A
    frozen router would also keep its load-balancing loss, which then could change only the adapters of attention.

        lora: {rank: 8}
        moe_num_experts: 4
    """
    if not lora__rank or moe_num_experts == 1:
        return None
    about = ["lora.rank", "moe_num_experts"]
    return refuse("lora and moe_num_experts cannot be combined", "remove lora or moe_num_experts", about)


@check
def lora_excludes_shared_layers(lora__rank: int, num_unique_layers: int | None, num_layers: int) -> Finding | None:
    """Layers that share weights would also share adapters. In a Hugging Face model, and therefore in peft, every layer
    has its own weights and adapters.

        lora: {rank: 8}
        num_unique_layers: 1
    """
    if not lora__rank or num_unique_layers in (None, num_layers):
        return None
    about = ["lora.rank", "num_unique_layers"]
    return refuse("lora and num_unique_layers cannot be combined", "remove num_unique_layers", about)


@check
def lora_excludes_mup(lora__rank: int, use_mup: bool) -> Finding | None:
    """muP scales initial values and learning rates by the ratio of a weight's width to its width in the base model. The
    base model has no adapters, so this ratio is not known for them.

        lora: {rank: 8}
        use_mup: true
        base_shapes_file: shapes.yml
    """
    if not lora__rank or not use_mup:
        return None
    return refuse("lora and use_mup cannot be combined", "remove use_mup", ["lora.rank", "use_mup"])


@check
def lora_excludes_soft_prompt(lora__rank: int, soft_prompt_tuning__enabled: bool) -> Finding | None:
    """lora and soft_prompt_tuning both freeze the model, and each trains its own weights. Exported adapters could not
    contain the prompt with which they were trained.

        lora: {rank: 8}
        soft_prompt_tuning: {enabled: true}
    """
    if not lora__rank or not soft_prompt_tuning__enabled:
        return None
    about = ["lora.rank", "soft_prompt_tuning.enabled"]
    return refuse("lora and soft_prompt_tuning cannot be combined", "remove one of them", about)
