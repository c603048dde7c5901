"""Weights and optimizer states of GPT-NeoX's checkpoints of all years and layouts, under deepy's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.neox_checkpoint.contents import Contents
from neoxargs.problems import Problems
from neoxargs.resolve.config import Config
from neoxargs.train.model.gpt import GPT
from neoxargs.train.neox.loading import weights_of
from neoxargs.train.neox.weights import NeoxWeights
from neoxargs.train.parallel.make import Make
from tests.support.neox_files import Run, write
from tests.support.small_gpt import VOCABULARY, randomised, small

#: A GPT-2, a Pythia and a LLaMA.
GPT2: dict[str, Any] = {"pos_emb": "learned"}
PYTHIA = {"pos_emb": "rotary", "rotary_pct": 0.25, "gpt_j_residual": True, "no_weight_tying": True}
LLAMA = {
    "pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu", "intermediate_size": 132, "num_kv_heads": 2,
    "no_weight_tying": True, "use_bias_in_attn_linear": False, "use_bias_in_mlp": False,
}  # fmt: skip
MODELS = {"gpt2": GPT2, "pythia": PYTHIA, "llama": LLAMA}


def model_of(name: str, **changes: Any) -> tuple[Config, dict[str, Tensor]]:
    """Return a configuration, and random weights by name."""
    config = small(**MODELS[name], **changes)
    torch.manual_seed(0)
    gpt = randomised(GPT(config, VOCABULARY, Make()))
    return config, {key: value.detach().clone() for key, value in gpt.named_parameters()}


def run_of(name: str, config: Config, weights: dict[str, Tensor], **changes: Any) -> Run:
    generator = torch.Generator().manual_seed(1)
    moments = {
        state: {key: torch.rand(value.shape, generator=generator) for key, value in weights.items()}
        for state in ("exp_avg", "exp_avg_sq")
    }
    gated, rms = config.mlp.activation == "swiglu", config.norm.norm == "rmsnorm"
    order = "concatenated" if name == "llama" else "per_head"
    values = {"moments": moments, "gated": gated, "rms": rms, "order": order, "parallel_residual": name == "pythia"}
    return Run(weights, config.shape.num_attention_heads, config.shape.num_kv_heads, **values | changes)


def read(folder: Path, config: Config) -> NeoxWeights:
    found = weights_of(config, folder, None)
    assert found is not None
    return found


LAYOUTS = {
    "one process": {},
    "tp2": {"tensor": 2},
    "pp2": {"pipe": 2},
    "tp2 pp2": {"tensor": 2, "pipe": 2},
    "sequential": {"sequential": True},
    "sequential tp2": {"sequential": True, "tensor": 2},
}


@pytest.mark.parametrize("optimizer", ["fp32", "fp16", "zero1", "zero1-2021", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_every_weight_and_state_is_found(tmp_path: Path, name: str, layout: str, optimizer: str) -> None:
    config, weights = model_of(name)
    data = 3 if optimizer.startswith(("zero", "bf16")) else 1
    run = run_of(name, config, weights, optimizer=optimizer, data=data, **LAYOUTS[layout])
    found = read(write(run, tmp_path / "global_step3").parent, config)
    assert found.why_incomplete == "" and set(found.slices) == set(weights)
    for key, value in weights.items():
        torch.testing.assert_close(found.full_tensor(key), value, rtol=0, atol=1e-7)
        torch.testing.assert_close(found.full_tensor(key, master=True), value, rtol=0, atol=1e-7)
        assert found.states(key) == {"step": 3, "exp_avg": None, "exp_avg_sq": None}
        for state, tensors in run.moments.items():
            assert torch.equal(found.full_tensor(key, state), tensors[key]), (key, state)
    assert found.common["iteration"] == 3 and found.common["consumed_samples"] == 24


@pytest.mark.parametrize("layout", ["one process", "tp2"])
@pytest.mark.parametrize(("name", "names"), [("gpt2", "legacy"), ("pythia", "legacy"), ("llama", "llama")])
def test_names_of_earlier_years(tmp_path: Path, name: str, names: str, layout: str) -> None:
    config, weights = model_of(name)
    run = run_of(name, config, weights, names=names, order="per_head", row_output=True, **LAYOUTS[layout])
    found = read(write(run, tmp_path / "global_step3").parent, config)
    for key, value in weights.items():
        torch.testing.assert_close(found.full_tensor(key), value, rtol=0, atol=1e-7)


def test_a_published_folder_has_its_files_at_the_top_and_no_latest(tmp_path: Path) -> None:
    config, weights = model_of("pythia")
    folder = write(run_of("pythia", config, weights, names="legacy"), tmp_path / "step3")
    assert read(folder, config).common["iteration"] == 3


def test_the_norm_and_output_names_of_early_2021(tmp_path: Path) -> None:
    config, weights = model_of("pythia")
    folder = write(run_of("pythia", config, weights, names="legacy"), tmp_path / "global_step3")
    for number, prefix in ((5, "norm."), (6, "final_linear.")):
        file = folder / f"layer_0{number}-model_00-model_states.pt"
        tensors = {name.removeprefix(prefix): value for name, value in torch.load(file).items()}
        torch.save(tensors, file)
    found = read(folder, config)
    for key in ("final_norm.weight", "final_norm.bias", "output.weight"):
        assert torch.equal(found.full_tensor(key), weights[key])


def test_the_order_of_grouped_queries_is_asked_for_where_no_file_says_it(tmp_path: Path) -> None:
    config, weights = model_of("llama")
    without_version = {"state": {"ds_version": None}}
    folder = write(run_of("llama", config, weights, order="per_head", **without_version), tmp_path / "global_step3")
    with pytest.raises(Problems, match="set load_query_key_value_order: per_head if the checkpoint is older"):
        read(folder, config)
    config, _ = model_of("llama", load_query_key_value_order="per_head")
    found, key = read(folder, config), "layers.1.attention.query_key_value.weight"
    assert torch.equal(found.full_tensor(key), weights[key])
    config, _ = model_of("llama", load_query_key_value_order="concatenated")
    assert not torch.equal(read(folder, config).full_tensor(key), weights[key])


def test_row_parallel_biases_are_summed_only_with_the_parallel_residual(tmp_path: Path) -> None:
    config, weights = model_of("pythia")
    folder = write(run_of("pythia", config, weights, tensor=2), tmp_path / "global_step3")
    key = "layers.0.attention.dense.bias"
    torch.testing.assert_close(read(folder, config).full_tensor(key), weights[key])
    sequential = small(**PYTHIA | {"gpt_j_residual": False})
    torch.testing.assert_close(read(folder, sequential).full_tensor(key), weights[key] / 2)


def test_copies_that_differ_between_ranks_are_averaged(tmp_path: Path) -> None:
    config, weights = model_of("gpt2")
    folder = write(run_of("gpt2", config, weights, tensor=2), tmp_path / "global_step3")
    file = folder / "layer_02-model_01-model_states.pt"
    tensors = torch.load(file)
    tensors["input_layernorm.weight"] += 1
    torch.save(tensors, file)
    key = "layers.0.input_layernorm.weight"
    torch.testing.assert_close(read(folder, config).full_tensor(key), weights[key] + 0.5)


def test_the_state_of_a_tied_embedding_on_the_last_stage_is_not_counted_twice(tmp_path: Path) -> None:
    """DeepSpeed's last stage has a copy of the whole embedding module, before the stage's own layers."""
    config, weights = model_of("gpt2")
    run = run_of("gpt2", config, weights, optimizer="fp32", pipe=2)
    folder = write(run, tmp_path / "global_step3")
    file = folder / "mp_rank_01_model_states.pt"
    state = torch.load(file, weights_only=False)
    optimizer = state["optimizer"]
    first = [run.moments["exp_avg"][key] for key in ("embedding.word_embeddings.weight", "positions.table")]
    copies = {i: {"step": 0, "exp_avg": value, "exp_avg_sq": value} for i, value in enumerate(first)}
    optimizer["state"] = copies | {number + 2: value for number, value in optimizer["state"].items()}
    for group in optimizer["param_groups"]:
        group["params"] = [number + 2 for number in group["params"]]
    optimizer["param_groups"][0]["params"][:0] = [0, 1]
    torch.save(state, file)
    found = read(folder, config)
    for key in weights:
        assert torch.equal(found.full_tensor(key, "exp_avg"), run.moments["exp_avg"][key]), key


def test_the_loss_scale_of_fp16(tmp_path: Path) -> None:
    config, weights = model_of("gpt2")
    folder = write(run_of("gpt2", config, weights, optimizer="fp16"), tmp_path / "global_step3")
    assert read(folder, config).loss_scale["cur_scale"] == 4096


def test_other_sizes_are_named_with_the_value_to_write(tmp_path: Path) -> None:
    _, weights = model_of("llama")
    other = {"num_layers": 3, "intermediate_size": 99, "use_bias_in_mlp": True, "num_kv_heads": 4}
    folder = write(run_of("llama", *model_of("llama")), tmp_path / "global_step3")
    assert weights
    with pytest.raises(Problems) as raised:
        weights_of(small(**LLAMA | other), folder, None)
    hints = [problem.hint.split(",")[0] for problem in raised.value.problems]
    expected = ["num_layers: 2", "num_kv_heads: 2", "intermediate_size: 132", "use_bias_in_mlp: false"]
    assert hints == [f"set {name}" for name in expected]


def test_our_own_checkpoints_are_not_taken_for_gpt_neox_s(tmp_path: Path) -> None:
    config, weights = model_of("gpt2")
    folder = write(run_of("gpt2", config, weights), tmp_path / "global_step3")
    assert Contents.at(tmp_path, None) is not None
    (folder / "layout-mp_rank_00.json").write_text("{}")
    assert Contents.at(tmp_path, None) is None


@pytest.mark.parametrize("tied", [False, True])
def test_the_norms_show_what_gpt_j_tied_meant(tmp_path: Path, tied: bool) -> None:
    """Whichever meaning it had: the norm that the model did not use has its first values."""
    config, weights = model_of("pythia")
    if tied:
        weights |= {f"layers.{layer}.post_attention_layernorm.weight": torch.ones(32) for layer in range(2)}
    folder = write(run_of("pythia", config, weights), tmp_path / "global_step3")
    matching, other = (small(**PYTHIA, gpt_j_tied=value) for value in (tied, not tied))
    assert any("post_attention" in name for name in read(folder, matching).slices) != tied
    with pytest.raises(Problems, match=f"contradicts gpt_j_tied {str(not tied).lower()}"):
        read(folder, other)
