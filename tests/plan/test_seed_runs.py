"""19 runs of a 180-billion-parameter model: the plan's verdicts match all observed outcomes.

The log does not contain the size of the vocabulary or the micro batch that the script used (1 and 32 ran at the same
speed); 29,696 rows and a micro batch of 1 match its parameter counts and rates. The model was built outside
deepspeed.zero.Init.
"""

from __future__ import annotations

import pytest

from neoxargs.hosts.device_table import DEVICES
from neoxargs.hosts.hosts import Resources
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.target import Target
from neoxargs.resolve import File
from neoxargs.resolve.derive import complete
from neoxargs.resolve.merge import draft
from neoxargs.runs.run_spec import RunSpec
from tests.support.reference import read

RUNS: list[dict[str, str]] = read("seed_180b_runs.tsv")

GPT3 = """\
num_layers: 96
hidden_size: 12288
num_attention_heads: 96
seq_length: 2048
max_position_embeddings: 2048
padded_vocab_size: 29696
train_micro_batch_size_per_gpu: 1
checkpoint_activations: true
precision: fp16
train_iters: 100
pipe_parallel_size: 0
"""
TARGET = Target(DEVICES["A100-40GB"], zero_init=False)


def plan_of(run: dict[str, str]) -> Plan:
    gpus, nodes = int(run["gpus"]), int(run["nodes"])
    lines = [GPT3, f"model_parallel_size: {run['model_parallel_size']}", "zero_optimization:"]
    lines.append(f"  stage: {run['stage']}")
    if run["stage"] != "0":  # without ZeRO, DeepSpeed ignores the sections of offloading
        lines += [f"  {part}: {{device: cpu}}" for part in ("offload_param", "offload_optimizer") if run[part]]
    config = complete(draft([File("run.yml", "\n".join(lines))], []), gpus)
    hosts = {f"node{index}": list(range(gpus // nodes)) for index in range(nodes)}
    return make_plan(RunSpec(config, Resources(hosts, "cuda")), TARGET)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join([run["gpus"], run["model_parallel_size"], run["stage"]]))
def test_the_verdict_matches_the_outcome(run: dict[str, str]) -> None:
    ran = bool(run["samples_per_sec"])
    plan = plan_of(run)
    assert plan.fits == ran, (plan.fullest.phases, plan.overflows_in)


def test_the_phase_that_runs_out_of_memory() -> None:
    failed = [(run, plan_of(run).overflows_in) for run in RUNS if not run["samples_per_sec"]]
    assert len(failed) == 11
    for run, phase in failed:
        # fewer than 16 tensor parallel ranks cannot hold even the model; more cannot hold the optimizer state
        few = int(run["model_parallel_size"]) < 16
        assert phase == "construction" if few or run["stage"] == "0" else phase in ("construction", "forward")


def test_parameters_per_rank_include_replicated_ones() -> None:
    """The log counts replicated tables once per tensor parallel rank; `parts` counts them once."""
    by_size = {run["model_parallel_size"]: plan_of(run) for run in RUNS}
    assert sum(by_size["16"].parts.values()) == pytest.approx(174.3e9, rel=0.01)
    for size, plan in by_size.items():
        stage = plan.fullest.stage
        assert stage.parameters * int(size) == sum(plan.parts.values()) + stage.replicated * (int(size) - 1)
