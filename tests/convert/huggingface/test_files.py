"""Exported and imported files, and the problems of models that cannot be converted."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.programs import Program
from neoxargs.checks import all as checks
from neoxargs.config.config import Config
from neoxargs.convert import imported
from neoxargs.convert.folder import exit_code
from neoxargs.convert.huggingface import FAMILIES, adapters, exporting, importing, peft_format, safetensors, tokens
from neoxargs.convert.huggingface.configuration import read
from neoxargs.convert.huggingface.safetensors import INDEX, Reader, Spec, Writer
from neoxargs.convert.imported import Imported
from neoxargs.convert.neox import exporting as gpt_neox
from neoxargs.data.tokenizer import ByteTokenizer, build_tokenizer
from neoxargs.resolve import resolve
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.lora.adapters import attach, is_adapter
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.paths import CONFIGS
from tests.support.refused import ids, refused
from tests.support.small_gpt import randomised, small
from tests.support.snapshots import pinned

ROTARY = {"pos_emb": "rotary", "no_weight_tying": True}
LLAMA = {
    **ROTARY, "norm": "rmsnorm", "activation": "swiglu", "intermediate_size": 132, "use_bias_in_mlp": False,
    "use_bias_in_attn_linear": False,
}  # fmt: skip
GEMMA = {
    **LLAMA, "activation": "geglu_tanh", "norm_placement": "both", "apply_layernorm_1p": True,
    "embedding_multiplier": 32**0.5,
}  # fmt: skip
EXPERTS = {**LLAMA, "moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk"}
#: What only we have, and what the architecture can say all the same.
OURS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"opt_pos_emb_offset": 2, "activation": "mish", "no_weight_tying": True},
    "GPTNeoXForCausalLM": {
        **ROTARY, "rotary_pct": 0.5, "gpt_j_residual": True, "gpt_j_tied": True, "use_bias_in_attn_linear": False,
        "bias_gelu_fusion": True, "num_layers": 4, "num_unique_layers": 2,
    },
    "LlamaForCausalLM": {**LLAMA, "no_weight_tying": False, "activation": "geglu", "num_kv_heads": 1},
    "MistralForCausalLM": {**LLAMA, "sliding_window_width": 5, "activation": "glu"},
    "Qwen2ForCausalLM": {**LLAMA, "add_qkv_bias": True, "head_dim": 10},
    "Qwen3ForCausalLM": {**LLAMA, "use_qk_layernorm": True, "sliding_window_width": 5, "window_attn_skip_freq": 2},
    "Olmo2ForCausalLM": {
        **LLAMA, "norm_placement": "after", "use_qk_layernorm": True, "qk_layernorm_scope": "all_heads",
    },
    "Gemma2ForCausalLM": {**GEMMA, "sliding_window_width": 5, "softmax_scale": 0.5, "attn_logit_softcapping": 20.0},
    "Gemma3ForCausalLM": {**GEMMA, "use_qk_layernorm": True, "rope_scaling.rope_type": "linear",
        "rope_scaling.factor": 2.0},
    "MixtralForCausalLM": {**EXPERTS, "moe_normalize_expert_weights": True, "moe_jitter_eps": 0.1},
    "OlmoeForCausalLM": {**EXPERTS, "use_qk_layernorm": True, "qk_layernorm_scope": "all_heads"},
    "Phi3ForCausalLM": {**LLAMA, "rotary_pct": 0.5, "hidden_dropout": 0.1},
    "MambaForCausalLM": {
        "norm": "rmsnorm", "pos_emb": "none", "attention_config": ["mamba"] * 4, "mamba_inner_size": 40,
        "num_layers": 4, "num_unique_layers": 2, "activation": "swiglu", "no_weight_tying": True,
    },
}  # fmt: skip


def saved(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> tuple[Config, GPT]:
    """A checkpoint of a small model with random weights everywhere, as `deepy import` writes one."""
    config = small(tokenizer_type="ByteLevelTokenizer", load=str(folder), **changes)
    gpt = randomised(GPT(config, Vocabulary(257, 384), Weights(), Shared())).to(dtype).eval()
    weights = dict(gpt.named_parameters())
    source = Imported({"iteration": 7}, dtype, list(weights), lambda name: weights[name].detach())
    imported.write(source, config, folder, advance=lambda size: None)
    return config, gpt


def exported(config: Config, folder: Path, limit: int = 10**9, **choices: Any) -> Path:
    folder.mkdir()
    export = exporting.prepare(config, exporting.weights(config), exporting.choose_family(config), **choices)
    assert exporting.write(export, folder, limit)
    return folder


@pytest.mark.parametrize("name", OURS)
def test_shared_weights_are_exported_as_copies(name: str, tmp_path: Path) -> None:
    os.environ["USE_TF"] = "0"
    transformers = pytest.importorskip("transformers")
    config, gpt = saved(tmp_path / "run", **OURS[name])
    folder = exported(config, tmp_path / "hf", limit=20_000)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == name
    ids = torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(1))
    # Gemma 2 multiplies rounding errors: 2e-5 alone, up to 1.6e-4 after other tests in the same process.
    torch.testing.assert_close(gpt(ids), model(ids).logits, rtol=0, atol=3e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("é b").input_ids == list("é b".encode())
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id == 256


def test_half_precision(tmp_path: Path) -> None:
    config, gpt = saved(tmp_path / "run", torch.bfloat16, **ROTARY)
    for dtype, wanted in ((None, torch.bfloat16), (torch.float32, torch.float32)):
        folder = exported(config, tmp_path / str(dtype), dtype=dtype)
        found = load_file(folder / "model.safetensors")["gpt_neox.final_layer_norm.bias"]
        assert found.dtype == wanted and torch.equal(found, gpt.final_norm.bias.to(wanted))
        described = json.loads((folder / "config.json").read_text())
        assert described["torch_dtype"] == str(wanted).removeprefix("torch.")


@pytest.mark.parametrize(
    ("changes", "architecture"),
    [
        ({}, "GPT2LMHeadModel"),
        ({"pos_emb": "rotary", "rotary_pct": 0.25}, "GPTNeoXForCausalLM"),
        (LLAMA, "LlamaForCausalLM"),
        (LLAMA | {"use_bias_in_mlp": True, "num_kv_heads": 2}, "LlamaForCausalLM"),
        (LLAMA | {"sliding_window_width": 8}, "MistralForCausalLM"),
    ],
)
def test_the_architecture_is_chosen(changes: dict[str, Any], architecture: str) -> None:
    assert exporting.choose_family(small(**changes), None).architecture == architecture


YAML = """\
dialect: neox-2026
num_layers: 2
hidden_size: 32
num_attention_heads: 4
seq_length: 16
norm: scalenorm
pos_emb: alibi
attention_config: [[[local], all]]
train_micro_batch_size_per_gpu: 1
train_iters: 1
tokenizer_type: ByteLevelTokenizer
"""
REFUSED = """\
{file}:6:1: error: norm (scalenorm) cannot be exported to GPTNeoXForCausalLM, which requires norm: layernorm \
[huggingface-not-expressible]
  6 | norm: scalenorm
    | ^^^^^^^^^^^^^^^

{file}:7:1: error: pos_emb (alibi) cannot be exported to GPTNeoXForCausalLM, which requires pos_emb: rotary \
[huggingface-not-expressible]
  7 | pos_emb: alibi
    | ^^^^^^^^^^^^^^

{file}:8:1: error: attention_config (local) cannot be exported to GPTNeoXForCausalLM, which requires full causal \
attention in every layer [huggingface-not-expressible]
  8 | attention_config: [[[local], all]]
    | ^^^^^^^^^^^^^^^^

error: no supported architecture can represent this model; the closest is GPTNeoXForCausalLM \
[huggingface-no-architecture]
  = change the parameters named above; docs/huggingface.md lists what each architecture supports
"""


def test_every_parameter_that_cannot_be_exported_is_reported_with_its_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.yml").write_text(YAML)
    assert exporting.main([str(tmp_path / "my.yml"), "--to", str(tmp_path / "hf"), "--gpus", "1"]) == 1
    assert capsys.readouterr().err == REFUSED.format(file=tmp_path / "my.yml")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("program", ["export", "generate"])
def test_an_export_refuses_what_its_rows_of_the_table_of_checks_find(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = checks.Check("files", lambda spec: [Problem("planted", id="planted")], (program,))
    monkeypatch.setattr(checks, "CHECKS", (*checks.CHECKS, planted))
    (tmp_path / "my.yml").write_text(YAML)
    assert exporting.main([str(tmp_path / "my.yml"), "--to", str(tmp_path / "hf"), "--gpus", "1"]) == 1
    assert ("[planted]" in capsys.readouterr().err) == (program == "export")


@pytest.mark.parametrize("name", ["use_mup"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_model_parameter_that_no_family_handles_is_refused(architecture: str, name: str) -> None:
    assert not list(FAMILIES[architecture].obstacles(small(**OURS[architecture])))
    found = list(FAMILIES[architecture].obstacles(small(**OURS[architecture], **{name: True})))
    what = f"{name} (true) cannot be exported to {architecture}, which has no equivalent parameter"
    assert [problem.what for problem in found] == [what]


#: Parameters of some families, with values that Llama does not have.
OF_OTHERS: dict[str, Any] = {
    "use_qk_layernorm": True, "norm_placement": "both", "apply_layernorm_1p": True, "add_qkv_bias": True,
    "embedding_multiplier": 2.0, "softmax_scale": 0.5, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "sliding_window_width": 5, "rope_scaling.rope_type": "ntk",
}  # fmt: skip


@pytest.mark.parametrize("name", OF_OTHERS)
def test_llama_refuses_what_only_other_families_have(name: str) -> None:
    (found,) = FAMILIES["LlamaForCausalLM"].obstacles(small(**LLAMA, **{name: OF_OTHERS[name]}))
    assert found.about == (name,)


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "Gemma3ForCausalLM"])
def test_gemma_refuses_longrope(name: str) -> None:
    changed = {**OURS[name], "rope_scaling.rope_type": "longrope"}
    (found,) = FAMILIES[name].obstacles(small(**changed))
    assert found.about == ("rope_scaling.rope_type",)


class TestCheckpoints:
    """Checkpoints that cannot be exported."""

    def what(self, config: Config) -> str:
        with pytest.raises(Problems) as caught:
            export = exporting.prepare(config, exporting.weights(config), exporting.choose_family(config))
            exporting._require_same_model(export, list(export.pieces()))
        return str(caught.value)

    def test_none(self, tmp_path: Path) -> None:
        pinned(self.what(small()))
        pinned(self.what(small(load=str(tmp_path))))
        pinned(self.what(small(load=str(tmp_path), iteration=3)))

    def test_of_another_model(self, tmp_path: Path) -> None:
        saved(tmp_path)
        here = f"error: load ({tmp_path}/global_step7)"
        other = small(load=str(tmp_path), tokenizer_type="ByteLevelTokenizer", intermediate_size=64)
        name = "layers.0.mlp.dense_h_to_4h.weight"
        shapes = (
            "has shape 128 x 32 in the checkpoint, but this configuration expects 64 x 32 [checkpoint-weight-shape]"
        )
        assert f"{here}: {name} {shapes}\n  = compare this configuration" in self.what(other)
        fewer = small(load=str(tmp_path), tokenizer_type="ByteLevelTokenizer", num_layers=1)
        surplus = (
            f"{here}: the checkpoint does not fit this model: the model has no weight layers.1.attention.dense.bias"
        )
        assert surplus in self.what(fewer)
        more = small(load=str(tmp_path), tokenizer_type="CharLevelTokenizer")
        rows = "the checkpoint's word embedding has 384 rows, but the exported model needs 512"
        rows += " [checkpoint-too-few-vocabulary-rows]"
        hint = "use the tokenizer that the model was trained with, or a smaller --vocab-size"
        assert self.what(more) == f"{here}: {rows}\n  = {hint}"


class TestNotFinite:
    """Weights that are infinite or NaN are neither exported nor imported."""

    def spoilt(self, folder: Path, number: float, **changes: Any) -> Config:
        """A checkpoint in which one element of one weight is this number."""
        config, gpt = saved(folder / "before", **changes)
        if config.lora.rank:
            attach({"": gpt}, config, Weights())
        weights = {name: weight.detach().clone() for name, weight in gpt.named_parameters()}
        if config.lora.rank:
            weights = {name: weight for name, weight in weights.items() if is_adapter(name)}
        name = next((name for name in weights if name.endswith(".B")), "layers.1.mlp.dense_4h_to_h.weight")
        weights[name][3, 2] = number
        config = small(tokenizer_type="ByteLevelTokenizer", load=str(folder / "run"), **changes)
        source = Imported({"iteration": 7}, torch.float32, list(weights), weights.__getitem__)
        imported.write(source, config, folder / "run", advance=lambda size: None)
        return config

    @pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
    def test_export(self, tmp_path: Path, number: float) -> None:
        config = self.spoilt(tmp_path, number, **ROTARY)
        pinned(refused(exported, config, tmp_path / "hf"))
        neox = refused(gpt_neox.write, config, exporting.weights(config), tmp_path / "neox")
        assert ids(neox) == ["checkpoint-not-finite"]

    def test_too_large_for_the_type(self, tmp_path: Path) -> None:
        config = self.spoilt(tmp_path, 1e6, **ROTARY)
        pinned(refused(exported, config, tmp_path / "hf", dtype=torch.float16))
        exported(config, tmp_path / "bf16", dtype=torch.bfloat16)

    def test_adapters(self, tmp_path: Path) -> None:
        config = self.spoilt(tmp_path, float("nan"), **ROTARY, **{"lora.rank": 4, "lora.alpha": 8.0})
        family, weights = exporting.choose_family(config), exporting.weights(config)
        found = refused(adapters.write, config, weights, family, exporting.sizes_of(config, 0), tmp_path, None)
        base = saved(tmp_path / "base", **ROTARY)[0]
        merged = adapters.Merged(config, exporting.weights(base), weights)
        export = exporting.prepare(config, merged, family)
        (tmp_path / "hf").mkdir()
        pinned([*found, *refused(exporting.write, export, tmp_path / "hf")])

    def test_import_of_adapters(self, tmp_path: Path) -> None:
        save_file({"base_model.model.x.lora_A.weight": torch.tensor([[float("nan")]])}, tmp_path / peft_format.WEIGHTS)
        (tmp_path / peft_format.CONFIG).write_text('{"peft_type": "LORA"}')
        pinned(refused(adapters.PeftFolder, tmp_path))


class TestImport:
    """Import of a folder as transformers 4 writes it."""

    CONFIG = {
        "architectures": ["GPTNeoXForCausalLM"], "vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 128, "rotary_pct": 0.5, "rotary_emb_base": 500,
        "use_parallel_residual": False,
    }  # fmt: skip

    @pytest.fixture
    def theirs(self, tmp_path: Path) -> Path:
        config, _ = saved(tmp_path / "run", **ROTARY, rotary_pct=0.5)
        folder = exported(config, tmp_path / "theirs")
        self.describe(folder)
        return folder

    def describe(self, folder: Path, **changes: Any) -> None:
        (folder / "config.json").write_text(json.dumps(self.CONFIG | changes, indent=1))
        (folder / "files.json").unlink(missing_ok=True)  # which only deepy writes

    def told(self, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
        assert importing.main([str(folder), "--to", str(folder.parent / "ours"), *more]) == 1
        assert sorted(path.name for path in folder.parent.iterdir()) == ["run", "theirs"]  # nothing is left
        return capsys.readouterr().err.replace(str(folder), "FOLDER")

    def test_older_names(self, theirs: Path) -> None:
        values = read(theirs).values
        assert values["rotary_pct"] == 0.5 and values["rotary_emb_base"] == 500
        assert values["layernorm_epsilon"] == 1e-5  # as transformers takes it
        tensors = load_file(theirs / "model.safetensors")
        renamed = {name.removeprefix("gpt_neox.").replace("embed_out", "lm_head"): x for name, x in tensors.items()}
        save_file(renamed | {"layers.0.attention.masked_bias": torch.ones(1)}, theirs / "model.safetensors")
        source = importing.Import(theirs)
        assert len(source.pieces) == len(tensors)

    def test_every_key_that_cannot_be_imported_is_reported(
        self, theirs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rope = {"rope_type": "llama3", "rope_theta": 500.5}
        self.describe(
            theirs, rope_parameters=rope, hidden_act="quick_gelu", head_dim=16, quantization_config={"bits": 4}
        )
        told = self.told(theirs, capsys)
        assert told.count("error: ") == 5
        unsupported = "has no equivalent in deepy's model [huggingface-not-expressible]\n"
        for line in (
            f'FOLDER/config.json:17:2: error: hidden_act ("quick_gelu") {unsupported}',
            f'error: rope_parameters.rope_type ("llama3") {unsupported}',
            f"error: rope_parameters.rope_theta (500.5) {unsupported}",
            f'error: quantization_config ({{"bits": 4}}) {unsupported}',
            "error: head_dim (16) must equal hidden_size / num_attention_heads (8) [huggingface-head-width]\n",
        ):
            assert line in told
        assert '  = import a model with rope_parameters.rope_type "default"\n' in told

    @pytest.mark.parametrize(
        "changes",
        [
            {"hidden_size": "x"}, {"num_attention_heads": 0}, {"vocab_size": None}, {"rotary_emb_base": "many"},
            {"hidden_act": ["gelu"]}, {"intermediate_size": 1.5}, {"architectures": "GPTNeoX"},
            {"tie_word_embeddings": True, "rope_parameters": "none", "num_hidden_layers": None},
        ],
    )  # fmt: skip
    def test_values_of_the_wrong_type(self, theirs: Path, capsys: pytest.CaptureFixture[str], changes: Any) -> None:
        self.describe(theirs, **changes)
        told = self.told(theirs, capsys)
        key, value = list(changes.items())[-1]
        assert told.startswith("FOLDER/config.json:")
        assert f"{key} ({json.dumps(value)})" in told.replace("rope_parameters.rope_theta", "rotary_emb_base")

    def test_another_architecture(self, theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.describe(theirs, architectures=["BertModel"])
        pinned(self.told(theirs, capsys), "[huggingface-unknown-architecture]")

    def test_weights_that_do_not_fit(self, theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        tensors = load_file(theirs / "model.safetensors")
        del tensors["gpt_neox.layers.1.mlp.dense_4h_to_h.weight"]
        save_file(tensors | {"gpt_neox.extra.weight": torch.ones(1)}, theirs / "model.safetensors")
        pinned(self.told(theirs, capsys))

    def test_shapes_that_are_not_those_of_the_configuration(self, theirs: Path, capsys: Any) -> None:
        self.describe(theirs, num_attention_heads=5, hidden_size=30, model_type="llama", architectures=None)
        llama = {"model.embed_tokens": (257, 30), "model.norm": (30,), "lm_head": (257, 30)}
        for layer in range(2):
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                llama[f"model.layers.{layer}.self_attn.{name}"] = (31, 30)
            for name in ("gate_proj", "up_proj", "down_proj"):
                llama[f"model.layers.{layer}.mlp.{name}"] = (30, 30)
            for name in ("input", "post_attention"):
                llama[f"model.layers.{layer}.{name}_layernorm"] = (30,)
        save_file({f"{key}.weight": torch.ones(shape) for key, shape in llama.items()}, theirs / "model.safetensors")
        names = ", ".join(f"layers.0.self_attn.{name}_proj.weight" for name in "qk")
        value = "layers.0.self_attn.v_proj.weight"
        expected = f"FOLDER: config.json does not match the shapes of {names} and {value}"
        assert expected in self.told(theirs, capsys)

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite(self, theirs: Path, capsys: pytest.CaptureFixture[str], number: float) -> None:
        tensors = load_file(theirs / "model.safetensors")
        tensors["gpt_neox.layers.1.attention.dense.bias"][5] = number
        save_file(tensors, theirs / "model.safetensors")
        pinned(self.told(theirs, capsys))

    def test_no_or_damaged_weights(self, theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (theirs / "model.safetensors").write_bytes(b"no")
        assert "FOLDER/model.safetensors cannot be read: " in self.told(theirs, capsys)
        save_file({"gpt_neox.embed_in.weight": torch.ones(257, 32).to(torch.float64)}, theirs / "model.safetensors")
        pinned(self.told(theirs, capsys), "[huggingface-weight-missing]")
        (theirs / INDEX).write_text("[]")
        pinned(self.told(theirs, capsys), "[huggingface-index-unreadable]")
        (theirs / INDEX).unlink()
        (theirs / "model.safetensors").unlink()
        missing = f"FOLDER has neither model.safetensors nor {INDEX} [huggingface-weights-missing]\n"
        assert missing in self.told(theirs, capsys)

    def test_tokenizers(self, theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (theirs / "tokenizer.json").unlink()
        pinned(self.told(theirs, capsys), "[huggingface-tokenizer-missing]")
        char = ("--tokenizer-type", "CharLevelTokenizer")
        pinned(self.told(theirs, capsys, *char), "[huggingface-tokenizer-too-large]")
        byte = ("--tokenizer-type", "ByteLevelTokenizer")
        assert importing.main([str(theirs), "--to", str(theirs.parent / "ours"), *byte]) == 0
        config = resolve([theirs.parent / "ours" / "model.yml"], gpus=1)
        assert config.tokenizer.tokenizer_type == "ByteLevelTokenizer"
        assert importing.main([str(theirs), "--to", str(theirs.parent / "ours"), *byte]) == 1
        pinned(capsys.readouterr().err, "[output-folder-exists]")

    def test_more_rows_than_tokens_stay(self, theirs: Path) -> None:
        tensors = load_file(theirs / "model.safetensors")
        for key in ("gpt_neox.embed_in.weight", "embed_out.weight"):
            tensors[key] = torch.randn(400, 32)
        save_file(tensors, theirs / "model.safetensors")
        self.describe(theirs, vocab_size=400)
        ours, again = theirs.parent / "ours", theirs.parent / "again"
        assert importing.main([str(theirs), "--to", str(ours)]) == 0
        assert resolve([ours / "model.yml"], gpus=1).get("padded_vocab_size") == 512
        assert exporting.main([str(ours / "model.yml"), "--to", str(again), "--vocab-size", "400"]) == 0
        for key, tensor in load_file(again / "model.safetensors").items():
            assert torch.equal(tensor, tensors[key]), key
        assert exporting.main([str(ours / "model.yml"), "--to", str(theirs.parent / "cut"), "--vocab-size", "5"]) == 1
        assert not (theirs.parent / "cut").exists()


def test_an_unfinished_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.yml").write_text(YAML.replace("scalenorm", "layernorm").replace("alibi", "learned"))
    saved(tmp_path / "run", attention_config=["global", "global"])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.Writer, "add", full)
    more = ["--set", f"load={tmp_path / 'run'}", "--set", "attention_config=[[[global], all]]"]
    assert exporting.main([str(tmp_path / "my.yml"), "--to", str(tmp_path / "hf"), "--gpus", "1", *more]) == 1
    pinned(capsys.readouterr().err, "[output-folder-unwritable]")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.yml", "run"]


def test_files_of_limited_size(tmp_path: Path) -> None:
    specs = [Spec(f"t{n}", (n, 3), torch.float32) for n in range(1, 8)]
    tensors = [torch.randn(spec.shape) for spec in specs]
    with Writer(tmp_path, specs, limit=100) as writer:
        for tensor in tensors:
            writer.add(tensor.t().contiguous().t())
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 5 and files[0].name == "model-00001-of-00005.safetensors"
    assert [sum(t.nbytes for t in load_file(file).values()) for file in files] == [72, 48, 60, 72, 84]
    found = Reader(tmp_path)
    assert all(torch.equal(found.read(spec.name), tensor) for spec, tensor in zip(specs, tensors, strict=True))
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors)


def test_the_exported_byte_tokenizer_equals_ours() -> None:
    text = "a\n\t  é 漢 \x00 '(x)' <|endoftext|"
    ours = ByteTokenizer(257, 256)
    theirs = tokens._byte_level()
    assert theirs.encode(text).ids == ours.tokenize(text)
    assert theirs.decode(ours.tokenize(text)) == text
    assert theirs.get_vocab_size() == 257 and theirs.token_to_id("<|endoftext|>") == 256


def test_a_byte_pair_tokenizer_is_exported_as_one_file(tmp_path: Path) -> None:
    vocabulary = {letter: number for number, letter in enumerate("abcĠ")} | {"ab": 4, "<|endoftext|>": 5}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    config = small(
        tokenizer_type="GPT2BPETokenizer",
        vocab_file=str(tmp_path / "vocab.json"),
        merge_file=str(tmp_path / "merges.txt"),
    )
    before = build_tokenizer(config.tokenizer)
    (tmp_path / "out").mkdir()
    assert tokens.write(config.tokenizer, before, 16, tmp_path / "out")
    named = tokens.tokenizer_parameters(tmp_path / "out")
    assert named["tokenizer_type"] == "HFTokenizer"
    after = build_tokenizer(small(**named).tokenizer)
    assert after.tokenize("abc ab") == before.tokenize("abc ab") == [4, 2, 3, 4]
    assert (after.vocab_size, after.eod) == (before.vocab_size, before.eod) == (6, 5)


#: Beginning of the name of a shipped configuration -> that of its architecture.
KINDS = {
    "gpt-neox": "GPTNeoX", "pythia": "GPTNeoX", "llama": "Llama", "mistral": "Mistral", "gpt": "GPT2",
    "qwen2": "Qwen2", "qwen3": "Qwen3", "olmo-2": "Olmo2", "gemma-2": "Gemma2", "gemma-3": "Gemma3",
    "phi-3": "Phi3", "mixtral": "Mixtral", "olmoe": "Olmoe",
}  # fmt: skip
#: Models that an earlier family in the list can represent, too: Nemo is a Llama, Phi-3 a Mistral.
CHOSEN = {"mistral-nemo-12b": "MistralForCausalLM", "phi-3-mini": "Phi3ForCausalLM"}


def test_shipped_configurations_have_the_architecture_of_their_name() -> None:
    for file in sorted((CONFIGS / "models").glob("*.yml")):
        config = resolve([file], ["train_iters=1", "train_micro_batch_size_per_gpu=1"], gpus=1)
        kind = next((kind for name, kind in KINDS.items() if file.name.startswith(name)), "a row of KINDS")
        chosen = CHOSEN.get(file.stem)
        assert exporting.choose_family(config, chosen).architecture.startswith(kind), file.name


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert importing.main([str(tmp_path), "--to", str(tmp_path / "new")]) == 1
    pinned(capsys.readouterr().err, "[nothing-to-import]")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("more", [["--dry-run"], ["--to", "new"]])
def test_a_folder_that_does_not_exist_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    (tmp_path / "model").mkdir()
    assert importing.main([str(tmp_path / "modell"), *more]) == 1
    said = capsys.readouterr().err
    pinned(said, "[nothing-to-import]")
    assert f"did you mean {tmp_path / 'model'}?" in said


def test_without_a_gpu_deepspeed_does_not_look_for_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    seen: list[str] = []
    assert exit_code(lambda _: seen.append(os.environ["DS_ACCELERATOR"]), Namespace()) == 0
    assert seen == ["cpu"]
