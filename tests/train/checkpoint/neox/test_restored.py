"""What check says is restored of a GPT-NeoX checkpoint is what the trainer then has, tensor by tensor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.checks.checkpoint.neox import neox_checkpoint
from neoxargs.resolve import resolve
from neoxargs.targets.wire_format import script_arguments
from neoxargs.train.deepspeed.optimizer_layout import optimizer_layout
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.process import setup
from tests.support.deepspeed_version import HAS_ONEBIT
from tests.support.loaded_engine import loaded_arguments
from tests.support.neox_files import YAML, Run, weights, write
from tests.support.ranks import run_ranks

#: `optimizer.type` -> its states in GPT-NeoX, in our names' order; in ours; and the key of its step count.
OPTIMIZERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "Adam": (("exp_avg", "exp_avg_sq"), ("exp_avg", "exp_avg_sq"), "step"),
    "OneBitAdam": (("exp_avg", "exp_avg_sq"), ("exp_avg", "exp_avg_sq"), "step"),
    "Lion": (("exp_avg",), ("momentum",), ""),
    "madgrad_wd": (("grad_sum_sq", "s", "x0"), ("squares", "total", "start"), "k"),
}
Tensors = dict[str, dict[str, Any]]


def state_after_loading(arguments: list[str]) -> Tensors:
    """Return each weight and its optimizer states after the run has loaded, for `run_ranks` with one rank."""
    built = loaded_arguments(arguments, setup.start("gloo", seed=1)).built
    layout = optimizer_layout(built.deepspeed)
    assert layout is not None
    found: Tensors = {name: {"weight": w.detach().clone()} for name, w in named_weights(built.deepspeed.module).items()}
    for piece in layout.pieces:
        part, shape = slice(piece.start, piece.start + piece.length), found[piece.name]["weight"].shape
        tensor = layout.tensors[piece.tensor]
        for state, value in layout.optimizer.state[tensor].items():
            whole = isinstance(value, torch.Tensor) and value.dim()
            found[piece.name][state] = value.flatten()[part].view(shape).clone() if whole else int(value)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("there", ["fp32", "zero1", "fp16-unfused"])
@pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS if HAS_ONEBIT or kind != "OneBitAdam"])
def test_the_optimizer_has_what_check_names(tmp_path: Path, kind: str, there: str) -> None:
    names, ours, counter = OPTIMIZERS[kind]
    generator = torch.Generator().manual_seed(1)

    def values() -> dict[str, torch.Tensor]:
        return {name: torch.rand(value.shape, generator=generator) for name, value in weights().items()}

    model, moments = values(), {name: values() for name in names}
    run = Run(model, 4, 4, moments, order="per_head", parallel_residual=True, optimizer=there, counter=counter or "t")
    write(run, tmp_path / "theirs" / "global_step3")
    file = tmp_path / "my.yml"
    params = {"OneBitAdam": "lr: 0.01, freeze_step: 9"}.get(kind, "lr: 0.01")
    text = YAML.replace("load: theirs", f"load: {tmp_path / 'theirs'}\nrun_dir: {tmp_path / 'out'}")
    file.write_text(text.replace("{type: Adam, params: {lr: 0.01}}", f"{{type: {kind}, params: {{{params}}}}}"))
    config = resolve([file], ["pipe_parallel_size=0"], gpus=1)
    (listed,) = neox_checkpoint(config)
    said = re.search(r"optimizer state at step (\d+) \((.*?)\)\n", listed.what)
    modules = re.search(r"\n  weights: (.*)\n", listed.what)
    assert said and modules and listed.severity == "warning"
    loaded = run_ranks(state_after_loading, 1, script_arguments(config))[0]
    kinds = {re.sub(r"^layers\.\d+\.", "", name) for name in loaded}
    named = re.findall(r"([\w.]+) \(([\w, ]+)\)", modules[1])
    assert {f"{module}.{each}" for module, some in named for each in some.split(", ")} == kinds
    assert said[2].removeprefix("fp32 copy, ").split(", ") == list(ours)
    for name, tensors in loaded.items():
        assert torch.equal(tensors["weight"], model[name]), name
        for theirs, state in zip(names, ours, strict=True):
            assert torch.equal(tensors[state], moments[theirs][name]), (name, state)
        rest = {state: value for state, value in tensors.items() if state not in ("weight", *ours)}
        assert rest.get("step", 3) == 3 == int(said[1]) or not counter, name


@pytest.mark.parametrize(
    ("kind", "states", "changes", "why"),
    [
        ("Adam", ("exp_avg",), [], "it is that of lion, but this run uses optimizer.type Adam"),
        ("Lion", ("exp_avg", "exp_avg_sq"), [], "it is that of adam, but this run uses optimizer.type Lion"),
        ("Adam", ("grad_sum_sq", "s", "x0"), [], "it is that of madgrad_wd, but this run uses optimizer.type Adam"),
        ("madgrad_wd", ("grad_sum_sq", "s"), [], "it lacks x0, but this run uses optimizer.type madgrad_wd"),
        ("SM3", ("accumulator_0",), [], "SM3 has an accumulator for each row and column"),
        ("SGD", ("momentum_buffer",), [], "GPT-NeoX's SGD (MuSGD) is muP's"),
        ("Lamb", ("exp_avg", "exp_avg_sq"), [], "it is that of adam, but this run uses optimizer.type Lamb"),
        ("Adam", ("qmap1", "state1"), [], "bitsandbytes' optimizers store it in 8 bits"),
        ("Adam", ("exp_avg", "exp_avg_sq"), ["optimizer.params.amsgrad=true"], "it lacks the largest second moments"),
        ("Adam", ("exp_avg", "exp_avg_sq"), ["use_mup=true", "base_shapes_file=my.yml"],
         "with use_mup, GPT-NeoX's optimizers (MuAdam, MuSGD) order the weights by their growth"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("there", ["fp32", "zero1"])
def test_a_state_of_another_optimizer_is_an_error_with_the_reason(
    tmp_path: Path, kind: str, states: tuple[str, ...], changes: list[str], why: str, there: str
) -> None:
    run = Run(weights(), 4, 4, dict.fromkeys(states, weights()), order="per_head", optimizer=there)
    write(run, tmp_path / "theirs" / "global_step3")
    file = tmp_path / "my.yml"
    text = YAML.replace("load: theirs", f"load: {tmp_path / 'theirs'}").replace("type: Adam", f"type: {kind}")
    file.write_text(text + "weight_decay: 0\n" * (kind == "SM3"))
    error, listed = neox_checkpoint(resolve([file], changes, gpus=1))
    assert (error.id, error.severity) == ("checkpoint-without-optimizer", "error") and why in error.what
    assert "exp_avg" not in listed.what
