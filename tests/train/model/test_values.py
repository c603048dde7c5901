"""One value of the model changed, in the spelling of the first GPT-NeoX: what is built from it changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.resolve import File, complete, draft
from neoxargs.train.engine import build as engine
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.blocks.sequential import TransformerBlock
from neoxargs.train.model.documents import unpack
from neoxargs.train.model.embedding import sinusoidal
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import fused
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import VOCABULARY, batch, randomised, small

START = """
dialect: neox-2021
num-layers: 4
hidden-size: 64
num-attention-heads: 4
seq-length: 16
hidden-dropout: 0
attention-dropout: 0
train-iters: 10
train_micro_batch_size_per_gpu: 2
"""


def configure(text: str = "") -> Config:
    values = yaml.safe_load(START) | (yaml.safe_load(text) or {})
    return complete(draft([File("my.yml", yaml.safe_dump(values))]), gpus=1)


def built(text: str = "") -> GPT:
    """The model of these values, other than `START`'s."""
    config = configure(text)
    return GPT(config, engine.vocabulary(config, VOCABULARY.size), Weights(), Shared())


def hidden(width: int = 64) -> Tensor:
    return torch.randn(2, 16, width, generator=torch.Generator().manual_seed(7))


@pytest.mark.shows("num-layers", "hidden-size")
def test_depth_and_width() -> None:
    assert len(built().layers) == 4
    model = built("{num-layers: 3, hidden-size: 96}")
    assert len(model.layers) == 3
    assert model.layers[2].mlp.dense_4h_to_h.weight.shape == (96, 384)
    assert model(batch(2)[0]).shape == (2, 16, 61)


@pytest.mark.shows("make-vocab-size-divisible-by")
@pytest.mark.parametrize(("text", "rows"), [("", 128), ("make-vocab-size-divisible-by: 50", 100)])
def test_rows_of_the_vocabulary(text: str, rows: int) -> None:
    assert built(text).embedding.weight.shape == (rows, 64)


@pytest.mark.shows("no-weight-tying")
def test_an_untied_output_layer() -> None:
    tied, untied = built(), built("no-weight-tying: true")
    assert tied.output.weight is tied.embedding.weight
    assert untied.output.weight is not untied.embedding.weight
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 128 * 64


@pytest.mark.shows("init-method-std")
def test_standard_deviation_of_initial_weights() -> None:
    small_ones, large = built(), built("init-method-std: 0.1")
    for name, weight in small_ones.state_dict().items():
        drawn = weight.dim() > 1
        torch.testing.assert_close(large.state_dict()[name], weight * 5 if drawn else weight)


@pytest.mark.shows("layernorm-epsilon")
def test_layernorm_epsilon() -> None:
    for text, epsilon in (("", 1e-5), ("layernorm-epsilon: 0.5", 0.5)):
        x, normed = hidden(), built(text).final_norm(hidden())
        centred = x - x.mean(-1, keepdim=True)
        torch.testing.assert_close(normed, centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt())


@pytest.mark.shows("rms-norm", "rms-norm-epsilon")
def test_rms_norm() -> None:
    new = "dialect: '2025-05-09'"
    for text, epsilon in (("rms-norm: true", 1e-8), (f"{{rms-norm: true, rms-norm-epsilon: 0.5, {new}}}", 0.5)):
        model = built(text)
        assert not any(name.endswith("norm.bias") for name in model.state_dict())
        x = hidden() + 1  # a mean that LayerNorm would take away
        torch.testing.assert_close(model.final_norm(x), x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt())


def test_epsilon_of_rms_norm_was_added_to_the_root() -> None:
    """In GPT-NeoX until 8 May 2025; an epsilon too small to matter is always under the root, in torch's kernel."""
    model = built("{norm: rmsnorm, rms-norm-epsilon: 0.5, dialect: '2025-05-08'}")
    x = hidden() + 1
    torch.testing.assert_close(model.final_norm(x), x / (x.square().mean(-1, keepdim=True).sqrt() + 0.5))
    assert [name for name in model.state_dict() if name.startswith("final_norm")] == ["final_norm.weight"]
    small = built("{norm: rmsnorm, dialect: '2025-05-08'}")
    assert type(small.final_norm) is torch.nn.RMSNorm


def tanh_gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.shows("openai-gelu", "bias-gelu-fusion", "onnx-safe")
@pytest.mark.parametrize(
    ("text", "gelu"),
    [("", F.gelu), ("openai-gelu: true", tanh_gelu), ("bias-gelu-fusion: true", tanh_gelu),
     ("onnx-safe: true", lambda x: x * torch.distributions.Normal(0, 1).cdf(x))],
)  # fmt: skip
def test_gelu(text: str, gelu: Any) -> None:
    mlp, x = randomised(built(text)).layers[0].mlp, hidden()
    inside = F.linear(x, mlp.dense_h_to_4h.weight, mlp.dense_h_to_4h.bias)
    expected = F.linear(gelu(inside), mlp.dense_4h_to_h.weight, mlp.dense_4h_to_h.bias)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-5, atol=1e-5)
    assert ("aten::erf" in operations(mlp, x)) == text.startswith("onnx")


def operations(module: torch.nn.Module, x: Tensor) -> set[str]:
    with torch.profiler.profile() as profile:
        module(x)
    return {event.name for event in profile.events()}


@pytest.mark.shows("geglu")
@pytest.mark.parametrize("more", ["", ", onnx-safe: true"])
def test_geglu(more: str) -> None:
    mlp, x = randomised(built(f"{{geglu: true{more}}}")).layers[0].mlp, hidden()
    value, gate = F.linear(x, mlp.dense_h_to_4h.weight, mlp.dense_h_to_4h.bias).chunk(2, -1)
    expected = F.linear(value * F.gelu(gate), mlp.dense_4h_to_h.weight, mlp.dense_4h_to_h.bias)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-5, atol=1e-5)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: (x + x.abs()) / 2,
    "softsign": lambda x: x / (1 + x.abs()),
    "swish": lambda x: x / (1 + (-x).exp()),
    "silu": lambda x: x / (1 + (-x).exp()),
    "mish": lambda x: x * torch.tanh(torch.log(1 + x.exp())),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    mlp, x = randomised(GPT(small(activation=name), VOCABULARY, Weights(), Shared())).layers[0].mlp, hidden(32)
    inside = F.linear(x, mlp.dense_h_to_4h.weight, mlp.dense_h_to_4h.bias)
    expected = F.linear(ACTIVATIONS[name](inside), mlp.dense_4h_to_h.weight, mlp.dense_4h_to_h.bias)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-5, atol=1e-4)


def standardised(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


NORMS: dict[str, tuple[dict[str, Any], Callable[..., Tensor]]] = {
    "layernorm": ({}, lambda x, weight, bias: standardised(x) * weight + bias),
    "without offset": ({"use_bias_in_norms": False}, lambda x, weight: standardised(x) * weight),
    "rmsnorm": ({"norm": "rmsnorm"}, lambda x, weight: x / x.square().mean(-1, keepdim=True).sqrt() * weight),
    "scalenorm": ({"norm": "scalenorm"}, lambda x, scale: scale * x / x.square().sum(-1, keepdim=True).sqrt()),
    "nothing learned": ({"norm": "non_parametric_layernorm"}, standardised),
}


@pytest.mark.parametrize("name", NORMS)
def test_norm(name: str) -> None:
    changes, formula = NORMS[name]
    layer, x = randomised(GPT(small(**changes), VOCABULARY, Weights(), Shared())).final_norm, hidden(32) + 1
    torch.testing.assert_close(layer(x), formula(x, *layer.parameters()), rtol=1e-5, atol=1e-5)


def test_norms_of_queries_and_keys() -> None:
    """Each head by itself, before anything turns it (Dehghani et al. 2023, arXiv:2302.05442)."""
    plain, normed = (
        randomised(GPT(small(use_qk_layernorm=choice, num_kv_heads=2), VOCABULARY, Weights(), Shared()))
        .layers[0]
        .attention.eval()
        for choice in (False, True)
    )
    normed.load_state_dict(plain.state_dict(), strict=False)
    assert normed.norms is not None
    x = hidden(32)
    groups = F.linear(x, plain.query_key_value.weight, plain.query_key_value.bias).view(2, 16, 2, 4, 8)
    query, key, value = groups[:, :, :, :2].flatten(2, 3), groups[:, :, :, 2], groups[:, :, :, 3]
    of_query, of_key = ([weight, bias] for weight, bias in (norm.parameters() for norm in normed.norms))
    query = standardised(query) * of_query[0] + of_query[1]
    key = (standardised(key) * of_key[0] + of_key[1]).repeat_interleave(2, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(8)
    weights = scores.masked_fill(torch.ones(16, 16).triu(1).bool(), -math.inf).softmax(-1)
    context = torch.einsum("bhqk,bkhd->bqhd", weights, value.repeat_interleave(2, dim=2)).flatten(2)
    torch.testing.assert_close(normed(x), normed.dense(context), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(normed(x), plain(x))


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_a_scale_of_one_plus_the_weight(name: str) -> None:
    plain = GPT(small(norm=name), VOCABULARY, Weights(), Shared())
    model, x = GPT(small(norm=name, apply_layernorm_1p=True), VOCABULARY, Weights(), Shared()), hidden(32) + 1
    torch.testing.assert_close(model.final_norm(x), plain.final_norm(x))
    assert not model.final_norm.weight.any()
    with torch.no_grad():
        model.final_norm.weight += 0.5
    torch.testing.assert_close(model.final_norm(x), 1.5 * plain.final_norm(x))


def test_where_norms_are() -> None:
    x = hidden(32)
    for placement in ("after", "both"):
        block = randomised(TransformerBlock(small(norm_placement=placement), Weights(), Shared()))
        before = [block.input_layernorm, block.post_attention_layernorm]
        if placement == "after":
            assert before == [None, None]
            before = [lambda x: x] * 2
        middle = x + block.attention_output_layernorm(block.attention(before[0](x)))
        expected = middle + block.mlp_output_layernorm(block.mlp(before[1](middle)))
        torch.testing.assert_close(block(x), expected)


def test_scaled_embeddings() -> None:
    """Of tokens, not of positions; the tied output layer reads them unscaled."""
    tokens, _ = batch(2)
    plain, scaled = (
        GPT(small(embedding_multiplier=factor), VOCABULARY, Weights(), Shared()).eval() for factor in (1.0, 3.0)
    )
    positions = plain.positions(plain.embedding(tokens) * 0)
    torch.testing.assert_close(scaled.positions(scaled.embedding(tokens)), 3 * plain.embedding(tokens) + positions)
    assert scaled.output.scale == 1.0


def test_scale_of_the_scores() -> None:
    """Equal to queries scaled by as much."""
    torch.manual_seed(1)
    plain = randomised(TransformerBlock(small(), Weights(), Shared())).attention.eval()
    scaled = TransformerBlock(small(softmax_scale=0.25), Weights(), Shared()).attention.eval()
    scaled.load_state_dict(plain.state_dict())
    x = hidden(32)
    assert not torch.allclose(plain(x), scaled(x))
    with torch.no_grad():  # rows by head: query, key, value
        for weight in (plain.query_key_value.weight, plain.query_key_value.bias):
            weight.view(4, 3, 8, -1)[:, 0] *= 0.25 * math.sqrt(8)
    torch.testing.assert_close(plain(x), scaled(x), rtol=1e-4, atol=1e-4)


@pytest.mark.shows("sinusoidal-pos-emb")
def test_sinusoidal_positions() -> None:
    model = built("sinusoidal-pos-emb: true")
    assert not list(model.positions.parameters())
    # Vaswani et al. 2017, section 3.5: even dimensions are sines, odd ones cosines; here they are sorted.
    paper = torch.tensor(
        [[(math.cos if i % 2 else math.sin)(p / 10000 ** ((i - i % 2) / 64)) for i in range(64)] for p in range(16)]
    )
    expected = torch.cat((paper[:, 0::2], paper[:, 1::2]), dim=1)
    added = model.positions(hidden()) - hidden()
    torch.testing.assert_close(added, expected.expand(2, 16, 64), rtol=0, atol=1e-5)
    torch.testing.assert_close(sinusoidal(torch.tensor(15), 64), expected[15], rtol=0, atol=1e-5)


def test_sinusoidal_positions_begin_anew_with_a_document() -> None:
    config = small(pos_emb="sinusoidal", reset_position_ids=True)
    model = GPT(config, VOCABULARY._replace(eod=60), Weights(), Shared())
    tokens = torch.tensor([[1, 2, 60, 3, 4, 5]])
    carried = model.embedding(tokens)
    added = unpack(model.positions(carried))[0] - model.embedding.word_embeddings(tokens)
    torch.testing.assert_close(added[0], sinusoidal(torch.tensor([0, 1, 2, 0, 1, 2]), 32), rtol=0, atol=1e-6)


@pytest.mark.shows("apply-residual-connection-post-layernorm")
def test_the_residual_after_the_norm() -> None:
    x, outputs = hidden(32), []
    for post in (False, True):
        config = small(apply_residual_connection_post_layernorm=post)
        torch.manual_seed(1)
        block = randomised(TransformerBlock(config, Weights(), Shared()))
        normed = block.input_layernorm(x)
        middle = (normed if post else x) + block.attention(normed)
        again = block.post_attention_layernorm(middle)
        outputs.append(block(x))
        torch.testing.assert_close(outputs[-1], (again if post else middle) + block.mlp(again))
    assert not torch.allclose(*outputs)


@pytest.mark.shows("hidden-dropout")
def test_hidden_dropout() -> None:
    kept, dropped = (built(f"hidden-dropout: {share}").train() for share in (0.0, 0.5))
    assert (kept.positions(hidden()) != 0).all()
    assert (dropped.positions(hidden()) == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    x = torch.zeros(2, 16, 64)
    assert kept.layers[0].add(x + 1, x).eq(1).all()
    assert set(dropped.layers[0].add(x + 1, x).unique().tolist()) == {0.0, 2.0}
    assert dropped.eval().layers[0].add(x + 1, x).eq(1).all()


@pytest.mark.compiler
@pytest.mark.shows("bias-dropout-fusion")
@pytest.mark.filterwarnings("ignore")
def test_one_compiled_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: there is a C++ compiler for the CPU here, though it would not pay."""
    monkeypatch.setattr(fused, "should_compile", lambda device: True)
    compiled = []
    compile_it = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or compile_it(function))
    fused._compiled.cache_clear()
    apart, together = (built(f"{{hidden-dropout: 0.5, bias-dropout-fusion: {value}}}") for value in ("false", "true"))
    x = hidden().requires_grad_()
    apart.layers[0].add(x, hidden())
    assert not compiled
    torch.manual_seed(1)
    out = together.layers[0].add(x, hidden() * 0)
    torch.manual_seed(1)
    assert torch.equal(together.layers[0].add(x, hidden() * 0), out)  # what recomputed activations rely on
    assert len(compiled) == 1
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert (gradient == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(out, gradient * x)
    fused._compiled.cache_clear()


def test_nothing_is_compiled_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", None)
    model = built("{hidden-dropout: 0.5, bias-dropout-fusion: true, bias-gelu-fusion: true}")
    model(*batch(2)).backward()
    monkeypatch.setattr(fused.shutil, "which", lambda name: None)
    fused.should_compile.cache_clear()
    assert not fused.should_compile("cuda")
    fused.should_compile.cache_clear()


@pytest.mark.shows("use-cpu-initialization", "lazy-mpu-init")
def test_device_of_weight_initialization(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        def current_device_name(self) -> str:
            return "cuda:0"

    monkeypatch.setattr(engine, "get_accelerator", Gpu)
    devices = {
        text: str(engine._init_device(configure(text)))
        for text in ("", "use-cpu-initialization: true", "lazy-mpu-init: true")
    }
    assert devices == {"": "cuda:0", "use-cpu-initialization: true": "cpu", "lazy-mpu-init: true": "cpu"}


def test_padding_is_of_the_written_size() -> None:
    config = configure("make-vocab-size-divisible-by: 7")
    assert engine.vocabulary(config, 61) == Vocabulary(61, 63)
