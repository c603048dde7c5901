"""`deepy export --format neox` and `deepy import`: what is written reads back equal, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.convert.huggingface import exporting as command
from neoxargs.convert.huggingface import importing
from neoxargs.convert.huggingface.safetensors import Reader
from neoxargs.convert.neox import exporting
from neoxargs.files.neox_checkpoint.optimizer import STATES
from neoxargs.resolve import resolve
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.neox.loading import weights_of
from neoxargs.train.checkpoint.neox.weights import NeoxWeights
from neoxargs.train.checkpoint.weights_by_name import SavedWeights
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.huggingface import assert_same_weights
from tests.support.neox_files import Run, run_of, write
from tests.support.refused import refused
from tests.support.small_gpt import randomised
from tests.support.snapshots import pinned

BASE = """\
num_layers: 2
hidden_size: 32
num_attention_heads: 4
seq_length: 16
max_position_embeddings: 16
tokenizer_type: ByteLevelTokenizer
make_vocab_size_divisible_by: 64
train_micro_batch_size_per_gpu: 8
train_iters: 30
lr_decay_iters: 30
lr_decay_style: cosine
warmup: 0.0
min_lr: 0.0
optimizer: {type: Adam, params: {lr: 0.01}}
dialect: neox-2026
precision: fp32
"""
MODELS = {
    "gpt2": "pos_emb: learned\n",
    "pythia": "pos_emb: rotary\nrotary_pct: 0.25\ngpt_j_residual: true\nno_weight_tying: true\n",
    "llama": "pos_emb: rotary\nnorm: rmsnorm\nactivation: swiglu\nintermediate_size: 132\nnum_kv_heads: 2\n"
    "no_weight_tying: true\nuse_bias_in_attn_linear: false\nuse_bias_in_mlp: false\n",
    "tied norms": "pos_emb: alibi\ngpt_j_residual: true\ngpt_j_tied: true\nno_weight_tying: true\n",
    "scalenorm": "pos_emb: rpe\nnorm: scalenorm\n",
    "Transformer Engine": "pos_emb: rotary\nte_mha: true\nte_layernorm_mlp: true\nactivation: swiglu\n"
    "intermediate_size: 48\nnum_kv_heads: 2\n",
}

#: What the files of GPT-NeoX have besides the model.
NAMES = {"Transformer Engine": {"names": "te"}}


def theirs(folder: Path, name: str, **changes: Any) -> tuple[Config, Run]:
    """Write a checkpoint of GPT-NeoX and my.yml, which continues it."""
    (folder / "my.yml").write_text(BASE + MODELS[name] + f"load: {folder / 'theirs'}\n")
    config = resolve([folder / "my.yml"], gpus=1)
    torch.manual_seed(0)
    gpt = randomised(GPT(config, Vocabulary(257, 320), Weights(), Shared()))
    weights = {key: value.detach().clone() for key, value in gpt.named_parameters()}
    run = run_of(config, weights, tensor=2, **{"optimizer": "zero1", "data": 2, **NAMES.get(name, {}), **changes})
    write(run, folder / "theirs" / "global_step3")
    (folder / "theirs" / "global_step3" / "configs").mkdir()
    (folder / "theirs" / "global_step3" / "configs" / "my.yml").write_text(BASE + MODELS[name])
    return config, run


def assert_equal(found: SavedWeights | NeoxWeights, run: Run, optimizer: bool = True) -> None:
    assert set(found.slices) == set(run.weights) and found.complete == optimizer
    for key, value in run.weights.items():
        # Another tensor parallel size pads the vocabulary to more rows, of zeros.
        torch.testing.assert_close(found.full_tensor(key)[: len(value)], value, rtol=0, atol=1e-7)
        if optimizer:
            assert found.states(key) == {"step": 3, "exp_avg": None, "exp_avg_sq": None}
            for state, tensors in run.moments.items():
                assert torch.equal(found.full_tensor(key, state).flatten()[: value.numel()], tensors[key].flatten())


@pytest.mark.parametrize("optimizer", ["zero1", "fp32"])
@pytest.mark.parametrize("name", ["gpt2", "pythia", "llama", "Transformer Engine"])
def test_an_imported_checkpoint_has_all_that_gpt_neox_s_has(tmp_path: Path, name: str, optimizer: str) -> None:
    _, run = theirs(tmp_path, name, optimizer=optimizer)
    assert importing.main([str(tmp_path / "theirs"), "--to", str(tmp_path / "ours")]) == 0
    folder = tmp_path / "ours" / "global_step3"
    found = SavedWeights(folder, inventory.read(folder))
    assert_equal(found, run)
    assert found.common["iteration"] == 3 and found.common["lr_scheduler"]["lr"] == 0.01
    again = resolve([tmp_path / "ours" / "model.yml"], gpus=1)
    assert again.checkpoint.load == str(tmp_path / "ours") and not again.checkpoint.finetune
    assert again.get("rotary_pct") == resolve([tmp_path / "my.yml"], gpus=1).get("rotary_pct")


def test_without_optimizer_state_the_imported_checkpoint_is_for_finetuning(tmp_path: Path, capsys: Any) -> None:
    _, run = theirs(tmp_path, "pythia", optimizer="none")
    assert importing.main([str(tmp_path / "theirs"), "--to", str(tmp_path / "ours")]) == 0
    pinned(capsys.readouterr().out)
    folder = tmp_path / "ours" / "global_step3"
    assert_equal(SavedWeights(folder, inventory.read(folder)), run, optimizer=False)
    assert yaml.safe_load((tmp_path / "ours" / "model.yml").read_text())["finetune"] is True


@pytest.mark.parametrize(("name", "architecture"), [("pythia", "GPTNeoXForCausalLM"), ("llama", "LlamaForCausalLM")])
def test_straight_to_a_hugging_face_folder(tmp_path: Path, name: str, architecture: str) -> None:
    _, run = theirs(tmp_path, name)
    words = [str(tmp_path / "theirs"), "--to", str(tmp_path / "hf"), "--format", "huggingface"]
    assert importing.main(words) == 0
    assert command.main([str(tmp_path / "my.yml"), "--to", str(tmp_path / "exported"), "--gpus", "1"]) == 0
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == [architecture]
    assert_same_weights(tmp_path / "hf", tmp_path / "exported")
    value = Reader(tmp_path / "hf").read("embed_out.weight" if name == "pythia" else "lm_head.weight")
    assert torch.equal(value, run.weights["output.weight"][:257])


@pytest.mark.parametrize("of", ["weights", "moments"])
def test_numbers_that_are_not_finite_are_not_imported(tmp_path: Path, capsys: Any, of: str) -> None:
    _, run = theirs(tmp_path, "pythia")
    tensors = run.weights if of == "weights" else run.moments["exp_avg"]
    tensors["layers.1.mlp.dense_4h_to_h.weight"][2, 3] = float("nan")
    write(run, tmp_path / "spoilt" / "global_step3")
    words = [str(tmp_path / "spoilt"), "--config", str(tmp_path / "my.yml"), "--to", str(tmp_path / "ours")]
    assert importing.main(words) == 1 and not (tmp_path / "ours").exists()
    pinned(capsys.readouterr().err, "[checkpoint-not-finite]")


def test_a_dry_run_lists_and_writes_nothing(tmp_path: Path, capsys: Any) -> None:
    theirs(tmp_path, "llama")
    before = sorted(tmp_path.rglob("*"))
    assert importing.main([str(tmp_path / "theirs"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "(query_key_value order concatenated: the checkpoint was written with DeepSpeed 0.19" in shown
    assert "   2 x layers.*.attention.query_key_value.weight  64 x 32\n" in shown
    assert sorted(tmp_path.rglob("*")) == before


def test_a_checkpoint_without_configuration_needs_one(tmp_path: Path, capsys: Any) -> None:
    theirs(tmp_path, "pythia")
    (tmp_path / "theirs" / "global_step3" / "configs" / "my.yml").unlink()
    words = [str(tmp_path / "theirs"), "--to", str(tmp_path / "ours")]
    assert importing.main(words) == 1
    assert "does not contain the configuration of the run that wrote it" in capsys.readouterr().err
    assert importing.main([*words, "--config", str(tmp_path / "my.yml")]) == 0


@pytest.mark.parametrize("layout", ["pipe_parallel_size=0", "pipe_parallel_size=1", "pipe_parallel_size=2"])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("name", ["gpt2", "pythia", "llama", "Transformer Engine"])
def test_what_is_exported_in_gpt_neox_s_format_reads_back_equal(
    tmp_path: Path, name: str, tensor: int, layout: str
) -> None:
    _, run = theirs(tmp_path, name)
    words = [str(tmp_path / "my.yml"), "--to", str(tmp_path / "back"), "--format", "neox", "--gpus", "4"]
    changes = [f"model_parallel_size={tensor}", layout]
    assert command.main([*words, *(word for change in changes for word in ("--set", change))]) == 0
    config = resolve([tmp_path / "my.yml"], gpus=1)
    found = weights_of(config, tmp_path / "back", None)
    assert found is not None and found.contents.files.tensor_ranks == tensor
    assert_equal(found, run, optimizer=layout != "pipe_parallel_size=2")
    assert found.common["iteration"] == 3 and found.common["lr_scheduler"]["end_iter"] == 30


@pytest.mark.parametrize(("decay", "groups"), [("0.1", 2), ("0.0", 1)])
@pytest.mark.parametrize("kind", ["Adam", "Lion", "madgrad_wd"])
def test_the_optimizer_has_gpt_neox_s_states_and_groups(tmp_path: Path, kind: str, decay: str, groups: int) -> None:
    """torch's optimizers refuse a state with another number of groups or weights."""
    names = STATES[kind.lower()]
    model = BASE.replace("Adam", kind).replace(
        "{lr: 0.01}", "{lr: 0.01, momentum: 0.9}" if kind == "madgrad_wd" else "{lr: 0.01}"
    )
    (tmp_path / "my.yml").write_text(model + MODELS["gpt2"] + f"weight_decay: {decay}\n")
    config = resolve([tmp_path / "my.yml"], gpus=1)
    gpt = randomised(GPT(config, Vocabulary(257, 320), Weights(), Shared()))
    weights = {key: value.detach() for key, value in gpt.named_parameters()}
    saved = Trained(weights, {ours: {key: torch.rand_like(w) for key, w in weights.items()} for ours in names.values()})
    assert exporting.write(config, saved, tmp_path / "back")
    state = torch.load(tmp_path / "back/global_step3/mp_rank_00_model_states.pt", weights_only=False)["optimizer"]
    assert [group["name"] for group in state["param_groups"]][-groups:] == [
        "weight_decay_params",
        "no_weight_decay_params",
    ][-groups:]
    assert len(state["param_groups"]) == groups
    assert [number for group in state["param_groups"] for number in group["params"]] == list(range(len(weights)))
    assert (state["state"].pop("k", None) is not None) == (kind == "madgrad_wd")
    assert all(set(names) <= set(each) for each in state["state"].values())
    found = weights_of(config, tmp_path / "back", None)
    assert found is not None and found.why_incomplete == ""
    for key in weights:
        for ours in names.values():
            assert torch.equal(found.full_tensor(key, ours), saved.moments[ours][key]), (key, ours)


def test_a_final_norm_without_parameters_has_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "my.yml").write_text(BASE + "norm: non_parametric_layernorm\npipe_parallel_size: 1\n")
    config = resolve([tmp_path / "my.yml"], gpus=1)
    weights = {
        key: value.detach()
        for key, value in randomised(GPT(config, Vocabulary(257, 320), Weights(), Shared())).named_parameters()
    }
    exporting.write(config, Plain(weights), tmp_path / "back")
    assert torch.load(tmp_path / "back/global_step3/layer_05-model_00-model_states.pt") == {}
    found = weights_of(config, tmp_path / "back", None)
    assert found is not None and set(found.slices) == set(weights)


@pytest.mark.parametrize("name", ["tied norms", "scalenorm"])
def test_norms_that_gpt_neox_has_in_another_form(tmp_path: Path, name: str) -> None:
    """A model of deepy's own, without a checkpoint of GPT-NeoX behind it."""
    (tmp_path / "my.yml").write_text(BASE + MODELS[name])
    config = resolve([tmp_path / "my.yml"], gpus=1)
    gpt = randomised(GPT(config, Vocabulary(257, 320), Weights(), Shared()))
    saved = Plain({key: value.detach() for key, value in gpt.named_parameters()})
    exporting.write(config, saved, tmp_path / "back")
    found = weights_of(config, tmp_path / "back", None)
    assert found is not None and set(found.slices) == set(saved.slices)
    for key, value in saved.slices.items():
        assert torch.equal(found.full_tensor(key), value)


def test_a_weight_that_gpt_neox_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.yml").write_text(BASE + MODELS["gpt2"] + "use_qk_layernorm: true\n")
    config = resolve([tmp_path / "my.yml"], gpus=1)
    gpt = GPT(config, Vocabulary(257, 320), Weights(), Shared())
    pinned(refused(lambda: exporting.write(config, Plain(dict(gpt.named_parameters())), tmp_path / "back")))


def test_a_parameter_that_gpt_neox_lacks_is_named(tmp_path: Path) -> None:
    """Without it, GPT-NeoX would not compute what the model computes."""
    (tmp_path / "my.yml").write_text(BASE + MODELS["gpt2"] + "head_dim: 10\n")
    config = resolve([tmp_path / "my.yml"], gpus=1)
    pinned(refused(lambda: exporting.write(config, Plain({}), tmp_path / "back")))


class Plain:
    """Weights in memory, as a checkpoint without optimizer state."""

    folder = Path("nowhere")
    complete = False
    groups: list[dict[str, Any]] = []
    loss_scale: dict[str, Any] = {}
    common = {"iteration": 3}

    def __init__(self, slices: dict[str, Tensor]) -> None:
        self.slices = slices

    def shape(self, name: str) -> list[int]:
        return list(self.slices[name].shape)

    def states(self, name: str) -> dict[str, Any]:
        return {}

    def full_tensor(self, name: str, state: str = "", master: bool = False) -> Tensor:
        return self.slices[name]


class Trained(Plain):
    """Weights in memory with optimizer state."""

    complete = True

    def __init__(self, slices: dict[str, Tensor], moments: dict[str, dict[str, Tensor]]) -> None:
        super().__init__(slices)
        self.moments = moments

    def states(self, name: str) -> dict[str, Any]:
        return {"step": 3, **dict.fromkeys(self.moments)}

    def full_tensor(self, name: str, state: str = "", master: bool = False) -> Tensor:
        return self.moments[state][name] if state else self.slices[name]
