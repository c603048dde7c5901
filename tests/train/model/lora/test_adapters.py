"""What adapters compute, and how they start, on one process and on the slices of tensor parallel ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.facts import lora
from neoxargs.train.engine.frozen import freeze
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.lora.adapters import Adapters, assembled, attach, is_adapter
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.process.mesh import ALONE, Axis
from tests.support.small_gpt import VOCABULARY, batch, randomised, small

GATED = {"activation": "swiglu", "num_kv_heads": 2, "intermediate_size": 192, "no_weight_tying": True}


def configured(*targets: str, **changes: Any) -> Config:
    return small(**{"lora.rank": 3, "lora.alpha": 5.0, "lora.targets": list(targets) or ["all-linear"], **changes})


def model(config: Config, axis: Axis | None = None) -> GPT:
    weights = Weights(ranks=Ranks(axis or ALONE))
    gpt = GPT(config, VOCABULARY, weights, Shared())
    attach({"": gpt}, config, weights)
    freeze(gpt, config)
    return gpt


def merge(gpt: GPT) -> None:
    """Add the adapters to the weights, and remove them."""
    for module in gpt.modules():
        adapters = getattr(module, "lora", None)
        if isinstance(adapters, Adapters):
            deltas = {name: (one.B @ one.A).t() for name, one in adapters.named_children()}
            with torch.no_grad():
                module.weight += adapters.scale * assembled(adapters.target, deltas).t()  # type: ignore[operator]
            module.lora = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("targets", "changes"),
    [((), {}), ((), GATED), (("q_proj", "v_proj", "down_proj"), GATED),
     (("k_proj", "gate_proj", "o_proj"), {**GATED, "lora.rank_stabilized": True}),
     (("up_proj", "dense"), {"gpt_j_residual": True})],
)  # fmt: skip
def test_a_model_with_adapters_is_the_merged_model(targets: tuple[str, ...], changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = configured(*targets, **changes)
    gpt, (tokens, _) = randomised(model(config)), batch(2)
    assert sum(w.numel() for name, w in gpt.named_parameters() if is_adapter(name)) == lora.parameters(config)
    with_adapters = gpt(tokens)
    merge(gpt)  # type: ignore[arg-type]
    torch.testing.assert_close(gpt(tokens), with_adapters, rtol=1e-4, atol=2e-4)


def test_only_new_adapters_are_trained_and_they_change_nothing() -> None:
    config, (tokens, labels) = configured(), batch(2)
    gpt, plain = model(config), GPT(small(), VOCABULARY, Weights(), Shared())
    assert torch.equal(gpt(tokens), plain(tokens))
    gpt(tokens, labels).backward()
    trained = {name for name, weight in gpt.named_parameters() if weight.grad is not None}
    assert trained == {name for name, _ in gpt.named_parameters() if is_adapter(name)}
    assert all(weight.grad.any() for name, weight in gpt.named_parameters() if name.endswith(".B"))


def test_dropout_is_on_the_input_of_adapters_only() -> None:
    config, (tokens, _) = configured(**{"lora.dropout": 0.5}), batch(2)
    gpt = randomised(model(config))
    assert torch.equal(gpt.eval()(tokens), gpt(tokens))
    gpt.train()
    assert not torch.equal(gpt(tokens), gpt(tokens))
    merge(gpt)  # type: ignore[arg-type]
    assert torch.equal(gpt(tokens), gpt(tokens))


@pytest.mark.parametrize("targets", [("all-linear",), ("q_proj", "v_proj", "up_proj", "gate_proj")])
def test_initial_values_do_not_depend_on_the_layout(targets: tuple[str, ...]) -> None:
    config = configured(*targets, **GATED)
    whole = dict(model(config).named_parameters())
    ranks = [dict(model(config, Axis(2, rank)).named_parameters()) for rank in range(2)]
    for name in filter(is_adapter, whole):
        slices: list[Tensor] = [rank[name] for rank in ranks]
        if slices[0].shape == whole[name].shape:
            assert all(torch.equal(one, whole[name]) for one in slices)
        elif name.endswith(".A"):
            assert torch.equal(torch.cat(slices, dim=1), whole[name])
            assert name.split(".")[3] in ("dense", "dense_4h_to_h")
        else:
            assert [one.shape[0] * 2 for one in slices] == [whole[name].shape[0]] * 2
    found = {name: float(weight.detach().std()) for name, weight in whole.items() if name.endswith(".A")}
    assert all(
        std == pytest.approx(1 / (3 * 32) ** 0.5, rel=0.5) for name, std in found.items() if "4h_to_h" not in name
    )


def test_gaussian_initial_values() -> None:
    gpt = model(configured(**{"lora.init": "gaussian", "lora.rank": 8}))
    values = torch.cat([weight.flatten() for name, weight in gpt.named_parameters() if name.endswith(".A")])
    assert float(values.detach().std()) == pytest.approx(1 / 8, rel=0.1)
