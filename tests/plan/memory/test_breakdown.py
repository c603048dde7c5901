"""Memory by phase: where buckets, logits and activations are alive."""

from __future__ import annotations

import pytest

from neoxargs.plan.command import plan_of
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.memory.breakdown import RankMemory
from tests.support.paths import CONFIGS
from tests.support.plans import planned

COMMON = ("precision=fp16", "zero_optimization.stage=1", "zero_optimization.reduce_bucket_size=100000000")


def first_stage(path: str, *changes: str) -> RankMemory:
    return planned(path, *COMMON, *changes, device="A100", assume=["workspace=0"]).stage_memory[0]


def test_a_pipeline_reduces_gradients_after_its_last_backward_pass(middle: str) -> None:
    """DeepSpeed's ZeRO-1 allocates its bucket for the backward pass, and frees it before the step."""
    bucket = 2 * 100_000_000
    plain, piped = first_stage(middle), first_stage(middle, "pipe_parallel_size=2", "gradient_accumulation_steps=2")
    assert plain.phases["backward"]["buffers"] == bucket
    step = plain.stage.parameters // 8 * (4 + 2)
    assert abs(plain.phases["step"]["buffers"] - step) <= 6
    between_stages = piped.phases["forward"]["buffers"]
    assert piped.phases["backward"]["buffers"] == between_stages
    assert piped.phases["step"]["buffers"] == max(bucket, piped.stage.parameters // 4 * 6)


def test_evaluation_keeps_one_layer_and_saving_keeps_states_only(middle: str) -> None:
    rank = first_stage(middle)
    states = {part: rank.phases["forward"][part] for part in ("weights", "gradients", "optimizer")}
    for phase in ("evaluation", "saving"):
        assert states.items() <= rank.phases[phase].items()
    layers = len(rank.stage.layers)
    assert 0 < rank.phases["evaluation"]["activations"] <= rank.phases["forward"]["activations"] / layers * 1.01
    assert 0 < rank.phases["evaluation"]["logits"] < rank.phases["forward"]["logits"]
    assert rank.total("saving") == sum(states.values()) + rank.phases["saving"]["overhead"]


#: Files of models and layouts -> MiB of activations and logits at their peak on the first stage, with selective
#: recomputation. python bench/plan_against_trace.py --set checkpoint_activations=selective traces them.
TRACED = {
    ("pythia-1b", "tp2-pp2"): 1394.6,
    ("gpt-3-1.3b", "tp2-pp2"): 2404.4,
    ("llama-2-7b", "tp2-pp2"): 14144.2,
    ("pythia-1b", "data-parallel"): 6067.9,
}


@pytest.mark.parametrize("names", TRACED)
def test_selective_recomputation_holds_outputs_until_a_layer_ends(names: tuple[str, str]) -> None:
    model, layout = names
    files = [str(CONFIGS / folder / f"{name}.yml") for folder, name in (("models", model), ("layouts", layout))]
    changes = ["checkpoint_activations=selective", "precision=bfloat16"]
    changes += ["sequence_parallel=false"] * layout.startswith("tp")  # as they were traced
    plan = plan_of(PlanOptions(files, changes, gpus=64, device="H100"))
    phases = plan.stage_memory[0].phases.values()
    most = max(parts.get("activations", 0) + parts.get("logits", 0) for parts in phases)
    assert most / 2**20 == pytest.approx(TRACED[names], rel=0.01)
