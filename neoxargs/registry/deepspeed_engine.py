"""DeepSpeed's engine: switches, gradients, and other kinds of engines."""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry import data_file
from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, NonNegative, Positive

CommunicationType = Literal["fp16", "bf16", "fp32"]


class Gradients(Group, origin="DSC", effect="engine"):
    """How gradients are processed between the backward pass and the optimizer step."""

    gradient_clipping: NonNegative = param(0.0, receiver_default=1.0)
    """Maximum norm of the gradient of all weights; a larger gradient is scaled down to this norm. 0 turns clipping off.
    1.0 is usual for GPTs."""

    gradient_allreduce_op: Literal["mean", "sum"] = param("mean")
    """Whether the gradients of the data parallel ranks are averaged or summed. `sum` cannot be combined with ZeRO 3."""

    prescale_gradients: bool = param(False)
    """Divide gradients by the number of ranks before they are summed instead of after. This avoids overflow in fp16,
    but small gradients may vanish."""

    gradient_predivide_factor: Positive = param(1.0)
    """Without `prescale_gradients`: divide gradients by this number before they are summed, and by the remaining factor
    of the number of ranks afterwards. This avoids overflow in fp16 on many GPUs."""

    communication_data_type: CommunicationType | None = param(None)
    """Data type used to communicate gradients. If not set, train.py communicates sums in fp32 in fp32 (see
    `data_types.grad_accum_dtype`), and other gradients in the data type of the computation. `fp32_allreduce` sets it to
    fp32."""

    seq_parallel_communication_data_type: CommunicationType | None = param(
        "fp32",
        effect="none",
        no_effect_reason="it is for DeepSpeed's own sequence parallelism, which train.py does not use",
    )
    """Data type used to communicate gradients among sequence parallel ranks."""

    sparse_gradients: bool = param(
        False,
        effect="none",
        no_effect_reason="DeepSpeed uses it only for torch.nn.Embedding(sparse=True), which train.py does not contain",
    )
    """Communicate only the touched rows of embedding gradients; for layers built with torch's `sparse=True`."""

    managed_gradient_accumulation: bool = param(
        True,
        effect="not built",
        refused=(
            "the training script would have to count micro batches and divide the loss by their number itself; "
            "train.py leaves this to DeepSpeed, which also refuses false with pipeline parallelism"
        ),
        instead="set the micro batches of a step with gradient_accumulation_steps",
    )
    """DeepSpeed counts micro batches and takes an optimizer step after the last one; false leaves the counting to the
    training script."""

    disable_allgather: bool = param(False, effect="none", no_effect_reason="DeepSpeed accepts it but does not read it")
    """Retired: DeepSpeed still accepts it but ignores it."""


class Engine(Group, origin="DSC", effect="engine"):
    """General settings of DeepSpeed's engine."""

    deepspeed: bool = param(
        True,
        to=("train",),
        effect="not built",
        refused="train.py trains only with DeepSpeed's engine, and GPT-NeoX refuses false as well",
        instead="set zero_stage: 0 to train without ZeRO",
    )
    """Train with DeepSpeed. Always true: train.py has no other engine."""

    deepspeed_extra_args: dict[str, Any] | None = param(None)
    """Keys to add unchanged to DeepSpeed's JSON, for keys that deepy does not know. Set all other keys in their own
    section, where they are checked."""

    zero_allow_untested_optimizer: bool = param(False)
    """Allow ZeRO with an optimizer that DeepSpeed has not been tested with."""

    zero_force_ds_cpu_optimizer: bool = param(True)
    """With the optimizer's state on the CPU, refuse optimizers other than DeepSpeed's own CPU ones."""

    use_data_before_expert_parallelism: bool = param(
        False,
        effect="none",
        no_effect_reason="train.py divides the experts of its own model, according to the moe_* parameters",
    )
    """Order the ranks with data parallelism inside expert parallelism instead of the other way round."""

    dataloader_drop_last: bool = param(
        False, effect="none", no_effect_reason="train.py loads its data itself, and every batch is full"
    )
    """Drop an incomplete last batch, for data loaders that DeepSpeed builds itself."""

    graph_harvesting: bool = param(False)
    """Record sequences of short GPU kernels as CUDA graphs."""

    vocabulary_size: Count | None = param(None, effect="log")
    """Size of the vocabulary; DeepSpeed only warns if it is not a multiple of 8."""

    curriculum_seqlen: Natural = param(
        0,
        to=("train",),
        effect="none",
        no_effect_reason="it is set only by curriculum_learning, which train.py does not support",
    )
    """Current sequence length of `curriculum_learning`. Set by the training loop."""

    datastates_ckpt: bool | dict[str, Any] = param(False, effect="checkpoint")
    """Settings of the DataStates checkpoint writer (package datastates-llm), which writes in the background; false
    writes with torch."""


data_file.declare(__name__, "compile", "hybrid_engine")
