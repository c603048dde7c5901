"""A step whose loss or gradient stands out is named, skipped or followed by other samples, as `on_spike` says."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from neoxargs.base.problems import Problems
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.deepspeed.optimizer_view import stored_tensors
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.engine.spikes import History, group_of, score
from neoxargs.train.process import mesh, setup
from neoxargs.train.track.metrics import Metrics
from neoxargs.train.track.report_page import page
from neoxargs.train.track.tracker import SpikeEvent, Tracker
from tests.support.damage import damage_weights
from tests.support.layouts import BF16
from tests.support.loops import loop_of
from tests.support.ranks import run_ranks
from tests.support.trials import SAMPLES, Training, Trial

#: The iteration whose gradient is planted, and how many there are.
BAD, STEPS = 6, 9
#: A step that is read when the next one has been started, because no checkpoint follows it.
LATE = 7
PLANTED = "layers.1.mlp.dense_h_to_4h.weight"
#: Where that weight is frozen, or there is none.
OTHERS = {
    "LoRA": "layers.1.mlp.dense_h_to_4h.lora.all.B", "experts": "layers.1.mlp.experts.dense_h_to_4h.weight",
}  # fmt: skip
OPTIONS: dict[str, Any] = {"spike_window": 6, "spike_threshold": 50.0, "train_iters": STEPS}


def trial(policy: str, deepspeed: dict[str, Any] | None = None, stage: int = 0, **config: Any) -> Trial:
    zero = {"zero_optimization": {"stage": stage}} if stage else {}
    return Trial(
        {**OPTIONS, "on_spike": policy, "zero_optimization.stage": stage, **config}, {**(deepspeed or {}), **zero}
    )


def test_the_score_is_the_distance_to_the_median_in_median_absolute_deviations() -> None:
    before = [2.0, 2.2, 2.1, 1.9, 9.0, 2.05, 2.15]
    middle = statistics.median(before)
    deviation = sorted(abs(x - middle) for x in before)[3] / 0.6745
    assert score(4.0, before) == pytest.approx((4.0 - middle) / deviation)
    assert score(1.0, before) < 0
    assert score(math.nan, before) == score(math.inf, before) == math.inf
    # Values that are nearly constant, and a weight that had no gradient so far.
    assert score(2.0001, [2.0] * 9) < 1
    assert score(4.0, [2.0] * 9) > 100
    assert score(1.0, [0.0] * 9) == 0


def test_nothing_is_judged_before_half_of_the_window_and_a_level_that_lasts_becomes_usual() -> None:
    history = History(8, 10.0)
    assert [history.judge({"loss": value}) for value in (2.0, 90.0, 2.1, 1.9)] == [None] * 4
    found = history.judge({"loss": 9.0, "layers.3": 1.0})
    assert found is not None and (found.quantity, found.value, found.group, found.steps) == ("loss", 9.0, "", 4)
    assert [history.judge({"loss": 9.0 + n / 100}) is None for n in range(8)][-1]
    assert History(8, 10.0).judge({"loss": math.nan}) is not None


def test_the_group_of_a_weight_is_its_layer_or_its_part() -> None:
    assert group_of("layers.7.attention.dense.weight") == "layers.7"
    assert group_of("embedding.word_embeddings.weight") == "embedding"


class Seen(NamedTuple):
    """What one rank saw of a run."""

    spikes: list[SpikeEvent]
    losses: list[float]
    skipped: list[bool]
    left_out: int
    weights: dict[str, torch.Tensor]
    problem: str
    order: list[str] = []
    """The checkpoints at the last spike, after a rollback, in the order in which a run continues from them."""


class Record(Tracker):
    def __init__(self, folder: str | None, damages: int | None = None) -> None:
        self.folder, self.order, self.damages = folder, list[str](), damages
        self.spikes: list[SpikeEvent] = []
        self.losses: list[float] = []
        self.skipped: list[bool] = []

    def on_spike(self, spike: SpikeEvent) -> None:
        self.spikes.append(spike)
        if self.folder:
            self.order = [each.name for each in checkpoint_folder.newest_first(Path(self.folder))]

    def on_save(self, iteration: int, folder: Path) -> None:
        if iteration == self.damages:
            damage_weights(folder)

    def on_step(self, step: Any) -> None:
        self.losses.append(step.loss)
        self.skipped.append(step.skipped)


def planted(name: str) -> str:
    """Return the weight of a trial whose gradient is planted."""
    return next((weight for kind, weight in OTHERS.items() if kind in name), PLANTED)


def train(trials: dict[str, Trial], factor: float, rank: int = 1, added: float = 0.0) -> dict[str, Seen]:
    """Train each; a rank multiplies the gradient of a weight of the second layer in one step, if it has it.

    added: what it adds to its losses of this step.
    """
    process = setup.start("gloo", seed=1)
    found = {}
    for name, one in trials.items():
        mine = process.rank == rank
        found[name] = _run(one, process, factor if mine else 1.0, added=added if mine else 0.0)
        mesh.destroy_groups()
    return found


def _run(
    one: Trial, process: Any, factor: float, bad: tuple[int, ...] = (BAD,), spent: bool = False, read_every: int = 1,
    damages: int | None = None, added: float = 0.0,
) -> Seen:  # fmt: skip
    """spent: whether what was planted is in the samples that a rollback leaves out. read_every: as of Loop.
    added: to the losses of the bad steps, not to their gradients.
    damages: the iteration whose checkpoint is damaged after it was saved.
    """
    built = Training(one)
    saver = built.checkpoints(process)
    saver.spikes = built.engine.spikes
    record = Record(one.config.get("save"), damages)
    loop = loop_of(built, saver, [record])
    loop.read_every = read_every
    if one.config.get("load"):
        loop.position = saver.load()

    def is_bad() -> bool:
        return loop.position.iteration + 1 in bad and not (spent and record.spikes)

    weights = named_weights(built.engine.deepspeed.module)
    for name in (PLANTED, *OTHERS.values()):
        if name in weights and weights[name].requires_grad:
            weights[name].register_hook(lambda gradient: gradient * (factor if is_bad() else 1.0))
    if added:
        module: Any = built.engine.deepspeed.module
        if one.config.get("pipe_parallel_size"):
            loss = module.loss_fn
            module.loss_fn = lambda *given: loss(*given) + added * is_bad()
        else:
            module.register_forward_hook(lambda _, given, loss: loss + added * is_bad())
    try:
        loop.run()
        problem = ""
    except Problems as problems:
        problem = problems.problems[0].id
    left_out = loop.position.left_out
    return Seen(record.spikes, record.losses, record.skipped, left_out, stored(built), problem, record.order)


def stored(built: Training) -> dict[str, torch.Tensor]:
    tensors = enumerate(stored_tensors(built.engine.deepspeed))
    return {f"{name} {number}": tensor.detach().clone() for number, (name, tensor) in tensors}


LAYOUTS: dict[str, dict[str, Any]] = {
    "dp": {}, "ZeRO-1": {"stage": 1}, "ZeRO-3": {"stage": 3}, "bf16": {"deepspeed": BF16},
    "bf16 ZeRO-2": {"deepspeed": BF16, "stage": 2}, "tp": {"model_parallel_size": 2}, "pp": {"pipe_parallel_size": 2},
    "bf16 pp": {"deepspeed": BF16, "pipe_parallel_size": 2},
    "LoRA": {"lora.rank": 4}, "bf16 ZeRO-1 LoRA": {"deepspeed": BF16, "stage": 1, "lora.rank": 4},
    "experts": {"moe_num_experts": 4, "moe_expert_parallel_size": 2},
    "bf16 ZeRO-1 experts": {"deepspeed": BF16, "stage": 1, "moe_num_experts": 4, "moe_expert_parallel_size": 2},
}  # fmt: skip
TRIALS = {
    f"{name} {policy}": trial(policy, **layout) for name, layout in LAYOUTS.items() for policy in ("warn", "skip")
}


@pytest.fixture(scope="module")
def spiked() -> list[dict[str, Seen]]:
    return run_ranks(train, 2, TRIALS, 1e4, timeout=550)


@pytest.fixture(scope="module")
def broken() -> list[dict[str, Seen]]:
    return run_ranks(train, 2, {name: one for name, one in TRIALS.items() if "skip" in name}, math.nan, timeout=550)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.shows("on_spike", "spike_threshold", "spike_window")
@pytest.mark.parametrize("name", TRIALS)
def test_a_gradient_that_one_rank_plants_is_named(spiked: list[dict[str, Seen]], name: str) -> None:
    first, second = (rank[name] for rank in spiked)
    assert first.spikes == second.spikes and len(first.losses) == STEPS
    spike = first.spikes[0]
    assert (spike.iteration, spike.quantity) == (BAD, "layers.1")
    assert f"{planted(name)} on rank 1" in spike.where
    assert ("(pipeline stage 1)" in spike.where) == ("pp" in name)
    assert (spike.samples, spike.steps) == (((BAD - 1) * SAMPLES, BAD * SAMPLES - 1), BAD - 1)
    assert first.skipped[BAD - 1] == ("skip" in name)
    if "skip" in name:
        assert first.skipped.count(True) == len(first.spikes) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in TRIALS if "skip" in name])
def test_nan_of_one_layer_on_one_rank_is_named_and_skipped(
    spiked: list[dict[str, Seen]], broken: list[dict[str, Seen]], name: str
) -> None:
    """The run that follows does not depend on what was skipped."""
    for number, (seen, other) in enumerate(zip(broken, spiked, strict=True)):
        [spike] = seen[name].spikes
        assert all(word in spike.where for word in (planted(name), "rank 1", "NaN"))
        assert spike.iteration == BAD and spike.score == math.inf
        assert seen[name].losses == other[name].losses, number
        assert all(tensor.isfinite().all() for tensor in seen[name].weights.values())
        assert all(map(torch.equal, seen[name].weights.values(), other[name].weights.values()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_loss_that_one_rank_plants_is_reported_with_its_samples(spiked: list[dict[str, Seen]]) -> None:
    """It has no part in the gradients; the run that follows is that in which a gradient was planted and skipped."""
    trials = {name: one for name, one in TRIALS.items() if name.split()[0] in ("dp", "pp", "experts")}
    for ranks, other in zip(run_ranks(train, 2, trials, 1.0, 1, 100.0), spiked, strict=True):
        for name, seen in ranks.items():
            [spike] = seen.spikes
            assert (spike.iteration, spike.quantity, spike.steps) == (BAD, "loss", BAD - 1), name
            assert spike.samples == ((BAD - 1) * SAMPLES, BAD * SAMPLES - 1)
            share = 1 if name.startswith("pp") else 2
            assert spike.value == seen.losses[BAD - 1] == pytest.approx(spike.median + 100 / share, abs=2), name
            assert seen.skipped == [name.endswith("skip") and step == BAD - 1 for step in range(STEPS)]
            if name.endswith("skip"):
                assert seen.losses[BAD:] == other[name].losses[BAD:]


def resumed(folder: str, layout: dict[str, Any], bad: float, other: dict[str, Any] | None = None) -> list[Seen]:
    """Train without an interruption; then again until the spike, and from the checkpoint after it.

    other: the layout in which it goes on, if not the same.
    """
    process = setup.start("gloo", seed=1)
    runs = []
    for number, config in enumerate((
        {}, {"train_iters": BAD, "save": folder, "lr_decay_iters": 30}, {"load": folder},
    )):  # fmt: skip
        used = other if other is not None and "load" in config else layout
        one = trial("skip_samples", spike_skip_samples=2 * SAMPLES, **{**used, **config})
        runs.append(_run(one, process, bad if process.rank == 1 else 1.0))
        mesh.destroy_groups()
        assert number < 3
    return runs


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.shows("spike_skip_samples")
@pytest.mark.parametrize("name", ["ZeRO-1", "pp"])
def test_the_next_samples_are_left_out_also_by_a_run_resumed_after_the_spike(tmp_path: Path, name: str) -> None:
    ranks = run_ranks(resumed, 2, str(tmp_path / "run"), LAYOUTS[name], 1e4, timeout=250)
    by_hand = run_ranks(moved, 2, LAYOUTS[name], timeout=250)
    for (whole, first, second), expected in zip(ranks, by_hand, strict=True):
        assert whole.left_out == second.left_out == 2 * SAMPLES
        assert [*first.losses, *second.losses] == whole.losses == expected.losses
        assert all(map(torch.equal, whole.weights.values(), second.weights.values()))
        assert all(map(torch.equal, whole.weights.values(), expected.weights.values()))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "other"), [("ZeRO-1", "pp"), ("pp", "ZeRO-3"), ("dp", "tp")])
def test_a_run_that_goes_on_in_another_layout_leaves_out_the_same_samples(
    tmp_path: Path, name: str, other: str
) -> None:
    ranks = run_ranks(resumed, 2, str(tmp_path / "run"), LAYOUTS[name], 1e4, LAYOUTS[other], timeout=250)
    for whole, first, second in ranks:
        assert whole.left_out == second.left_out == 2 * SAMPLES and not second.spikes
        # Sums of gradients in another order.
        assert [*first.losses, *second.losses] == pytest.approx(whole.losses, abs=1e-5)


def by_hand(one: Trial, last: int, sample: int, factor: float = 1.0) -> Seen:
    """Train, and after step `last` go on with the data from a sample on. factor: of the gradient in the bad step."""
    built = Training(one)
    weights, losses, number = named_weights(built.engine.deepspeed.module), [], 0
    if PLANTED in weights:
        weights[PLANTED].register_hook(lambda gradient: gradient * (factor if number == BAD else 1.0))
    for number in range(1, STEPS + 1):
        if number == last + 1:
            built.batches = built.micro_batches(sample)
        losses.append(built.step())
    return Seen([], losses, [], 0, stored(built), "")


def moved(layout: dict[str, Any]) -> Seen:
    """Take the same decisions by hand: the update is skipped, and the data moved."""
    factor = 1e4 if setup.start("gloo", seed=1).rank == 1 else 1.0
    return by_hand(trial("skip", **layout), BAD, (BAD + 2) * SAMPLES, factor)


def many(one: Trial) -> Seen:
    process = setup.start("gloo", seed=1)
    return _run(one, process, 1e4, bad=(BAD, BAD + 1, BAD + 2))


@pytest.mark.slow
@pytest.mark.shows("max_spikes")
@pytest.mark.parametrize(("most", "problem"), [(2, "spikes-keep-coming"), (3, "")])
def test_the_run_stops_at_one_spike_too_many(most: int, problem: str) -> None:
    [seen] = run_ranks(many, 1, trial("skip", max_spikes=most))
    assert (seen.problem, len(seen.spikes)) == (problem, 3)


def test_a_spike_is_a_row_of_the_metrics(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.file = metrics.path.open("a", buffering=1)
    metrics.on_spike(SpikeEvent(7, "loss", math.inf, math.nan, math.inf, "rank 1", (48, 55), "skip"))
    metrics.file.close()
    [row] = map(json.loads, metrics.path.read_text().splitlines())
    assert row["event"] == "spike" and row["step"] == 7 and row["value"] is None and row["samples"] == [48, 55]
    assert row["decision"] == "skip"
    step = {"event": "step", "step": 7, "loss": 9.0, "tokens_per_second": 1, "samples": 56, "elapsed": 1.0}
    written = page([step, row], "", [], tmp_path)
    assert "48 to 55" in written and "not finite" in written
    assert "48 to 55" not in page([step], "", [], tmp_path)


def rolled_back(layout: dict[str, Any], folder: str, factor: float, back: int, bad: int) -> list[Seen]:
    """Train with a spike and a rollback; then the same by hand; then resumed from a checkpoint after the rollback."""
    process = setup.start("gloo", seed=1)
    factor = factor if process.rank == 1 else 1.0
    saving = {"save": folder, "checkpoint_factor": 2, "spike_skip_samples": SAMPLES, "spike_rollback_checkpoints": back}
    runs = [_run(trial("rollback", **layout, **saving), process, factor, (bad,), spent=True, read_every=3)]
    mesh.destroy_groups()
    kept = kept_of(back, bad)
    runs.append(by_hand(trial("warn", **layout), kept, (bad + 1) * SAMPLES))
    mesh.destroy_groups()
    # As a run that was ended right after the rollback.
    resumed = {"load": folder, "iteration": kept}
    runs.append(_run(trial("rollback", **layout, **resumed, save=f"{folder}2"), process, 1.0))
    mesh.destroy_groups()
    return runs


def kept_of(back: int, bad: int) -> int:
    """Return the iteration of the checkpoint that a run goes back to, which saves every second step."""
    return (bad - 1) // 2 * 2 - 2 * (back - 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.shows("spike_rollback_checkpoints")
@pytest.mark.parametrize(("name", "factor", "back", "bad"), [
    ("dp", 1e4, 1, BAD), ("ZeRO-1", math.nan, 2, BAD), ("ZeRO-3", 1e4, 1, BAD), ("bf16", math.nan, 1, BAD),
    ("bf16 ZeRO-2", 1e4, 2, BAD), ("tp", 1e4, 2, BAD), ("pp", math.nan, 1, BAD), ("bf16 pp", 1e4, 2, BAD),
    ("dp", 1e4, 1, LATE), ("ZeRO-1", math.nan, 2, LATE), ("pp", 1e4, 1, LATE),
])  # fmt: skip
def test_a_rollback_is_the_run_that_never_saw_the_samples(
    tmp_path: Path, name: str, factor: float, back: int, bad: int
) -> None:
    kept, folder = kept_of(back, bad), str(tmp_path / "run")
    for whole, by_hand, again in run_ranks(rolled_back, 2, LAYOUTS[name], folder, factor, back, bad):
        assert [spike.back_to for spike in whole.spikes] == [kept]
        assert whole.order[0] == f"global_step{kept}" and len(whole.order) == (bad - 1) // 2
        assert whole.left_out == again.left_out == (bad - kept + 1) * SAMPLES
        assert [*whole.losses[:kept], *whole.losses[bad:]] == by_hand.losses
        assert again.losses == by_hand.losses[kept:]
        for other in (by_hand, again):
            assert all(map(torch.equal, whole.weights.values(), other.weights.values()))
    newest = checkpoint_folder.newest_first(tmp_path / "run")
    assert newest[0].name == f"global_step{STEPS}"


def after_damage(one: Trial) -> Seen:
    return _run(one, setup.start("gloo", seed=1), 1e4, spent=True, damages=BAD - 2)


@pytest.mark.slow
def test_a_rollback_passes_over_a_checkpoint_that_was_damaged(tmp_path: Path) -> None:
    [seen] = run_ranks(after_damage, 1, trial("rollback", save=str(tmp_path / "run"), checkpoint_factor=2))
    assert [spike.back_to for spike in seen.spikes] == [BAD - 4] and seen.left_out == 4 * SAMPLES


def before_any(one: Trial) -> Seen:
    return _run(one, setup.start("gloo", seed=1), math.nan, bad=(1,))


@pytest.mark.slow
def test_a_spike_before_the_first_checkpoint_ends_a_run_that_would_roll_back(tmp_path: Path) -> None:
    [seen] = run_ranks(before_any, 1, trial("rollback", save=str(tmp_path / "run"), checkpoint_factor=2))
    assert seen.problem == "spike-before-first-checkpoint"
    assert [spike.iteration for spike in seen.spikes] == [1]
