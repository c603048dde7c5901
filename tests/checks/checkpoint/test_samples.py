"""What a resumed run is told about its samples is what its data sets then do."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from neoxargs.checks.checkpoint.model import changed_training
from neoxargs.checks.checkpoint.samples import moved_samples
from neoxargs.config.config import Config
from neoxargs.targets.ranks import train_values
from neoxargs.train.batches.datasets import training_samples
from tests.support.configure import configure, recorded
from tests.support.finetuning import token_file
from tests.support.snapshots import pinned

SIZES = "{seq_length: 8, train_micro_batch_size_per_gpu: 10, tokenizer_type: ByteLevelTokenizer, "
#: Iterations before the checkpoint, of 10 samples each, and these samples.
DONE, READ = 10, 100


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sources of 4,000 tokens, 500 samples each; every token is a document of its own, and another one."""
    monkeypatch.chdir(tmp_path)
    for name, offset in (("a", 1_000), ("b", 50_000)):
        token_file(Path(name), [[offset + document] for document in range(4_000)])


def run(values: str, iterations: int = 20) -> Config:
    return configure(f"{SIZES}train_iters: {iterations}, {values}}}", gpus=1)


def read(config: Config, first: int, last: int) -> list[tuple[int, ...]]:
    """Return the samples of a range of iterations, as the data sets of a rank give them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, batch = training_samples(config, Path("index"), rows=99_999), config.batch.train_batch_size
    return [tuple(found[index]["tokens"].tolist()) for index in range(first * batch, last * batch)]


BOTH = "train_data_paths: [a, b], valid_data_paths: [v], test_data_paths: [v]"


def test_another_weight_moves_the_position_in_each_source() -> None:
    """100 samples were read; with the weights 3 and 1, 75 and not 50 of them would have been of the first source."""
    before, now = run(BOTH), run(BOTH + ", train_data_weights: [3, 1]")
    pinned(list(moved_samples(now, before, READ)))
    all_of_a = read(run("data_path: a, split: '1'"), 0, 20)
    then, next_ones = read(before, 0, DONE), read(now, DONE, 20)
    left_out = {*all_of_a[:75]} - {*then}
    assert len({*then} & {*next_ones}) == pytest.approx(25, abs=2) and len(left_out) == pytest.approx(25, abs=2)


def test_another_seed_shuffles_anew() -> None:
    before, now = run("data_path: a, split: '1'"), run("data_path: a, split: '1', seed: 7")
    pinned(list(moved_samples(now, before, READ)))
    then, next_ones = sum(read(before, 0, DONE), ()), sum(read(now, DONE, 20), ())
    assert len({*then} & {*next_ones}) / len({*next_ones}) == pytest.approx(0.2, abs=0.05)


def test_a_longer_run_of_several_passes_shuffles_anew_and_one_within_a_pass_does_not() -> None:
    alone = "data_path: a, split: '1'"
    before, within, beyond = run(alone), run(alone, 40), run(alone, 60)
    assert list(moved_samples(within, before, READ)) == []
    assert read(within, 0, 20) == read(before, 0, 20)
    pinned(list(moved_samples(beyond, before, READ)))
    assert read(beyond, 0, DONE) != read(before, 0, DONE)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ("train_iters: 60", ["train_iters"]),
        ("train_iters: 60, seed: 7", ["seed"]),  # shuffles anew in any case
        ("train_iters: 60, weight_decay: 0.5", ["weight_decay", "train_iters"]),
        ("train_iters: 40, weight_decay: 0.5", ["weight_decay"]),
        ("train_iters: 40", []),
    ],
)
def test_another_length_is_named_where_it_moves_samples(values: str, names: list[str]) -> None:
    alone = f"{SIZES}data_path: a, split: '1', load: ., "
    before = configure(f"{alone}train_iters: 20}}", gpus=1)
    checkpoint = recorded(Path(), train_values(before))
    told = changed_training(configure(f"{alone}{values}}}", gpus=1), checkpoint)
    assert [list(problem.about) for problem in told] == ([[*names, "load"]] if names else [])


def test_the_same_data_in_another_folder_is_not_told() -> None:
    Path("elsewhere").mkdir()
    for name in ("a.bin", "a.idx"):
        Path("elsewhere", name).write_bytes(Path(name).read_bytes())
    before, now = run("data_path: a, split: '1'"), run("data_path: elsewhere/a, split: '1'")
    assert list(moved_samples(now, before, READ)) == []
    assert list(moved_samples(run("text_path: python-stdlib"), before, READ)) == []
    assert list(moved_samples(before, run("data_path: absent"), READ)) == []


def test_a_source_that_is_added_begins_where_it_would_be() -> None:
    one = BOTH.replace("[a, b]", "[a]")
    pinned(list(moved_samples(run(BOTH), run(one), READ)))
    assert read(run(BOTH), DONE, 11) != read(run(BOTH), 0, 1)


def test_a_mixture_that_changes_later_moves_nothing_and_one_that_changed_before_does() -> None:
    blend = run(BOTH + ", train_data_weights: [3, 1]")
    same = run(BOTH + ", train_data_mixture: [{weights: [3, 1]}]")
    later = run(BOTH + ", train_data_mixture: [{until: 10, weights: [3, 1]}, {weights: [1, 3]}]")
    earlier = run(BOTH + ", train_data_mixture: [{until: 5, weights: [3, 1]}, {weights: [1, 3]}]")
    moving = run(BOTH + ", train_data_mixture: [{until: 10, weights: [3, 1]}, {style: linear, weights: [1, 3]}]")
    # A blend of GPT-NeoX continues as a mixture without a sample that is lost or read again.
    assert read(blend, 0, 20) == read(same, 0, 20)
    for now in (same, later, moving):
        assert list(moved_samples(now, blend, DONE)) == [] == list(moved_samples(blend, now, READ))
        assert read(now, 0, DONE) == read(blend, 0, DONE)
        assert not {*read(blend, 0, DONE)} & {*read(now, DONE, 20)}
    assert read(later, DONE, 20) != read(same, DONE, 20)
    pinned(list(moved_samples(later, earlier, READ)))
    assert len({*read(earlier, 0, DONE)} & {*read(later, DONE, 20)}) == pytest.approx(25, abs=2)


def test_passes_of_a_mixture_do_not_depend_on_their_number() -> None:
    passes = "data_path: a, split: '1', train_data_mixture: [{weights: [1]}]"
    before, longer = run(passes, 60), run(passes, 120)
    assert read(longer, 0, 60) == read(before, 0, 60)
    assert list(moved_samples(longer, before, READ)) == []
    first, second = read(before, 0, 49), read(before, 50, 60)
    assert len({*first}) == 490 and {*second} <= {*read(before, 0, 50)}
    [told] = moved_samples(longer, run("data_path: a, split: '1'", 60), READ)
    assert "anew" in told
