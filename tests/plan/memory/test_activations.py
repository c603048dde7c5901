"""Activations of micro batches in flight."""

from __future__ import annotations

from tests.support.plans import planned


def test_earlier_stages_have_more_micro_batches_in_flight(middle: str) -> None:
    changes = ["pipe_parallel_size=4", "gradient_accumulation_steps=8", "checkpoint_activations=true"]
    plan = planned(middle, *changes, gpus=4)
    stored = [rank.phases["forward"]["activations"] for rank in plan.stage_memory]
    assert stored == sorted(stored, reverse=True) and len(set(stored)) == 4


def stored(file: str, *changes: str, dropout: float = 0) -> int:
    """Bytes of activations on an H100."""
    given = [f"attention_dropout={dropout}", "precision=bfloat16", *changes]
    plan = planned(file, *given, gpus=1, device="H100")
    return plan.stage_memory[0].phases["forward"]["activations"]


def test_flash_layers_never_store_scores(middle: str) -> None:
    step_by_step, flash = "attention_softmax_in_fp32=true", "attention_config=[[[flash], all]]"
    assert stored(middle, step_by_step) > stored(middle)
    assert stored(middle, step_by_step, flash) == stored(middle)
    half = stored(middle, step_by_step, "attention_config=[[[flash, global], all]]")
    assert stored(middle) < half < stored(middle, step_by_step)


def test_a_gpu_computes_alibi_in_its_kernel(middle: str) -> None:
    plain, alibi = "pos_emb=none", "pos_emb=alibi"
    assert stored(middle, alibi) == stored(middle, plain)
    # Its kernel has no dropout: the bias is a tensor then, one for all layers.
    config = planned(middle, gpus=1, device="H100").config
    bias = config.shape.num_attention_heads * config.shape.seq_length**2 * 2
    assert stored(middle, alibi, dropout=0.1) - stored(middle, plain, dropout=0.1) == bias
