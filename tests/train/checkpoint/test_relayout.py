"""A checkpoint of one layout loads on any other: equal weights, optimizer states, schedule and data."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.process import mesh, setup
from tests.support import trials as shared
from tests.support.layouts import BF16, PIPE, TENSOR, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.relayout import STEPS, Curves, read, write
from tests.support.trials import SAMPLES, Training, Trial, staged

#: Summed in fp32 by DeepSpeed's bf16 optimizer, and in bf16 by ZeRO-1.
ALONE = {
    "1 process": Trial(),
    "bf16": Trial({}, BF16),
    "bf16, summed in bf16": Trial({}, BF16 | {"data_types": {"grad_accum_dtype": "bf16"}}),
}
BY_TWO = {
    "tp2": Trial(TENSOR),
    "pp2": Trial(TWO_STAGES),
    "dp2 ZeRO-1 pipeline": staged(1, PIPE),
    "dp2 ZeRO-2": staged(2),
    "dp2 ZeRO-3": staged(3),
}
LAYOUTS = ALONE | BY_TWO
FP32 = [name for name in LAYOUTS if not name.startswith("bf16")]


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Curves, dict[str, Curves]]:
    """Losses of each layout after saving, and after loading each other layout's checkpoint."""
    root, before, after = str(tmp_path_factory.mktemp("layouts")), {}, {}
    for world, trials in ((1, ALONE), (2, BY_TWO)):
        before |= run_ranks(write, world, trials, root, timeout=200)[0]
    for world, trials in ((1, ALONE), (2, BY_TWO)):
        after |= run_ranks(read, world, trials, list(LAYOUTS), root, timeout=200)[0]
    return before, after


@pytest.mark.timeout(600)
@pytest.mark.parametrize("there", FP32)
@pytest.mark.parametrize("here", FP32)
def test_the_loss_curve_continues_on_any_layout(
    curves: tuple[Curves, dict[str, Curves]], here: str, there: str
) -> None:
    before, after = curves
    assert after[here][there] == pytest.approx(before[there], abs=2e-6)


@pytest.mark.parametrize("there", LAYOUTS)
@pytest.mark.parametrize("here", [name for name in LAYOUTS if name.startswith("bf16")])
def test_the_loss_curve_continues_in_another_precision(
    curves: tuple[Curves, dict[str, Curves]], here: str, there: str
) -> None:
    before, after = curves
    assert after[here][there] == pytest.approx(before[there], abs=1e-3)
    assert after[there][here] == pytest.approx(before[here], abs=1e-3)


def test_the_tolerance_would_reveal_a_fresh_optimizer(curves: tuple[Curves, dict[str, Curves]]) -> None:
    """The losses after the checkpoint move by far more than the tolerance."""
    first, *_, last = curves[0]["1 process"]
    assert abs(first - last) > 1e-2


def special(root: str) -> dict[str, Any]:
    """Special cases, in one process."""
    process = setup.start("gloo", seed=1)
    found: dict[str, Any] = {}

    def loaded(name: str, trial: Trial, source: str, **options: Any) -> None:
        built = Training(trial, load=f"{root}/{source}", **options)
        try:
            position = built.load(process)
            built.batches = built.micro_batches(3 * SAMPLES)
            found[name] = [position.iteration, *(built.step() for _ in range(STEPS))]
        except Problems as problems:
            found[name] = str(problems)
        mesh.destroy_groups()

    def saved(name: str, trial: Trial, **options: Any) -> None:
        built = Training(trial, save=f"{root}/{name}", **options)
        for _ in range(3):
            built.step()
        built.save(process, 3)
        found[name] = [3, *(built.step() for _ in range(STEPS))]
        mesh.destroy_groups()

    saved("plain", Trial())
    saved("bare", Trial(), no_save_optim=True)
    saved("zero3", staged(3))
    saved("sm3", Trial({"optimizer.type": "sm3", "optimizer.params.momentum": 0.9}))
    pipeline = Trial(PIPE)
    sharing = {"num_unique_layers": 1, "pos_emb": "rpe"}
    saved("sharing", Trial(sharing))
    loaded("sharing, pipeline", Trial(pipeline.config | sharing), "sharing")
    loaded("weights of zero3", pipeline, "zero3", no_load_optim=True)
    loaded("weights for zero3", staged(3), "zero3", no_load_optim=True)
    loaded("finetune", staged(1), "plain", finetune=True)
    loaded("bare, all", pipeline, "bare")
    loaded("bare, weights", pipeline, "bare", no_load_optim=True)
    loaded("sgd", Trial(), "plain", **{"optimizer.type": "SGD"})
    loaded("untied", pipeline, "plain", no_weight_tying=True)
    loaded("sm3, all", Trial({**pipeline.config, "optimizer.type": "sm3", "optimizer.params.momentum": 0.9}), "sm3")
    shared.VOCABULARY = Vocabulary(61, 128)
    loaded("more rows", Trial(), "plain")
    shared.VOCABULARY = Vocabulary(61, 61)
    loaded("fewer rows", staged(2), "plain")
    return found


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = run_ranks(special, 1, str(tmp_path_factory.mktemp("special")), timeout=200)[0]
    return found


@pytest.mark.parametrize("name", ["more rows", "fewer rows"])
def test_vocabulary_padding_is_added_and_removed(cases: dict[str, Any], name: str) -> None:
    assert cases[name] == pytest.approx(cases["plain"], abs=2e-6)


def test_shared_weights_have_one_name(cases: dict[str, Any]) -> None:
    assert cases["sharing, pipeline"] == pytest.approx(cases["sharing"], abs=2e-6)


@pytest.mark.parametrize(
    ("name", "source"), [("weights of zero3", "zero3"), ("weights for zero3", "zero3"), ("bare, weights", "bare")]
)
def test_weights_without_optimizer_state_give_the_same_next_loss(cases: dict[str, Any], name: str, source: str) -> None:
    """Later losses differ, because the optimizer state is new."""
    assert cases[name][:2] == pytest.approx(cases[source][:2], abs=2e-6)
    assert cases[name][2:] != pytest.approx(cases[source][2:], abs=1e-4)


def test_finetuning_starts_at_0(cases: dict[str, Any]) -> None:
    assert cases["finetune"][:2] == [0, pytest.approx(cases["plain"][1], abs=2e-6)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bare, all", "the checkpoint has no optimizer state"),
        ("sgd", "optimizer state was written by optimizer.type Adam, but this run uses optimizer.type SGD"),
        ("untied", "the checkpoint does not fit this model: weight output.weight is missing from the checkpoint"),
        ("sm3, all", "the optimizer state 'slices' cannot be converted to a different layout of ranks"),
    ],
)
def test_a_checkpoint_that_cannot_be_loaded_is_a_problem(cases: dict[str, Any], name: str, words: str) -> None:
    assert words in cases[name]
