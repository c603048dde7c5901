"""Initial weights depend on the seed and the parameter's name, not on who holds which part."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from neoxargs.registry.model import Init, Shape
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.init import METHODS, initial_matrices, initial_values, initializer
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.process.mesh import Axis, destroy_groups
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, build, join_shards, small


def one_process(seed: int = 1234) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in GPT(small(), VOCABULARY, Weights(seed), Shared()).named_parameters()}


#: (tensor, pipe); the other ranks of four are data parallel.
LAYOUTS = {"tensor and data": (2, 0), "pipe and data": (1, 2), "tensor and pipe": (2, 2)}


def parts() -> dict[str, dict[str, Tensor]]:
    """What this rank holds in each layout."""
    torch.manual_seed(torch.distributed.get_rank())  # whatever the ranks drew before
    found = {}
    for layout, (tensor, pipe) in LAYOUTS.items():
        model = build(small(model_parallel_size=tensor, pipe_parallel_size=pipe))
        found[layout] = {name: p.detach().clone() for name, p in named_weights(model).items()}
        destroy_groups()
    return found


@pytest.mark.shows("model-parallel-size", "pipe-parallel-size")
def test_the_same_on_every_layout() -> None:
    """Tensor parallel ranks hold half of each matrix, pipeline stages half of the layers."""
    whole, ranks = one_process(), run_ranks(parts, 4)
    rows, last = whole["layers.0.mlp.dense_h_to_4h.weight"].shape[0], "layers.1.mlp.dense_h_to_4h.weight"
    halves = [rank["tensor and data"]["layers.0.mlp.dense_h_to_4h.weight"].shape[0] for rank in ranks]
    assert halves == [rows // 2] * 4
    assert [last in rank["tensor and data"] for rank in ranks] == [True] * 4
    assert [last in rank["pipe and data"] for rank in ranks] == [False, False, True, True]
    for layout in LAYOUTS:
        found = join_shards([rank[layout] for rank in ranks], whole)
        for name, value in whole.items():
            assert torch.equal(found[name], value), (layout, name)


class Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that an operator returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.untyped_storage().nbytes() // result.element_size())
        return result


def test_drawing_leaves_gradients_on() -> None:
    draw = initializer("normal", Init(), Shape(num_layers=2, hidden_size=16, num_attention_heads=2))
    matrices = initial_matrices((3, 2, 2), draw, 1, "experts")
    next(matrices)
    assert torch.is_grad_enabled()  # also while matrices are left to draw


@pytest.mark.parametrize(("split", "parts"), [(0, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("method", ["normal", "orthogonal", "xavier_uniform"])
def test_a_rank_draws_one_expert_at_a_time(split: int, parts: int, method: str) -> None:
    """The stack of all experts is never in memory, and its values are those of one process."""
    shape, draw = (8, 12, 16), initializer(method, Init(), Shape(num_layers=2, hidden_size=16, num_attention_heads=2))

    def stack(ranks: Ranks) -> Tensor:
        weights = Weights(ranks=ranks)
        return weights.parameter("experts", shape, draw, split, parts, by_expert=True).detach()

    whole, drawn = stack(Ranks()), list(initial_matrices(shape, draw, Weights().seed, "experts"))
    assert torch.equal(whole[-1], drawn[-1]) and not torch.equal(whole[0], whole[1])
    found = []
    for tensor in range(2):
        of_tensor = []
        for expert in range(4):
            with Largest() as largest:
                own = stack(Ranks(Axis(2, tensor), Axis(4, expert)))
            assert own.numel() * 8 == whole.numel() and largest.elements < whole.numel() // 4
            of_tensor.append(own)
        found.append(torch.cat(of_tensor))
    shares = [of_rank.chunk(parts, split)[part] for part in range(parts) for of_rank in found]
    assert torch.equal(torch.cat(shares, split), whole)


@pytest.mark.shows("seed")
def test_another_seed_gives_other_weights() -> None:
    first, second = one_process(1), one_process(2)
    drawn = [name for name, value in first.items() if value.std() > 0]
    assert drawn
    assert not any(torch.equal(first[name], second[name]) for name in drawn)


def test_no_two_parameters_are_drawn_alike() -> None:
    drawn = [value.flatten()[:32] for value in one_process().values() if value.std() > 0]
    for index, value in enumerate(drawn):
        assert not any(torch.allclose(value / value.std(), other / other.std()) for other in drawn[:index])


def test_padding_the_vocabulary_further_changes_nothing_else() -> None:
    narrow, wide = (
        GPT(small(no_weight_tying=True), Vocabulary(61, padded), Weights(), Shared()).state_dict()
        for padded in (64, 128)
    )
    for name, value in narrow.items():
        assert torch.equal(wide[name][: len(value)], value), name
    for name in ("embedding.word_embeddings.weight", "output.weight"):
        assert wide[name][:61].all()
        assert not wide[name][61:].any()


def test_a_slice_is_a_part_of_the_whole() -> None:
    method = METHODS["orthogonal"](0.02, 2, 32)
    whole = Weights().parameter("w", (8, 6), method)
    right = Weights(ranks=Ranks(Axis(2, 1))).parameter("w", (8, 6), method, split=1)
    assert torch.equal(right, whole[:, 3:])
    assert right.tensor_model_parallel
    assert not whole.tensor_model_parallel


#: What the standard deviation of a 256 x 256 matrix must be, for std 0.02, 8 layers and hidden size 64.
DEVIATIONS = {
    "normal": 0.02,
    "scaled_normal": 0.02 / 4,
    "single_residual_scaled_normal": 0.02 / math.sqrt(8),
    "orthogonal": math.sqrt(2 / 256),
    "scaled_orthogonal": math.sqrt(2 / 8 / 256),
    "xavier_uniform": math.sqrt(2 / 512),
    "xavier_normal": math.sqrt(2 / 512),
    "small_init": math.sqrt(2 / (5 * 64)),
    "wang_init": 2 / 8 / 8,
}


@pytest.mark.parametrize("method", METHODS)
def test_deviation(method: str) -> None:
    shape = Shape(num_layers=8, hidden_size=64)
    value = initial_values((256, 256), initializer(method, Init(init_method_std=0.02), shape), seed=1, name="w")
    assert value.mean().item() == pytest.approx(0, abs=0.02 * value.std().item())
    assert value.std().item() == pytest.approx(DEVIATIONS[method], rel=0.02)
