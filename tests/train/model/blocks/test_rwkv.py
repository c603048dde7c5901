"""The RWKV layer equals RWKV-6's formulas, written here token by token, and reads no later token.

The formulas were also compared with the package `rwkv` 0.8.32 of RWKV's authors: the logits of three layers and 150
tokens differ by less than 1e-4, where they are 9 on average.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.train.model.blocks.rwkv import RwkvTransformerBlock
from neoxargs.train.model.cache import Cache, attach
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import small

LAYERS, HIDDEN, WIDTH, HEADS = 3, 32, 64, 4
ByName = dict[str, Tensor]


def configuration(**changes: object) -> Config:
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
    return small(**sizes, dim_att=WIDTH, head_size=WIDTH // HEADS, ffn_dim=96, **changes)


def block(layer: int, config: Config | None = None) -> RwkvTransformerBlock:
    """Return a layer whose weights are all different from their initial values."""
    module = RwkvTransformerBlock(config or configuration(), Weights().at(f"layers.{layer}"), Shared(), layer)
    torch.manual_seed(layer)  # for the inputs of the tests, too
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.2 * torch.randn_like(weight)
    return module


def formulas(weights: ByName, x: Tensor, layer: int) -> Tensor:
    """One sample, (seq, hidden) -> (seq, hidden)."""
    if layer == 0:
        x = F.layer_norm(x, (HIDDEN,), weights["ln1.weight"], weights["ln1.bias"])
    x = x + _time_mixing(
        _inside(weights, "att"), F.layer_norm(x, (HIDDEN,), weights["ln1.weight"], weights["ln1.bias"])
    )
    normed = F.layer_norm(x, (HIDDEN,), weights["ln2.weight"], weights["ln2.bias"])
    return x + _channel_mixing(_inside(weights, "ffn"), normed)


def _time_mixing(p: ByName, sequence: Tensor) -> Tensor:
    state, previous, outputs = torch.zeros(HEADS, WIDTH // HEADS, WIDTH // HEADS), torch.zeros(HIDDEN), []
    for x in sequence:
        sx = previous - x
        low = torch.tanh((x + sx * p["time_maa_x"].flatten()) @ p["time_maa_w1"]).chunk(5)
        mixed = {
            name: x + sx * (p[f"time_maa_{name}"].flatten() + low[i] @ p["time_maa_w2"][i])
            for i, name in enumerate("wkvrg")
        }
        r = (p["receptance.weight"] @ mixed["r"]).view(HEADS, 1, -1)
        k = (p["key.weight"] @ mixed["k"]).view(HEADS, -1, 1)
        v = (p["value.weight"] @ mixed["v"]).view(HEADS, 1, -1)
        g = F.silu(p["gate.weight"] @ mixed["g"])
        w = p["time_decay"].flatten() + torch.tanh(mixed["w"] @ p["time_decay_w1"]) @ p["time_decay_w2"]
        y = r @ (state + p["time_faaaa"].unsqueeze(-1) * (k @ v))
        state = torch.exp(-torch.exp(w)).view(HEADS, -1, 1) * state + k @ v
        normed = F.group_norm(y.view(1, -1), HEADS, p["ln_x.weight"], p["ln_x.bias"], eps=64e-5).flatten()
        outputs.append(p["output.weight"] @ (normed * g))
        previous = x
    return torch.stack(outputs)


def _channel_mixing(p: ByName, sequence: Tensor) -> Tensor:
    previous, outputs = torch.zeros(HIDDEN), []
    for x in sequence:
        sx = previous - x
        k = torch.relu(p["key.weight"] @ (x + sx * p["time_maa_k"].flatten())) ** 2
        r = torch.sigmoid(p["receptance.weight"] @ (x + sx * p["time_maa_r"].flatten()))
        outputs.append(r * (p["value.weight"] @ k))
        previous = x
    return torch.stack(outputs)


def _inside(weights: ByName, prefix: str) -> ByName:
    return {name.removeprefix(f"{prefix}."): w for name, w in weights.items() if name.startswith(f"{prefix}.")}


@pytest.mark.parametrize("layer", [0, 2])
def test_a_layer_equals_the_formulas_forward_and_backward(layer: int) -> None:
    module = block(layer)
    weights = dict(module.named_parameters())
    x = torch.randn(2, 21, HIDDEN, requires_grad=True)
    ours, expected = module(x), torch.stack([formulas(weights, sample, layer) for sample in x])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    at = torch.randn_like(ours)
    gradients = (torch.autograd.grad((result * at).sum(), [x, *weights.values()]) for result in (ours, expected))
    for name, a, b in zip(["input", *weights], *gradients, strict=True):
        scale = b.abs().max().item()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * scale, msg=lambda text, name=name: f"{name}: {text}")


def test_a_token_reads_earlier_tokens_of_its_own_sample_only() -> None:
    """GPT-NeoX's layer reads the same token of other samples instead."""
    module = block(1)
    x = torch.randn(2, 20, HIDDEN)
    other = x.clone()
    other[0, 7] += torch.randn(HIDDEN)
    changed = (module(x) - module(other)).abs().amax(-1) > 1e-6
    assert not changed[1].any() and not changed[0, :7].any() and changed[0, 7:].all()


def test_documents_of_a_sample_are_computed_as_if_they_were_alone() -> None:
    module = block(1, configuration(reset_attention_mask=True))
    x = torch.randn(1, 20, HIDDEN)
    starts = torch.tensor([[0] * 3 + [3] * 14 + [17] * 3])
    together, where = module((x, starts))
    alone = [module((part, torch.zeros(part.shape[:2]))) for part in x.split([3, 14, 3], dim=1)]
    torch.testing.assert_close(together, torch.cat([part[0] for part in alone], 1), rtol=1e-4, atol=1e-4)
    assert where is starts


def test_initial_values_depend_on_channel_and_layer() -> None:
    layer, module = 1, RwkvTransformerBlock(configuration(), Weights(), Shared(), 1)
    b, a = layer / (LAYERS - 1), 1 - layer / LAYERS
    for i in (0, 5, HIDDEN - 1):
        q = i / HIDDEN
        for name, value in {"x": q**a, "w": q**a, "k": q**a, "v": q**a + 0.3 * b, "r": q ** (a / 2)}.items():
            assert getattr(module.att, f"time_maa_{name}")[0, 0, i].item() == pytest.approx(1 - value, abs=1e-6)
        assert module.ffn.time_maa_r[0, 0, i].item() == pytest.approx(1 - q**a, abs=1e-6)
    for n in (0, 9, WIDTH - 1):
        decay = -6 + 5 * (n / (WIDTH - 1)) ** (0.7 + 1.3 * b)
        bonus = b * (1 - n / (WIDTH - 1)) + 0.1 * ((n + 1) % 3 - 1)
        assert module.att.time_decay[0, 0, n].item() == pytest.approx(decay, abs=1e-5)
        assert module.att.time_faaaa.flatten()[n].item() == pytest.approx(bonus, abs=1e-6)
    assert 0 < module.att.time_maa_w1.abs().max() <= 1e-4
    assert 0.9 * HIDDEN**-0.5 < module.att.key.weight.abs().max() <= HIDDEN**-0.5


def test_the_state_of_each_row_continues_after_its_own_last_token() -> None:
    module = block(1).eval()
    x, lengths = torch.randn(2, 12, HIDDEN), torch.tensor([3, 9])
    cache = Cache(capacity=12)
    cache.lengths = lengths
    attach(module, cache)
    first = module(x[:, :9])  # row 0 is padded from token 3 on
    later = []
    for step in range(3):
        positions = (lengths + step).unsqueeze(1)
        cache.begin(positions, int(positions.max()) + 1)
        later.append(module(x[torch.arange(2).unsqueeze(1), positions]))
    attach(module, None)
    for row, length in enumerate(lengths.tolist()):
        cached = torch.cat([first[row, :length], *(step[row] for step in later)])
        torch.testing.assert_close(cached, module(x[row : row + 1, : length + 3])[0], rtol=1e-4, atol=1e-4)
