"""`compile_layers`: each layer is compiled, layers share what is compiled, and losses are those without."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from neoxargs.train.engine import compiled
from neoxargs.train.model.blocks.parallel import ParallelTransformerBlock
from neoxargs.train.model.blocks.sequential import TransformerBlock
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.process.mesh import build_mesh
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

    monkeypatch.setattr(torch, "compile", lambda function, **_: compile_it(function, backend=keep, dynamic=False))
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
SHARDED = {"model_parallel_size": 2, "sequence_parallel": True}
TWO = {
    "tp2": Trial({"model_parallel_size": 2}),
    "tp2, recomputed": Trial({**LLAMA, "model_parallel_size": 2, "checkpoint_activations": True}),
    "tp2, LoRA": Trial({"model_parallel_size": 2, "lora.rank": 2}),
    "sequence_parallel": Trial({**LLAMA, **SHARDED}),
    "sequence_parallel, recomputed": Trial({**SHARDED, "checkpoint_activations": True}),
    "sequence_parallel, bf16": staged(1, SHARDED | {"precision": "bfloat16"}, bf16={"enabled": True}),
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
            rounding = 500 if "bf16" in name else 1
            assert found.train == pytest.approx(without[name].train, abs=1e-5 * rounding), name
            assert found.norms == pytest.approx(without[name].norms, rel=1e-4 * rounding), name
            assert found.held_out == pytest.approx(without[name].held_out, abs=1e-5 * rounding), name


def tensor_parallel(changes: dict[str, Any], options: dict[str, Any]) -> tuple[TransformerBlock, Tensor]:
    """Return this rank's part of a layer, compiled with torch.compile's `options`, and a random input of it."""
    config = small(model_parallel_size=2, **changes)
    ranks = Ranks(build_mesh(config).tensor, sequence_parallel=config.parallel.sequence_parallel)
    kind = ParallelTransformerBlock if changes.get("gpt_j_residual") else TransformerBlock
    torch.manual_seed(0)
    layer = randomised(kind(config, Weights(ranks=ranks), Shared()))
    layer.attention.prepare_for_compilation(torch.device("cpu"))
    layer.compile(dynamic=False, **options)
    shape = 2, config.shape.seq_length // ranks.sequence.size, config.shape.hidden_size
    return layer, torch.randn(shape, requires_grad=True)


def results(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Return a layer's output, and the gradients of its input and weights."""
    torch.manual_seed(1)
    output = layer(x)
    return [output, *torch.autograd.grad(output, [x, *layer.parameters()], torch.ones_like(output))]


def compare_layers(models: dict[str, dict[str, Any]]) -> dict[str, tuple[bool, float]]:
    """Return of each model whether its graph breaks, and the largest relative distance of a result from uncompiled."""
    from torch._dynamo.utils import counters

    found = {}
    for name, changes in models.items():
        torch._dynamo.reset()
        counters.clear()
        layer, x = tensor_parallel(changes, {"backend": "aot_eager"})
        compiled_results, breaks = results(layer, x), bool(counters["graph_break"])
        with torch.compiler.set_stance("force_eager"):
            pairs = zip(results(layer, x), compiled_results, strict=True)
            found[name] = breaks, max(float((one - other).norm() / one.norm()) for one, other in pairs)
    return found


SHARED_BY_RANKS: dict[str, dict[str, Any]] = {
    "GPT-3": {}, "Llama": LLAMA, "Pythia": {"pos_emb": "rotary", "gpt_j_residual": True},
    "OLMo 2": {"norm": "rmsnorm", "use_qk_layernorm": True, "qk_layernorm_scope": "all_heads"},
}  # fmt: skip
#: Model -> whether a call divides its graph: one that draws random numbers of each rank's own.
TENSOR_PARALLEL: dict[str, tuple[dict[str, Any], bool]] = {
    **{name: (model, False) for name, model in SHARED_BY_RANKS.items()},
    **{f"{name}, sharded": ({**model, "sequence_parallel": True}, False) for name, model in SHARED_BY_RANKS.items()},
    "dropout": ({"hidden_dropout": 0.1}, False),
    "dropout, sharded": ({"hidden_dropout": 0.1, "sequence_parallel": True}, True),
    "dropout of attention": ({"attention_dropout": 0.1}, True),
}


@pytest.mark.slow
def test_collectives_of_tensor_parallel_ranks_are_in_the_graph() -> None:
    models = {name: changes for name, (changes, _) in TENSOR_PARALLEL.items()}
    for found in run_ranks(compare_layers, 2, models):
        assert {name: broken for name, (broken, _) in found.items()} == {
            name: divided for name, (_, divided) in TENSOR_PARALLEL.items()
        }
        assert max(distance for _, distance in found.values()) < 1e-5, found


class Code(NamedTuple):
    """What a compiled layer does."""

    passes: list[list[str]]
    """Collectives, waits and matrix products of forward and backward pass, in order."""
    stored: int
    """Bytes for the backward pass, without weights."""
    uncompiled: int


def code(sequence_parallel: bool) -> Code:
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    layer, x = tensor_parallel({"sequence_parallel": sequence_parallel}, {"options": compiled.OPTIONS})
    _, sources = run_and_get_code(lambda: results(layer, x))
    stored = stored_bytes(layer, x)
    with torch.compiler.set_stance("force_eager"):
        return Code([calls(source) for source in sources], stored, stored_bytes(layer, x))


def calls(source: str) -> list[str]:
    names = r"^ +(?:\w+ = )?(?:torch\.ops\._c10d_functional\.(\w+)\.default|extern_kernels\.(?:add)?(mm))\("
    return ["".join(match) for match in re.findall(names, source, re.MULTILINE)]


def stored_bytes(layer: nn.Module, x: Tensor) -> int:
    weights, stored = {weight.data_ptr() for weight in layer.parameters()}, {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            stored[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(x)
    return sum(stored.values())


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_compiled_layers_communicate_in_one_order_and_compute_meanwhile(sequence_parallel: bool) -> None:
    first, second = run_ranks(code, 2, sequence_parallel, timeout=280)
    assert first == second
    forward, backward = first.passes
    reduce, gather, wait = "all_reduce_", "all_gather_into_tensor", "wait_tensor"  # gloo scatters what it reduces
    before, again = ([gather, wait], [gather, wait]) if sequence_parallel else ([], [])
    assert forward == [*before, "mm", "mm", reduce, wait, *before, "mm", "mm", reduce, wait]
    # The gradient of a weight is computed while that of the input is summed.
    half = ["mm", "mm", "mm", reduce, *again, "mm", wait]
    assert backward == [*before, *half, *before, *half]
    assert first.stored <= first.uncompiled
