"""`compile_layers`: each layer is compiled, layers share what is compiled, and losses are those without."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from neoxargs.train.engine import compiled
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.ranks import run_ranks
from tests.support.refused import refused
from tests.support.small_gpt import VOCABULARY, batch, randomised, small
from tests.support.snapshots import pinned
from tests.support.trials import Losses, Trial, staged, train

# torch's compiler looks at gradients of all tensors, which torch warns of.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")

LAYERS, STEPS = 4, 2
LLAMA = {
    "pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu", "num_kv_heads": 2, "use_bias_in_mlp": False,
    "use_bias_in_attn_linear": False,
}  # fmt: skip
BIGBIRD = {
    "attention_config": ["bigbird"] * LAYERS,
    "sparsity_config": {"block": 2, "different_layout_per_head": True, "num_random_blocks": 1},
}
DOCUMENTS = {"reset_position_ids": True, "reset_attention_mask": True, "pos_emb": "rotary"}


class Traced(NamedTuple):
    """Losses of three passes of a model, without compilation and with it, and the graphs that were traced."""

    expected: list[float]
    losses: list[float]
    graphs: int
    operations: int
    """In all graphs."""


def traced(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Compile the layers as far as their graphs, which then run operation by operation."""
    torch._dynamo.reset()
    graphs: list[Any] = []
    compile_it = torch.compile

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_it(function, backend=keep, **options))
    plain, other = (randomised_model(changes) for _ in range(2))
    compiled.compile_layers(other, torch.device("cpu"))
    losses: list[list[float]] = [[], []]
    for seed in range(3):
        for found, model in zip(losses, (plain, other), strict=True):
            loss = model(*batch(2, seed))
            loss.backward()
            found.append(loss.item())
    return Traced(*losses, len(graphs), sum(len(graph.graph.nodes) for graph in graphs))


def randomised_model(changes: dict[str, Any]) -> GPT:
    torch.manual_seed(0)
    model = randomised(GPT(small(num_layers=LAYERS, **changes), VOCABULARY, Weights(), Shared()))
    assert isinstance(model, GPT)
    return model.train()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, LLAMA, {"pos_emb": "rotary", "gpt_j_residual": True}], ids=repr)
def test_a_layer_is_one_graph_which_all_layers_share(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = traced(changes, monkeypatch)
    assert found.losses == found.expected
    assert found.graphs == 1


@pytest.mark.slow
@pytest.mark.parametrize("changes", [BIGBIRD, {"pos_emb": "alibi", "sliding_window_width": 3}, DOCUMENTS], ids=repr)
def test_masks_divide_a_layer_into_four_graphs(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after attention's kernel, inside of attention and outside of it."""
    found = traced(changes, monkeypatch)
    assert found.losses == found.expected
    assert found.graphs == 4
    assert found.operations > 40


def test_a_gpu_without_triton_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "should_compile", lambda device: False)
    pinned(refused(lambda: compiled.compile_layers(randomised_model({}), torch.device("cuda"))))


ONE = {"plain engine": Trial(LLAMA), "recomputed": Trial({**LLAMA, "checkpoint_activations": True})}
TWO = {
    "tp2": Trial({"model_parallel_size": 2}),
    "pp2": Trial({"pipe_parallel_size": 2}),
    "ZeRO-2": staged(2),
}


def train_twice(trials: dict[str, Trial]) -> tuple[dict[str, Losses], dict[str, Losses], int]:
    """Losses without and with compiled layers, and the number of compiled graphs."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    without = train(trials, STEPS)
    assert not counters["stats"]
    compiled_trials = {
        name: Trial(trial.config | {"compile_layers": True}, trial.deepspeed) for name, trial in trials.items()
    }
    return without, train(compiled_trials, STEPS), counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize(("world", "trials"), [(1, ONE), (2, TWO)])
def test_losses_and_gradients_are_those_without(world: int, trials: dict[str, Trial]) -> None:
    for without, compiled_losses, graphs in run_ranks(train_twice, world, trials, timeout=500):
        assert graphs
        for name, found in compiled_losses.items():
            assert found.train == pytest.approx(without[name].train, abs=1e-5), name
            assert found.norms == pytest.approx(without[name].norms, rel=1e-4), name
            assert found.held_out == pytest.approx(without[name].held_out, abs=1e-5), name
