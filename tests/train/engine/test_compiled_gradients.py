"""A run with `compile_layers` does not begin if its kernels are wrong: faults are planted in what torch compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from neoxargs.base.problems import Problems
from neoxargs.train.engine.compiled import check_gradients, compile_layers
from neoxargs.train.losses import cross_entropy
from neoxargs.train.losses.cross_entropy import Loss
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.process import mesh, setup
from tests.support.ranks import run_ranks
from tests.support.refused import ids, refused
from tests.support.small_gpt import VOCABULARY, randomised, small
from tests.support.snapshots import pinned
from tests.support.trials import Training, Trial, staged

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")

COMPILE = torch.compile
CPU = torch.device("cpu")
LLAMA = {"pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu", "use_bias_in_mlp": False}
DOCUMENTS = {"reset_position_ids": True, "reset_attention_mask": True, "pos_emb": "rotary"}
#: Changes a graph's function: (its results) -> its results.
Fault = Callable[[list[Any]], list[Any]]


def check(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], forward: Fault = list, backward: Fault = list
) -> None:
    """Compile the layers of a model, with faults in the two graphs that torch makes of each, and compare them."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def with_fault(fault: Fault) -> Callable[..., Any]:
        return lambda graph, inputs: make_boxed_func(lambda *values: fault(list(graph(*values))))

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=with_fault(forward), bw_compiler=with_fault(backward))
    monkeypatch.setattr(torch, "compile", lambda function, **_: COMPILE(function, backend=backend, dynamic=False))
    config = small(**changes)
    model = randomised(GPT(config, VOCABULARY, Weights(), Shared())).train()
    compile_layers(model, CPU)
    before = torch.get_rng_state()
    check_gradients(model, config, 2, Loss(VOCABULARY), Ranks(), CPU)
    assert torch.equal(torch.get_rng_state(), before)  # a run's random numbers are those without the check


@pytest.mark.parametrize("changes", [{}, LLAMA, DOCUMENTS, {"gpt_j_residual": True}], ids=repr)
def test_right_kernels_pass(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, changes)


@pytest.mark.slow
def test_a_wrong_result_of_any_vector_or_of_the_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[torch.Size] = []

    def noted(results: list[Any]) -> list[Any]:
        shapes[:] = [x.shape if isinstance(x, Tensor) else torch.Size() for x in results]
        return results

    check(monkeypatch, {}, backward=noted)
    compared = [number for number, shape in enumerate(shapes) if len(shape) in (1, 3)]
    assert len(compared) == 9  # the input, four biases, weight and bias of two norms
    for number in compared:
        for fault in (torch.zeros_like, lambda x: x.flip(-1), lambda x: x / 0):
            planted = lambda results, at=number, fault=fault: [*results[:at], fault(results[at]), *results[at + 1 :]]  # noqa: E731
            [problem] = refused(lambda planted=planted: check(monkeypatch, {}, backward=planted))
            assert problem.id == "compiled-gradients", number


def test_a_wrong_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    pinned(refused(lambda: check(monkeypatch, {}, forward=lambda results: [1.5 * results[0], *results[1:]])))


def test_a_wrong_gradient_of_the_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = cross_entropy._losses_and_gradient, lambda *values: (right(*values)[0], -right(*values)[1])
    monkeypatch.setattr(cross_entropy, "should_compile", lambda device: True)
    config, loss = small(), Loss(VOCABULARY, compiled=True)
    model = GPT(config, VOCABULARY, Weights(), Shared())
    for kernel, found in ((right, False), (wrong, True)):
        monkeypatch.setattr(cross_entropy, "_compiled", lambda kernel=kernel: kernel)
        compare = lambda: check_gradients(model, config, 2, loss, Ranks(), CPU)  # noqa: E731
        assert [problem.id for problem in refused(compare)] == ["compiled-gradients"] if found else compare() is None


ENGINES = {
    "plain": Trial({}), "ZeRO-1": staged(1), "ZeRO-2": staged(2), "tp2": Trial({"model_parallel_size": 2}),
    "sequence_parallel": Trial({"model_parallel_size": 2, "sequence_parallel": True}),
    "pp2": Trial({"pipe_parallel_size": 2}),
}  # fmt: skip


def refused_by_engines(trials: dict[str, Trial], faulty: list[int]) -> dict[str, list[str]]:
    """Return the ids of what refuses to build each engine with backward passes that return zeros on faulty ranks."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def zeros(graph: Any, inputs: Any) -> Any:
        wrong = dist.get_rank() in faulty
        results = lambda values: [x * 0 if wrong and isinstance(x, Tensor) else x for x in graph(*values)]  # noqa: E731
        return make_boxed_func(lambda *values: results(values))

    backend = aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward), bw_compiler=zeros)
    torch.compile = lambda function, **_: COMPILE(function, backend=backend, dynamic=False)
    setup.start("nccl", seed=1)
    found = {}
    for name, trial in trials.items():
        torch._dynamo.reset()
        try:
            Training(trial._replace(config=trial.config | {"compile_layers": True}))
            found[name] = []
        except Problems as stop:
            found[name] = ids(stop.problems)
        mesh.destroy_groups()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("faulty", [[0, 1], [1]], ids=["all ranks", "one rank"])
def test_every_engine_refuses_to_begin(faulty: list[int]) -> None:
    """With all ranks of a run, whichever has the fault: one that went on would wait for the others."""
    for found in run_ranks(refused_by_engines, 2, ENGINES, faulty, timeout=280):
        assert found == {name: ["compiled-gradients"] for name in ENGINES}


def linear_after_zero3() -> bool:
    """Return whether an engine without ZeRO, built after one of ZeRO-3, computes with torch's own `linear`."""
    own = nn.functional.linear
    setup.start("nccl", seed=1)
    for trial, replaced in ((staged(3), True), (Trial({}), False)):
        Training(trial)
        assert (nn.functional.linear is not own) == replaced
        mesh.destroy_groups()
    return nn.functional.linear is own


@pytest.mark.slow
def test_layers_are_not_compiled_with_what_zero3_leaves_behind() -> None:
    """On a GPU, layers that were compiled with ZeRO-3's `linear` had gradients of zero."""
    assert run_ranks(linear_after_zero3, 1, timeout=280) == [True]
