"""A model that LoRA or a soft prompt leaves frozen: where it comes from, and what does not work with it."""

from __future__ import annotations

from neoxargs.facts.optimizers import is_onebit
from neoxargs.resolve.rules.rule import Findings, check, refuse, warn


@check
def frozen_model_has_weights(
    lora__rank: int, soft_prompt_tuning__enabled: bool, base_checkpoint: str | None, load: str | None
) -> Findings:
    """The frozen model would keep its random initial weights. Adapters or a prompt cannot turn random weights into a
    language model.

        lora: {rank: 8}
    """
    if (lora__rank or soft_prompt_tuning__enabled) and not base_checkpoint and not load:
        name = "lora.rank" if lora__rank else "soft_prompt_tuning.enabled"
        what = "the frozen model has random weights, because neither base_checkpoint nor load is set"
        yield warn(what, "set base_checkpoint to a folder with the model's checkpoint", [name])


@check
def base_checkpoint_needs_frozen_model(
    lora__rank: int, soft_prompt_tuning__enabled: bool, base_checkpoint: str | None
) -> Findings:
    """base_checkpoint provides only weights that are not trained. A run that trains the whole model would therefore
    start from random weights.

        base_checkpoint: checkpoints
    """
    if base_checkpoint and not lora__rank and not soft_prompt_tuning__enabled:
        what = "base_checkpoint is set, but the run trains all weights: neither lora nor soft_prompt_tuning is set"
        advice = f"set load: {base_checkpoint} and finetune: true instead, or add lora: {{rank: 16}}"
        yield refuse(what, advice, ["base_checkpoint"])


@check
def frozen_model_excludes_onebit(
    lora__rank: int, soft_prompt_tuning__enabled: bool, optimizer__type: str | None
) -> Findings:
    """A checkpoint contains only what is trained, and DeepSpeed cannot load a checkpoint without the frozen weights.
    deepy's own loader can load such a checkpoint, but not the state of 1-bit optimizers.

        lora: {rank: 8}
        optimizer: {type: OneBitAdam, params: {lr: 0.001}}
    """
    if (lora__rank or soft_prompt_tuning__enabled) and is_onebit(optimizer__type or ""):
        name = "lora.rank" if lora__rank else "soft_prompt_tuning.enabled"
        what = f"optimizer.type ({optimizer__type}) does not support training only part of the model"
        yield refuse(what, "set optimizer.type to Adam", [name, "optimizer.type"])


@check
def frozen_model_stays_off_nvme(lora__rank: int, zero_optimization__offload_param__device: str) -> Findings:
    """DeepSpeed swaps weights to NVMe together with their optimizer state. Frozen weights have no such state, so the
    ranks would stop with an error.

        lora: {rank: 8}
        zero_optimization: {stage: 3, offload_param: {device: nvme, nvme_path: swap}}
    """
    if lora__rank and zero_optimization__offload_param__device == "nvme":
        what = "zero_optimization.offload_param.device (nvme) does not work with lora, which freezes the model"
        yield refuse(what, "set zero_optimization.offload_param.device to cpu")
