"""What a run can be for, and the parts of a configuration that follow from it."""

from __future__ import annotations

from neoxargs.base.record import Record


class Goal(Record):
    """One kind of training.

    kind: its row in the table of usual learning rates; "" for the rate of the model's own training.
    needs_checkpoint: whether it starts from weights. files: which files of `deepy data --chat` it needs; none for text
    or token files. keys: what only this goal sets.
    """

    meaning: str
    kind: str = ""
    needs_checkpoint: bool = True
    files: tuple[str, ...] = ()
    keys: str = ""


_FROM_WEIGHTS = """\
# The weights to start from; finetune leaves out their optimizer state and starts at iteration 0. To continue this run
# after an interruption, set load to the folder in save, and finetune to false.
load: {checkpoint}
finetune: true
"""
GOALS = {
    "pretrain": Goal("train a new model", needs_checkpoint=False, keys="""\
# The same folder as save: the command that starts the run also continues it from its newest checkpoint.
load: {save}
"""),
    "continue": Goal("continue the run of a checkpoint, with its optimizer state and schedule", keys="""\
# The checkpoint to continue. Once this run has saved one of its own, set load to the folder in save.
load: {checkpoint}
"""),
    "finetune": Goal("train a checkpoint on other text", "finetuning", keys=_FROM_WEIGHTS),
    "lora": Goal("train adapters of a checkpoint that stays as it is (LoRA)", "finetuning with adapters", keys="""\
# The model, which stays frozen, and its adapters: a larger rank learns more and costs more; the output of adapters is
# multiplied by alpha / rank, so change both together.
base_checkpoint: {checkpoint}
lora: {{rank: 16, alpha: 32}}
# The same folder as save: the command that starts the run also continues it.
load: {save}
"""),
    "chat": Goal("train a checkpoint on conversations", "finetuning", files=("training", "validation"), keys=f"""\
# Whole conversations share a sample and do not see each other; every trained token counts alike.
pack_impl: best_fit
loss_average: tokens

{_FROM_WEIGHTS}"""),
    "dpo": Goal("prefer some answers over others (DPO)", "DPO", files=("chosen", "rejected"), keys=f"""\
# Direct preference optimisation: each sample is a pair. A larger beta keeps the model closer to where it starts.
train_impl: dpo
dataset_impl: pairwise
pack_impl: unpacked
dpo_beta: 0.1

{_FROM_WEIGHTS}"""),
}  # fmt: skip
