"""Weights and optimizer states of GPT-NeoX's checkpoints of all years and layouts, under deepy's names."""

from __future__ import annotations

from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.train.checkpoint.neox import tensors as reading
from neoxargs.train.checkpoint.neox.loading import weights_of
from neoxargs.train.checkpoint.neox.weights import NeoxWeights, halves_of
from neoxargs.train.checkpoint.slices import Slice
from neoxargs.train.checkpoint.weights_by_name import Kind
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import TensorShard, Weights, rank_slice
from tests.support.neox_files import Run, run_of, write
from tests.support.refused import refused
from tests.support.small_gpt import VOCABULARY, randomised, small
from tests.support.snapshots import pinned

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
    gpt = randomised(GPT(config, VOCABULARY, Weights(), Shared()))
    return config, {key: value.detach().clone() for key, value in gpt.named_parameters()}


def written(folder: Path, name: str, **changes: Any) -> tuple[Config, Run, Path]:
    """Write a checkpoint; return the configuration that continues it, the run and the checkpoint's folder."""
    config, weights = model_of(name)
    run = run_of(config, weights, **changes)
    return config, run, write(run, folder / "global_step3")


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
    data = 3 if optimizer.startswith(("zero", "bf16")) else 1
    config, run, folder = written(tmp_path, name, optimizer=optimizer, data=data, **LAYOUTS[layout])
    found = read(folder.parent, config)
    assert found.why_incomplete == "" and set(found.slices) == set(run.weights)
    for key, value in run.weights.items():
        torch.testing.assert_close(found.full_tensor(key), value, rtol=0, atol=1e-7)
        torch.testing.assert_close(found.full_tensor(key, master=True), value, rtol=0, atol=1e-7)
        assert found.states(key) == {"step": 3, "exp_avg": None, "exp_avg_sq": None}
        for state, tensors in run.moments.items():
            assert torch.equal(found.full_tensor(key, state), tensors[key]), (key, state)
    assert found.common["iteration"] == 3 and found.common["consumed_samples"] == 24


def cut(name: str, found: NeoxWeights, rank: int, ranks: int) -> Slice:
    """A rank's slice in another layout."""
    dimension = 1 if name.endswith(("dense.weight", "4h_to_h.weight")) else 0
    whole = len(found.shape(name)) == 1 and "h_to_4h" not in name and "query" not in name
    parts = halves_of(found.config, name)
    return Slice(found.shape(name), [] if whole else [TensorShard(dimension, parts, rank, ranks)])


@pytest.mark.parametrize("optimizer", ["fp32", "zero1", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_rank_reads_the_rows_that_it_holds(tmp_path: Path, name: str, optimizer: str) -> None:
    data = 1 if optimizer == "fp32" else 3
    config, run, folder = written(tmp_path, name, optimizer=optimizer, data=data, tensor=2, pipe=2)
    found = read(folder.parent, config)
    for ranks, key in product((1, 2, 4), run.weights):
        own = cut(key, found, ranks - 1, ranks)
        if ranks == 4 and "query" in key and name == "llama":
            continue  # fewer key and value heads
        for kind in (Kind(), Kind(master=True), Kind("exp_avg")):
            expected = reduce(rank_slice, own.shards, found.full_tensor(key, kind.state, kind.master))
            rows = range(len(expected) // 3, len(expected))
            assert torch.equal(found.rows(key, own, rows, kind), expected[rows.start :]), (key, kind)


@pytest.mark.parametrize(("fault", "share"), [(False, 1.0), (True, 2.0)])
def test_a_rank_of_the_same_layout_reads_its_own_tensors_only(
    tmp_path: Path, fault: bool, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a Pythia; what all ranks have is compared, and read of all."""
    config, run, folder = written(tmp_path, "pythia", tensor=2)
    found = read(folder.parent, config)
    sizes: list[int] = []
    really = reading._elements
    monkeypatch.setattr(
        reading, "_elements", lambda ref, start, count: sizes.append(count) or really(ref, start, count)
    )
    if fault:
        monkeypatch.setattr(NeoxWeights, "_shard", lambda self, name, found: None)
    owned = 0
    for key in run.weights:
        own = cut(key, found, 1, 2)
        if own.shards:
            owned += found.rows(key, own, range(own.shape[0]), Kind()).numel()
    assert sum(sizes) == share * owned


TRANSFORMER_ENGINE: dict[str, Any] = {
    "pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu", "intermediate_size": 44, "exact_mlp_width": True,
    "num_kv_heads": 2, "no_weight_tying": True, "te_mha": True, "te_layernorm_mlp": True,
}  # fmt: skip


@pytest.mark.parametrize("optimizer", ["fp32", "zero1"])
@pytest.mark.parametrize("layout", ["tp2", "tp2 pp2", "sequential"])
@pytest.mark.parametrize("changes", [{}, {"norm": "layernorm", "activation": "gelu", "num_kv_heads": 4}])
def test_transformer_engine_s_names(tmp_path: Path, changes: dict[str, Any], layout: str, optimizer: str) -> None:
    config = small(**TRANSFORMER_ENGINE | changes)
    torch.manual_seed(0)
    gpt = randomised(GPT(config, VOCABULARY, Weights(), Shared()))
    weights = {key: value.detach().clone() for key, value in gpt.named_parameters()}
    run = run_of(config, weights, names="te", optimizer=optimizer, **LAYOUTS[layout])
    found = read(write(run, tmp_path / "global_step3").parent, config)
    assert found.why_incomplete == "" and set(found.slices) == set(weights)
    for key, value in weights.items():
        torch.testing.assert_close(found.full_tensor(key), value, rtol=0, atol=1e-7)
        for state, tensors in run.moments.items():
            assert torch.equal(found.full_tensor(key, state), tensors[key]), (key, state)


def test_a_checkpoint_with_transformer_engine_s_mlp_needs_the_switch(tmp_path: Path) -> None:
    """Its epsilon and its GELU are others than those of the plain model with the same shapes."""
    config = small(**TRANSFORMER_ENGINE)
    weights = dict(GPT(config, VOCABULARY, Weights(), Shared()).named_parameters())
    folder = write(run_of(config, {k: v.detach() for k, v in weights.items()}, names="te"), tmp_path / "global_step3")
    (problem,) = refused(read, folder.parent, small(**TRANSFORMER_ENGINE | {"te_layernorm_mlp": False}))
    pinned(problem)


@pytest.mark.parametrize("layout", ["one process", "tp2"])
@pytest.mark.parametrize(("name", "names"), [("gpt2", "legacy"), ("pythia", "legacy"), ("llama", "llama")])
def test_names_of_earlier_years(tmp_path: Path, name: str, names: str, layout: str) -> None:
    changes = {"names": names, "order": "per_head", "row_output": True, **LAYOUTS[layout]}
    config, run, folder = written(tmp_path, name, **changes)
    found = read(folder.parent, config)
    for key, value in run.weights.items():
        torch.testing.assert_close(found.full_tensor(key), value, rtol=0, atol=1e-7)


def test_a_published_folder_has_its_files_at_the_top_and_no_latest(tmp_path: Path) -> None:
    config, _, folder = written(tmp_path, "pythia", names="legacy")
    assert read(folder.rename(tmp_path / "step3"), config).common["iteration"] == 3


def test_the_norm_and_output_names_of_early_2021(tmp_path: Path) -> None:
    config, run, folder = written(tmp_path, "pythia", names="legacy")
    for number, prefix in ((5, "norm."), (6, "final_linear.")):
        file = folder / f"layer_0{number}-model_00-model_states.pt"
        tensors = {name.removeprefix(prefix): value for name, value in torch.load(file).items()}
        torch.save(tensors, file)
    found = read(folder, config)
    for key in ("final_norm.weight", "final_norm.bias", "output.weight"):
        assert torch.equal(found.full_tensor(key), run.weights[key])


def test_the_order_of_grouped_queries_is_asked_for_where_no_file_says_it(tmp_path: Path) -> None:
    config, run, folder = written(tmp_path, "llama", order="per_head", state={"ds_version": None})
    pinned(refused(read, folder, config))
    config, _ = model_of("llama", load_query_key_value_order="per_head")
    found, key = read(folder, config), "layers.1.attention.query_key_value.weight"
    assert torch.equal(found.full_tensor(key), run.weights[key])
    config, _ = model_of("llama", load_query_key_value_order="concatenated")
    assert not torch.equal(read(folder, config).full_tensor(key), run.weights[key])


def test_row_parallel_biases_are_summed_only_with_the_parallel_residual(tmp_path: Path) -> None:
    config, run, folder = written(tmp_path, "pythia", tensor=2)
    key = "layers.0.attention.dense.bias"
    torch.testing.assert_close(read(folder, config).full_tensor(key), run.weights[key])
    sequential = small(**PYTHIA | {"gpt_j_residual": False})
    torch.testing.assert_close(read(folder, sequential).full_tensor(key), run.weights[key] / 2)


def test_copies_that_differ_between_ranks_are_averaged(tmp_path: Path) -> None:
    config, run, folder = written(tmp_path, "gpt2", tensor=2)
    file = folder / "layer_02-model_01-model_states.pt"
    tensors = torch.load(file)
    tensors["input_layernorm.weight"] += 1
    torch.save(tensors, file)
    key = "layers.0.input_layernorm.weight"
    torch.testing.assert_close(read(folder, config).full_tensor(key), run.weights[key] + 0.5)


def test_the_state_of_a_tied_embedding_on_the_last_stage_is_not_counted_twice(tmp_path: Path) -> None:
    """DeepSpeed's last stage has a copy of the whole embedding module, before the stage's own layers."""
    config, run, folder = written(tmp_path, "gpt2", optimizer="fp32", pipe=2)
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
    for key in run.weights:
        assert torch.equal(found.full_tensor(key, "exp_avg"), run.moments["exp_avg"][key]), key


def test_the_loss_scale_of_fp16(tmp_path: Path) -> None:
    config, _, folder = written(tmp_path, "gpt2", optimizer="fp16")
    assert read(folder, config).loss_scale["cur_scale"] == 4096


def test_other_sizes_are_named_with_the_value_to_write(tmp_path: Path) -> None:
    other = {"num_layers": 3, "intermediate_size": 99, "use_bias_in_mlp": True, "num_kv_heads": 4}
    _, _, folder = written(tmp_path, "llama")
    hints = [problem.hint.split(",")[0] for problem in refused(weights_of, small(**LLAMA | other), folder, None)]
    expected = ["num_layers: 2", "num_kv_heads: 2", "intermediate_size: 132", "use_bias_in_mlp: false"]
    assert hints == [f"set {name}" for name in expected]


def test_our_own_checkpoints_are_not_taken_for_gpt_neox_s(tmp_path: Path) -> None:
    _, _, folder = written(tmp_path, "gpt2")
    assert Contents.at(tmp_path, None) is not None
    (folder / "layout-mp_rank_00.json").write_text("{}")
    assert Contents.at(tmp_path, None) is None


@pytest.mark.parametrize("tied", [False, True])
def test_the_norms_show_what_gpt_j_tied_meant(tmp_path: Path, tied: bool) -> None:
    """Whichever meaning it had: the norm that the model did not use has its first values."""
    config, weights = model_of("pythia")
    if tied:
        weights |= {f"layers.{layer}.post_attention_layernorm.weight": torch.ones(32) for layer in range(2)}
    folder = write(run_of(config, weights), tmp_path / "global_step3")
    matching, other = (small(**PYTHIA, gpt_j_tied=value) for value in (tied, not tied))
    assert any("post_attention" in name for name in read(folder, matching).slices) != tied
    with pytest.raises(Problems, match=f"contradicts gpt_j_tied {str(not tied).lower()}"):
        read(folder, other)
