"""`diff --at STEP`: quantities of both runs at a step, which counts from 1."""

from __future__ import annotations

import pytest

from neoxargs.commands.diff.at_step import rows
from neoxargs.commands.diff.side import Side
from tests.support.configure import configure
from tests.support.snapshots import pinned


def at(step: int, text: str, label: str) -> str:
    side = Side("my.yml", "file", configure(f"train_batch_size: 16\n{text}"), 8)
    return {name: one for name, one, _ in rows(side, side, step)}[label]


def test_the_learning_rate_is_that_of_the_step() -> None:
    linear = "lr: 0.01\nlr_decay_style: linear\nwarmup: 0\ntrain_iters: 10\n"
    assert [at(step, linear, "learning rate") for step in (1, 6, 10)] == ["0.01", "0.005", "0.001"]
    pinned(at(11, linear, "learning rate"))
    assert at(3, "scheduler: {type: WarmupLR}", "learning rate") == "set by DeepSpeed's WarmupLR"


def test_tokens_and_batch() -> None:
    assert at(10, "seq_length: 32", "tokens seen") == "5.12 K"  # 10 x 16 x 32
    assert at(1000, "train_iters: 100", "tokens seen") == "51.2 K"
    assert at(1, "", "batch") == "16 samples, 512 tokens"
    phases = "seq_length: 32\nseq_length_schedule: [{until: 5, length: 8}, {length: 32}]"
    assert [at(step, phases, "batch").rpartition(" ")[2] for step in (5, 6)] == ["8", "32"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "not set"),
        ("text_path: [a.txt]", "a.txt"),
        ("data_path: a", "a"),
        ("data_path: [3, a, 1, b]", "a 75 %, b 25 %"),
        ("data_path: [a, b, c]", "a, b, c by their numbers of tokens"),
        ("data_path: a,b", "a, b by their numbers of tokens"),
        ("train_data_paths: [a, b]\nvalid_data_paths: c\ntest_data_paths: c\ntrain_data_weights: [1, 4]",
         "a 20 %, b 80 %"),
        ("train_data_paths: [a, b, c]\nvalid_data_paths: c\ntest_data_paths: c", "a 33.3 %, b 33.3 %, c 33.3 %"),
        ("train_data_paths: [a, b]\nvalid_data_paths: c\ntest_data_paths: c\nweight_by_num_documents: true",
         "weighted by the number of documents"),
        ("data_path: [a, b]\ntrain_data_mixture: [{until: 5, weights: [1, 1]}, {weights: [1, 4]}]", "a 50 %, b 50 %"),
        ("data_path: [a, b]\ntrain_data_mixture: [{until: 4 samples, weights: [1, 1]}, {weights: [1, 4]}]",
         "a 50 %, b 50 %"),
        ("data_path: [a, b]\ntrain_data_mixture: [{temperature: 2}]",
         "depends on the sizes of token files that cannot be read"),
    ],
)  # fmt: skip
def test_the_data_mixture(text: str, shown: str) -> None:
    assert at(1, text, "data") == shown


def test_the_data_mixture_of_a_later_step() -> None:
    phases = "data_path: [a, b]\ntrain_data_mixture: [{until: 5, weights: [1, 1]}, {weights: [1, 4]}]"
    assert [at(step, phases, "data") for step in (5, 6)] == ["a 50 %, b 50 %", "a 20 %, b 80 %"]
