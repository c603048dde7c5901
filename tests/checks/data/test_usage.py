"""What a run makes of its documents is told: settings without the tokens they need, repetitions, padding, and cuts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problem
from neoxargs.checks.data.usage import missing_ends, mixture_ends_early, often_repeated, wasted_samples
from neoxargs.files.checkpoints.folder import RUN, Written
from neoxargs.files.token_files.timeline import timeline_of
from tests.support.configure import configure
from tests.support.finetuning import token_file
from tests.support.snapshots import pinned

SIZES = "hidden_size: 512\nseq_length: 8\ntrain_batch_size: 2\ntrain_iters: 100\ntokenizer_type: ByteLevelTokenizer\n"


def found(check: Any, text: str) -> list[Problem]:
    return list(check(configure(SIZES + text, gpus=1)))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_settings_that_take_effect_at_ends_need_them() -> None:
    token_file(Path("bare"), [[7, 8, 9], [1, 2]])
    token_file(Path("ended"), [[7, 8, 256], [1, 2]])
    both = "train_data_paths: [bare, ended]\nvalid_data_paths: [bare]\ntest_data_paths: [ended]\n"
    pinned(found(missing_ends, both + "eod_mask_loss: true\nreset_position_ids: true\nreset_attention_mask: true\n"))
    assert found(missing_ends, both) == []
    assert found(missing_ends, "data_path: ended\neod_mask_loss: true\n") == []
    assert found(missing_ends, "data_path: absent\neod_mask_loss: true\n") == []
    # Samples of best_fit come with the places of their documents.
    assert found(missing_ends, "data_path: bare\npack_impl: best_fit\nreset_position_ids: true\n") == []
    assert len(found(missing_ends, "data_path: bare\npack_impl: best_fit\neod_mask_loss: true\n")) == 1


def test_sources_that_are_read_too_often_are_named_with_their_numbers() -> None:
    """Of 1,600 tokens, `small` has 160 and gives 800; `large` has 1,600 and gives 800."""
    token_file(Path("small"), [[7] * 16] * 10)
    token_file(Path("large"), [[7] * 16] * 100)
    both = "train_data_paths: [small, large]\nvalid_data_paths: [v]\ntest_data_paths: [v]\n"
    [problem] = found(often_repeated, both)
    pinned(problem)
    weighted = both + "train_data_weights: [4, 6]\n"
    assert [each.epochs for each in timeline_of(configure(SIZES + weighted, gpus=1)).drawn] == [4, 0.6]
    assert found(often_repeated, weighted) == []
    assert len(found(often_repeated, "data_path: small\nsplit: 1, 0, 0\n")) == 1
    assert found(often_repeated, "data_path: small\nfinetune: true\nload: elsewhere\n") == []


def test_a_run_that_is_longer_than_its_mixture_is_refused_with_the_samples_that_there_are() -> None:
    """The run has 200 samples, one pass over `small` 18, and one over `large` 198."""
    token_file(Path("small"), [[7] * 16] * 10)
    token_file(Path("large"), [[7] * 16] * 100)
    both = "train_data_paths: [small, large]\nvalid_data_paths: [v]\ntest_data_paths: [v]\n"
    pinned(found(mixture_ends_early, both + "train_data_max_epochs: 0.5\n"))
    assert found(mixture_ends_early, both + "train_data_max_epochs: [2, 1]\n") == []
    assert found(mixture_ends_early, both + "train_data_mixture: [{weights: [1, 0]}]\n") == []
    only = both + "train_data_mixture: [{weights: [1, 0]}]\ntrain_data_max_epochs: [2, null]\n"
    assert len(found(mixture_ends_early, only)) == 1
    assert found(mixture_ends_early, only.replace("small", "absent")) == []
    drawn = timeline_of(configure(SIZES + both + "train_data_max_epochs: [2, null]\n", gpus=1)).drawn
    assert drawn[0].tokens == 2 * 18 * 8


def test_a_run_that_continues_after_spikes_is_told_where_its_mixture_ends() -> None:
    """Its 200 samples are there, and 12 more, but it has left out 20."""
    token_file(Path("one"), [[7] * 16] * 107)
    data = (
        "train_data_paths: [one]\nvalid_data_paths: [v]\ntest_data_paths: [v]\ntrain_data_max_epochs: 1\nload: ckpt\n"
    )
    assert found(mixture_ends_early, data) == []
    for left_out, count in ((12, 0), (20, 1)):
        checkpoint = Path("ckpt", "global_step5")
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / RUN).write_text(Written(samples=10, left_out=left_out).to_json())
        told = found(mixture_ends_early, data)
        assert len(told) == count
    pinned(told)
    assert found(mixture_ends_early, data + "finetune: true\n") == []


def test_padding_and_cut_documents_are_told_with_their_shares() -> None:
    token_file(Path("short"), [[7] * 3] * 10)
    token_file(Path("long"), [[7] * 36, [7] * 4])
    unpacked = "pack_impl: unpacked\ndata_path: "
    pinned(found(wasted_samples, unpacked + "short\n"))
    pinned(found(wasted_samples, unpacked + "long\n"))
    pinned(found(wasted_samples, unpacked + "long\nallow_chopped: false\n"))
    assert found(wasted_samples, "data_path: short\n") == []
    assert found(wasted_samples, "data_path: short\npack_impl: best_fit\n") == []
    token_file(Path("fitting"), [[7] * 9] * 10)
    assert found(wasted_samples, unpacked + "fitting\n") == []
