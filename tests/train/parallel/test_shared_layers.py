"""Layers that share weights: which ones do, the same curve on every layout, and each weight held and counted once."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from neoxargs.facts.model import weights_of_layers
from neoxargs.registry.model import Shape
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import destroy_groups
from tests.support.layouts import RECOMPUTE, TENSOR, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch, build, join_shards, small
from tests.support.trials import Losses, Trial, resume, staged, train

STEPS = 4
GROUPED = {"num_layers": 4, "num_unique_layers": 2}
SPACED = GROUPED | {"param_sharing_style": "spaced"}


@pytest.mark.shows("num-unique-layers", "param-sharing-style")
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ({"num_layers": 4}, [0, 1, 2, 3]),
        ({"num_layers": 4, "num_unique_layers": 2}, [0, 1, 0, 1]),
        ({"num_layers": 4, "num_unique_layers": 2, "param_sharing_style": "spaced"}, [0, 0, 1, 1]),
        ({"num_layers": 6, "num_unique_layers": 3}, [0, 1, 2, 0, 1, 2]),
        ({"num_layers": 6, "num_unique_layers": 1, "param_sharing_style": "spaced"}, [0] * 6),
    ],
)
def test_which_layer_uses_which_weights(shape: dict[str, Any], order: list[int]) -> None:
    assert weights_of_layers(Shape(**shape)) == order
    unshared = GPT(small(num_layers=shape["num_layers"]), VOCABULARY, Weights(), Shared())
    model = GPT(small(**shape), VOCABULARY, Weights(), Shared())
    assert len(model.layers) == len(set(order))
    hidden = model.positions(model.embedding(batch(2)[0]))
    for index in order:  # one after the other, with the weights that an unshared model has at that place
        hidden = unshared.layers[index](hidden)
    logits = model.output(model.final_norm(hidden), model.loss.logits)
    torch.testing.assert_close(model(batch(2)[0]), logits)


#: What else a layer can be, on the same layouts.
OTHER = {
    "pos_emb": "sinusoidal", "apply_residual_connection_post_layernorm": True, "norm": "rmsnorm", "activation": "geglu",
}  # fmt: skip
ONE_PROCESS = {"other": Trial(OTHER), "grouped": Trial(GROUPED), "spaced": Trial(SPACED)}
TWO_PROCESSES = {
    "other, tp2": Trial(OTHER | TENSOR),
    "other, pp2": Trial(OTHER | TWO_STAGES),
    "grouped, tp2": Trial(GROUPED | TENSOR),
    "spaced, pp2": Trial(SPACED | TWO_STAGES),
    "grouped, pp2, recomputed": Trial(GROUPED | TWO_STAGES | RECOMPUTE),
    "grouped, dp2, ZeRO-2, recomputed": staged(2, GROUPED | RECOMPUTE),
    "grouped, dp2, ZeRO-3": staged(3, GROUPED),
}
FOUR_PROCESSES = {
    "other, tp2 x pp2": Trial(OTHER | TENSOR | TWO_STAGES),
    "grouped, tp2 x pp2": Trial(GROUPED | TENSOR | TWO_STAGES),
    "spaced, dp2 x pp2, ZeRO-1": Trial(SPACED | TWO_STAGES, {"zero_optimization": {"stage": 1}}),
}


RESUMED = {"pp2": Trial(GROUPED | TWO_STAGES)}
#: (style, tensor, pipe) of four ranks
LAYOUTS = [("grouped", 2, 2), ("spaced", 2, 2), ("grouped", 1, 4)]


class Found(NamedTuple):
    losses: dict[str, Losses]
    resumed: list[dict[str, tuple[list[float], list[float]]]]
    parts: list[list[tuple[dict[str, Tensor], int]]]


def two(folder: str) -> tuple[dict[str, Losses], dict[str, tuple[list[float], list[float]]]]:
    return train(TWO_PROCESSES, STEPS), resume(RESUMED, folder)


def four() -> tuple[dict[str, Losses], list[tuple[dict[str, Tensor], int]]]:
    return train(FOUR_PROCESSES, STEPS), parts()


def parts() -> list[tuple[dict[str, Tensor], int]]:
    """What this rank holds in each layout, and of how many numbers."""
    found = []
    for style, tensor, pipe in LAYOUTS:
        changes = {"param_sharing_style": style, "model_parallel_size": tensor, "pipe_parallel_size": pipe}
        model = build(small(**GROUPED | changes))
        weights = {name: p.detach().clone() for name, p in named_weights(model).items()}
        found.append((weights, sum(p.numel() for p in model.parameters())))
        destroy_groups()
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Everything that needs several processes, which take long to start."""
    alone = run_ranks(train, 1, ONE_PROCESS, STEPS)[0]
    by_two = run_ranks(two, 2, str(tmp_path_factory.mktemp("checkpoints")), timeout=250)
    by_four = run_ranks(four, 4, timeout=250)
    losses = alone | by_two[0][0] | by_four[0][0]
    return Found(losses, [rank[1] for rank in by_two], [rank[1] for rank in by_four])


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.shows("num-unique-layers", "param-sharing-style")
@pytest.mark.parametrize("name", [*ONE_PROCESS, *TWO_PROCESSES, *FOUR_PROCESSES])
def test_the_same_curve_on_every_layout(found: Found, name: str) -> None:
    losses = found.losses
    here, alone = losses[name], losses[name.split(",")[0]]
    assert here.train == pytest.approx(alone.train, abs=2e-4)
    assert here.norms == pytest.approx(alone.norms, rel=1e-3)  # tied gradients summed, and counted once
    assert here.held_out == pytest.approx(alone.held_out, abs=2e-4)
    other = losses["spaced" if name.startswith("grouped") else "grouped"]
    assert here.norms != pytest.approx(other.norms, rel=1e-3)


def test_stages_hold_shared_weights_once_and_start_from_the_same(found: Found) -> None:
    whole = {name: p.detach() for name, p in GPT(small(**GROUPED), VOCABULARY, Weights(), Shared()).named_parameters()}
    for number, (style, tensor, pipe) in enumerate(LAYOUTS):
        held = [rank[number][0] for rank in found.parts]
        assert [rank[number][1] for rank in found.parts] == [sum(p.numel() for p in mine.values()) for mine in held]
        layers = [sorted({name.split(".")[1] for name in mine if name.startswith("layers.")}) for mine in held]
        both = {("grouped", 2): [["0", "1"]] * 4, ("spaced", 2): [["0"], ["0"], ["1"], ["1"]]}
        assert layers == both.get((style, pipe), [["0"], ["1"], ["0"], ["1"]])
        joined = join_shards(held, whole)
        for name, value in whole.items():
            assert torch.equal(joined[name], value), (style, tensor, pipe, name)


def test_a_loaded_run_continues(found: Found) -> None:
    for rank in found.resumed:
        for name, (unbroken, resumed) in rank.items():
            assert resumed == unbroken, name
