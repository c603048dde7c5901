"""Models of Mamba layers: what config.json may say, and which models are no Mamba."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.convert.huggingface import FAMILIES, exporting
from neoxargs.convert.huggingface.configuration import ImportedModel, read
from tests.support.huggingface import MODELS, Case, batch, imported, loaded, made
from tests.support.refused import refused
from tests.support.small_gpt import small
from tests.support.snapshots import pinned

MAMBA = FAMILIES["MambaForCausalLM"]
OURS: dict[str, Any] = {
    "attention_config": ["mamba", "mamba"], "mamba_inner_size": 64, "pos_emb": "none", "norm": "rmsnorm"
}  # fmt: skip
#: Those of state-spaces/mamba-130m-hf.
KEYS: dict[str, Any] = {
    "architectures": ["MambaForCausalLM"], "bos_token_id": 0, "conv_kernel": 4, "d_inner": 1536, "d_model": 768,
    "eos_token_id": 0, "expand": 2, "fused_add_norm": True, "hidden_act": "silu", "hidden_size": 768,
    "initializer_range": 0.1, "intermediate_size": 1536, "layer_norm_epsilon": 1e-5, "model_type": "mamba",
    "n_layer": 24, "num_hidden_layers": 24, "pad_token_id": 0, "pad_vocab_size_multiple": 8,
    "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True, "ssm_cfg": {}, "state_size": 16,
    "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001,
    "time_step_rank": 48, "time_step_scale": 1.0, "torch_dtype": "float32", "use_bias": False, "use_cache": True,
    "use_conv_bias": True, "vocab_size": 50280,
}  # fmt: skip


def configuration(folder: Path, **changes: Any) -> ImportedModel:
    (folder / "config.json").write_text(json.dumps(KEYS | changes))
    return read(folder)


def test_the_published_configuration_is_read(tmp_path: Path) -> None:
    values = configuration(tmp_path).values
    assert {"hidden_size": 768, "num_layers": 24, "mamba_inner_size": 1536, "rms_norm_epsilon": 1e-5}.items() <= (
        values.items()
    )
    assert not values["no_weight_tying"] and not values["mamba_use_bias_in_linears"]


@pytest.mark.parametrize(("intermediate_size", "inner"), [(None, 2304), (1000, 1000)])
def test_the_inner_size_goes_before_expand(tmp_path: Path, intermediate_size: int | None, inner: int) -> None:
    """As in transformers, whose configuration sets it last."""
    found = configuration(tmp_path, expand=3, intermediate_size=intermediate_size)
    assert found.values["mamba_inner_size"] == inner


REFUSED: dict[str, tuple[Any, str]] = {
    "state_size": (64, "state_size (64) has no equivalent in deepy's model"),
    "conv_kernel": (3, "conv_kernel (3) has no equivalent in deepy's model"),
    "hidden_act": ("gelu", 'hidden_act ("gelu") has no equivalent in deepy\'s model'),
    "expand": (1.5, "expand (1.5) must be a positive integer"),
    "intermediate_size": ("big", 'intermediate_size ("big") must be a positive integer'),
    "residual_in_fp32": ("yes", 'residual_in_fp32 ("yes") has no equivalent in deepy\'s model'),
    "time_step_rank": (
        8, "{file}: time_step_rank (8) instead of 48, which is hidden_size / 16 rounded up, has no equivalent in "
        "deepy's model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", REFUSED)
def test_a_model_that_ours_cannot_compute_is_refused(tmp_path: Path, key: str) -> None:
    value, what = REFUSED[key]
    assert [problem.what for problem in refused(configuration, tmp_path, **{key: value})] == [
        what.format(file=tmp_path / "config.json")
    ]


@pytest.mark.parametrize("kinds", [["mamba", "global"], ["rwkv", "mamba"], ["rwkv", "rwkv"]])
def test_other_layers_are_refused(kinds: list[str]) -> None:
    problems = refused(exporting.choose_family, small(**OURS | {"attention_config": kinds, "dim_att": 32}))
    first, last = problems
    pinned(first)
    assert last.id == "huggingface-no-architecture"


def test_biases_that_transformers_does_not_have_are_refused() -> None:
    biased = OURS | {"mamba_use_bias_in_linears": True}
    (found,) = MAMBA.obstacles(small(**biased))
    assert found.about == ("mamba_use_bias_in_x_proj",)
    assert not list(MAMBA.obstacles(small(**biased, mamba_use_bias_in_x_proj=False)))


def test_parameters_that_no_mamba_layer_reads_prevent_nothing() -> None:
    unread = {"num_kv_heads": 2, "activation": "swiglu", "add_qkv_bias": True, "softmax_scale": 0.5}
    assert not list(MAMBA.obstacles(small(**OURS, **unread)))
    assert len(list(MAMBA.obstacles(small(**OURS, norm_placement="both", embedding_multiplier=2.0)))) == 2


@pytest.mark.parametrize(("precision", "expected"), [(None, True), ("fp32", True), ("bfloat16", False)])
def test_the_residual_has_the_precision_of_the_run(precision: str | None, expected: bool) -> None:
    assert MAMBA.config_keys(small(**OURS, precision=precision))["residual_in_fp32"] is expected


def test_a_width_that_is_no_multiple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is exported and read again, by transformers too, although `expand` cannot say it."""
    os.environ["USE_TF"] = "0"
    transformers = pytest.importorskip("transformers")
    monkeypatch.setitem(MODELS, "odd", Case("Mamba", {"intermediate_size": 40, "use_bias": True}))
    model = made("odd")
    gpt, _ = loaded(imported(tmp_path, model))
    assert exporting.main([str(tmp_path / "ours" / "model.yml"), "--to", str(tmp_path / "again")]) == 0
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    ids, _ = batch()
    assert torch.equal(again(ids).logits, model(ids).logits)
    torch.testing.assert_close(gpt(ids), model(ids).logits, rtol=1e-5, atol=3e-5)
