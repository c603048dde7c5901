"""Activation checkpointing: equal losses and gradients, and each option does what it says, on every layout."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from typing import Any, NamedTuple

import pytest

from neoxargs.resolve import File, complete, draft
from neoxargs.train.process import mesh, setup
from tests.support.ranks import run_ranks
from tests.support.smallest import YAML
from tests.support.trials import Training, Trial

pytestmark = pytest.mark.slow

LAYERS, MICRO_BATCHES, STEPS = 4, 4, 2
#: One input of a layer: 2 samples of 16 tokens, 32 wide, in fp32.
INPUT = 2 * 16 * 32 * 4
ON = {"checkpoint_activations": True}
PARTITIONED = ON | {"partition_activations": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "each layer": ON,
    "selective": {"checkpoint_activations": "selective"},
    "two layers": ON | {"checkpoint_num_layers": 2},
    "deepspeed": ON | {"deepspeed_activation_checkpointing": True},
    "partitioned": PARTITIONED,
    "contiguous": PARTITIONED | {"contiguous_checkpointing": True, "activation_checkpointing.number_checkpoints": 4},
    "in main memory": ON | {"checkpoint_in_cpu": True},
    "synchronized": ON | {"synchronize_each_layer": True},
    "profiled": ON | {"profile_backward": True},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain tp2": {"model_parallel_size": 2},
    "pipeline tp2": {"model_parallel_size": 2, "pipe_parallel_size": 1},
    "pp2": {"pipe_parallel_size": 2},
}


class Seen(NamedTuple):
    """A step, an evaluation and another step, as one rank saw them."""

    losses: list[float]
    norms: list[float | None]
    parts: int
    """How often the backward pass computed a part of the model again."""
    kept: list[tuple[int, int]]
    """Bytes of inputs, and of what was kept of them."""
    buffers: int
    """Pieces of memory that everything that was kept lay in."""
    calls: dict[str, int]
    lines: list[str]


def observe(trials: dict[str, Trial]) -> dict[str, Seen]:
    setup.start("gloo", seed=1)
    found = {}
    for name, trial in trials.items():
        with Spies() as spies, contextlib.redirect_stdout(io.StringIO()) as output:
            built = Training(trial)
            results = [built.engine.train_step(built.batches)]
            held_out = built.engine.evaluate(built.micro_batches(0), 2).loss
            results.append(built.engine.train_step(built.batches))
        losses, norms = [result.loss for result in results], [result.grad_norm for result in results]
        lines = [line for line in output.getvalue().splitlines() if "recomputed" in line]
        calls = spies.calls
        found[name] = Seen([*losses, held_out], norms, calls["parts"], spies.kept, len(spies.places), calls, lines)
        mesh.destroy_groups()
    return found


class Spies(contextlib.ExitStack):
    """Look at what is recomputed, kept and waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.kept: list[tuple[int, int]] = []
        self.places: set[int] = set()

    def __enter__(self) -> Spies:
        from deepspeed.accelerator import get_accelerator
        from deepspeed.runtime.activation_checkpointing import checkpointing

        from neoxargs.train.engine import activation_store, recompute

        patch = self.enter_context(pytest.MonkeyPatch.context())
        self._count(patch, recompute, "checkpoint", "parts")
        self._count(patch, checkpointing.CheckpointFunction, "forward", "deepspeed")
        self._count(patch, get_accelerator(), "synchronize", "synchronize")
        keep = activation_store.Store.save

        def look(store: Any, x: Any) -> Any:
            result = keep(store, x)
            self.kept.append((x.nbytes, result.piece.nbytes))
            self.places.add(result.piece.untyped_storage().data_ptr())
            assert result.piece.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
            return result

        patch.setattr(activation_store.Store, "save", look)
        return self

    def _count(self, patch: pytest.MonkeyPatch, owner: Any, attribute: str, name: str) -> None:
        inner = getattr(owner, attribute)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return inner(*arguments, **options)

        patch.setattr(owner, attribute, staticmethod(counted) if isinstance(owner, type) else counted)


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Seen]]:
    """By layout and option; every rank's losses are those of the first."""
    base = {"num_layers": LAYERS, "hidden_dropout": 0.1}
    trials = {
        f"{a}|{b}": Trial(base | layout | option) for a, layout in LAYOUTS.items() for b, option in OPTIONS.items()
    }
    ranks = run_ranks(observe, 2, trials)
    assert all(rank[name].losses == ranks[0][name].losses for rank in ranks for name in trials)
    return {layout: {name: ranks[0][f"{layout}|{name}"] for name in OPTIONS} for layout in LAYOUTS}


layouts = pytest.mark.parametrize("layout", LAYOUTS)


@layouts
@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "none"])
def test_the_losses_and_gradients_are_those_without(seen: Any, layout: str, option: str) -> None:
    assert seen[layout][option].losses == pytest.approx(seen[layout]["none"].losses, abs=1e-6)
    assert seen[layout][option].norms == pytest.approx(seen[layout]["none"].norms, rel=1e-5)


@layouts
def test_selective_recomputation_changes_no_bit(seen: Any, layout: str) -> None:
    selective, none = seen[layout]["selective"], seen[layout]["none"]
    assert (selective.losses, selective.norms) == (none.losses, none.norms)
    assert selective.parts == none.parts == 0


@pytest.mark.shows("checkpoint-activations", "checkpoint-num-layers")
def test_splits_have_the_configured_length(seen: Any) -> None:
    parts = {name: seen["plain tp2"][name].parts / (STEPS * MICRO_BATCHES) for name in OPTIONS}
    assert parts["none"] == 0
    assert parts["each layer"] == LAYERS
    assert parts["two layers"] == LAYERS / 2


@layouts
@pytest.mark.shows("deepspeed-activation-checkpointing")
def test_deepspeeds_function_is_used(seen: Any, layout: str) -> None:
    assert seen[layout]["each layer"].calls.get("deepspeed", 0) == 0
    assert seen[layout]["deepspeed"].calls["deepspeed"] >= seen[layout]["each layer"].parts
    assert seen[layout]["deepspeed"].parts == 0


@layouts
@pytest.mark.shows("partition-activations", "activation_checkpointing")
def test_tensor_parallel_ranks_partition_activation_checkpoints(seen: Any, layout: str) -> None:
    share = 1 if layout == "pp2" else 2
    assert set(seen[layout]["partitioned"].kept) == {(INPUT, INPUT // share)}
    assert seen[layout]["each layer"].kept == []


@pytest.mark.shows("distribute-checkpointed-activations")
def test_megatrons_old_name() -> None:
    for value in ("true", "false"):
        config = complete(draft([File("x.yml", f"{YAML}distribute_checkpointed_activations: {value}\n")]), 2)
        assert config.recompute.partition_activations is (value == "true")


@layouts
@pytest.mark.shows("contigious-checkpointing")
def test_activation_checkpoints_share_one_buffer(seen: Any, layout: str) -> None:
    """Here of four pieces: the pipeline's stage also recomputes positions and keeps two micro batches at a time."""
    apart, together = seen[layout]["partitioned"], seen[layout]["contiguous"]
    assert together.kept == apart.kept
    assert together.buffers <= 3 < apart.buffers


@layouts
@pytest.mark.shows("checkpoint-in-cpu")
def test_activation_checkpoints_are_copied_to_host_memory(seen: Any, layout: str) -> None:
    assert set(seen[layout]["in main memory"].kept) == {(INPUT, INPUT)}
    assert seen[layout]["each layer"].kept == []


@layouts
@pytest.mark.shows("synchronize-each-layer")
def test_the_device_is_synchronized_around_each_pass(seen: Any, layout: str) -> None:
    here = seen[layout]
    more = here["synchronized"].calls.get("synchronize", 0) - here["each layer"].calls.get("synchronize", 0)
    passes = here["synchronized"].parts
    if layout == "plain tp2":
        assert more == 4 * passes
    else:  # which recomputes nothing of an evaluation, but calls the function there too
        assert 2 * passes < more < 4 * passes


@layouts
@pytest.mark.shows("profile-backward")
def test_the_time_of_each_part_is_printed(seen: Any, layout: str) -> None:
    assert seen[layout]["each layer"].lines == []
    lines = seen[layout]["profiled"].lines
    assert len(lines) >= STEPS * MICRO_BATCHES * LAYERS / 2
    assert lines[0].startswith("recomputed part of stage 0: forward ")
