"""Finetuning on labels: the losses and updates of transformers with labels of -100, on every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neoxargs.resolve import resolve
from neoxargs.train.data.datasets import build_datasets
from neoxargs.train.data.tokenizer import build_tokenizer
from neoxargs.train.process.mesh import Mesh
from tests.support import finetuning_parity as parity
from tests.support.ranks import run_ranks


def expected(folder: Path, model: Any, name: str) -> parity.Answer:
    """Return transformers' answer for the samples that a run on one process reads."""
    settings, separate = parity.CASES[name]
    config = resolve([folder / "ours" / "model.yml"], parity.overrides(folder, settings), gpus=1)
    batches = build_datasets(config, build_tokenizer(config.tokenizer), Mesh()).train(0)
    assert batches is not None
    rows = parity.rows_of(batches, folder, name)
    return parity.answer(model, rows, separate, "loss_average" in settings, folder / "theirs")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", parity.CASES)
def test_three_steps_on_every_layout_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """Documents of `best_fit` are computed alone there, so that nothing of another document can be seen."""
    pytest.importorskip("transformers")
    answer = expected(tmp_path, parity.prepared(tmp_path), name)
    assert len({round(loss, 3) for loss in answer.losses}) == parity.STEPS
    for layout in parity.LAYOUTS:
        ranks = run_ranks(parity.on_layout, parity.WORLDS.get(layout, 2), str(tmp_path), name, layout, answer)
        for found in ranks:
            assert found.losses < 1e-5 and found.weights < 1e-5, (layout, found)
