"""Transformer Engine's modules as formulas: LayerNormMLP and MultiheadAttention, as GPT-NeoX calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.facts.model import parameters
from neoxargs.resolve.derive import Unresolved
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.configure import configure
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch, randomised
from tests.support.trials import Trial, train


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


#: Activation -> the function of LayerNormMLP, which multiplies by the second half if it is gated.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "gelu": (tanh_gelu, False), "geglu": (tanh_gelu, True), "relu": (torch.relu, False),
    "reglu": (torch.relu, True), "swiglu": (F.silu, True),
}  # fmt: skip


def layer_norm_mlp(block: Any, x: Tensor, activation: str, rms: bool) -> Tensor:
    """LayerNormMLP, from the weights of a block of ours, whose gate is the second half of the first matrix."""
    norm, first, second = block.post_attention_layernorm, block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h
    if rms:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-8) * norm.weight
    else:
        centred = x - x.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * norm.weight + norm.bias
    wide = normed @ first.weight.t() + first.bias
    function, gated = FUNCTIONS[activation]
    if gated:
        value, gate = wide.chunk(2, dim=-1)
        wide = function(gate) * value
    else:
        wide = function(wide)
    return wide @ second.weight.t() + second.bias


def model(config: Config) -> GPT:
    torch.manual_seed(0)
    gpt = GPT(config, VOCABULARY, Weights(), Shared())
    randomised(gpt)
    return gpt


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "te_layernorm", "te_rmsnorm"])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_layernorm_mlp(activation: str, norm: str) -> None:
    """Its width is intermediate_size, not rounded; its epsilon is not the one that the other norms have."""
    text = f"{{te_layernorm_mlp: true, activation: {activation}, norm: {norm}, intermediate_size: 50}}"
    config = configure(text, "{mlp_multiple_of: 16, layernorm_epsilon: 0.5, rms_norm_epsilon: 0.5}")
    gpt, x = model(config), torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(1)) / 100
    block: Any = gpt.layers[0]
    rms = norm.endswith("rmsnorm")
    assert block.mlp.dense_4h_to_h.weight.shape == (64, 50)
    torch.testing.assert_close(block.mlp(block.post_attention_layernorm(x)), layer_norm_mlp(block, x, activation, rms))
    eps = block.input_layernorm.eps
    assert eps == 0.5
    assert parameters(config, VOCABULARY.padded) == sum(weight.numel() for weight in gpt.parameters())


@pytest.mark.parametrize(
    "text", ["te_mha: true", "te_columnparallel: true", "te_rowparallel: true", "norm: te_layernorm"]
)
def test_what_is_the_same_as_without(text: str) -> None:
    tokens = batch(2)[0]
    plain, other = model(configure()).eval(), model(configure(text)).eval()
    torch.testing.assert_close(other(tokens), plain(tokens), rtol=0, atol=0)


def test_the_norm_s_name_is_the_plain_one() -> None:
    assert configure("norm: te_rmsnorm").norm.norm == "rmsnorm"
    assert [warning.what for warning in configure("norm: te_rmsnorm").warnings] == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{te_mha: true, use_bias_in_attn_linear: false}", "implies use_bias_in_attn_linear: true"),
        ("{te_mha: true, pos_emb: rpe}", "te_mha and pos_emb (rpe) cannot be combined"),
        ('{te_mha: true, attention_config: [[["global", "local"], "all"]]}', "te_mha and local layers"),
        ("{te_layernorm_mlp: true, activation: silu}", "te_layernorm_mlp does not support activation (silu)"),
        ("{te_layernorm_mlp: true, norm: scalenorm}", "te_layernorm_mlp does not support norm (scalenorm)"),
        ("{te_layernorm_mlp: true, moe_num_experts: 4}", "implies moe_num_experts: 1, but moe_num_experts is 4"),
        ("{te_layernorm_mlp: true, gpt_j_residual: true, gpt_j_tied: true}", "implies gpt_j_tied: false"),
    ],
)
def test_what_cannot_be_combined(text: str, what: str) -> None:
    with pytest.raises(Unresolved) as stop:
        configure(text)
    assert any(what in problem.what for problem in stop.value.problems)


@pytest.mark.slow
def test_every_layout_trains_the_same_model() -> None:
    te = {
        "te_mha": True, "te_layernorm_mlp": True, "exact_mlp_width": True, "activation": "geglu",
        "intermediate_size": 48, "gpt_j_residual": True,
    }  # fmt: skip
    sizes = {"one": (1, 0), "tp2": (2, 0), "pp2": (1, 2)}
    names = ("model_parallel_size", "pipe_parallel_size")
    trials = {name: Trial(te | dict(zip(names, size, strict=True))) for name, size in sizes.items()}
    [alone] = run_ranks(train, 1, {"one": trials["one"]}, 3)
    expected = alone["one"].train
    assert expected[-1] < expected[0]
    for name in ("tp2", "pp2"):
        for found in run_ranks(train, 2, {name: trials[name]}, 3):
            assert found[name].train == pytest.approx(expected, rel=1e-5)
