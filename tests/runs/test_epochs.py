"""train_epochs determines train_iters from the token files, before anything starts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.request import Request
from neoxargs.config.config import Config
from neoxargs.runs.run_spec import RunSpec, resolve_run
from neoxargs.runs.summary import to_text
from neoxargs.targets.wire_format import parse_rank_arguments, script_arguments
from tests.support.finetuning import drawn, labelled, pair, token_file
from tests.support.refused import ids, refused
from tests.support.smallest import YAML
from tests.support.snapshots import pinned

SPLITS = ("train", "valid", "test")
TRAIN = YAML.replace("train_iters: 10\n", "")


def resolved(folder: Path, **values: Any) -> Config:
    return spec(folder, **values).config


def spec(folder: Path, **values: Any) -> RunSpec:
    file = folder / "run.yml"
    settings = {"tokenizer_type": "ByteLevelTokenizer", "train_epochs": 3, **values}
    file.write_text(TRAIN + "".join(f"{name}: {value}\n" for name, value in settings.items()))
    return resolve_run(Request([str(file)], gpus=2), {"DS_ACCELERATOR": "cpu"})


def test_the_summary_shows_epochs_labels_and_packing(tmp_path: Path) -> None:
    documents = drawn(40, 30)
    text, label = pair(tmp_path, documents, labelled(documents))
    shown = to_text(spec(tmp_path, **paths(text, label), pack_impl="unpacked"), 200)
    assert "3 epochs: 30 steps, 3,840 tokens" in shown
    pinned(shown, "of whole")


def paths(text: str, labels: str | None = None) -> dict[str, str]:
    found = {f"{split}_data_paths": f"[{text}]" for split in ("train", "valid", "test")}
    return found | (
        {f"{split}_label_data_paths": f"[{labels}]" for split in ("train", "valid", "test")} if labels else {}
    )


def test_iterations_of_documents(tmp_path: Path) -> None:
    """11 documents, one without a trained token and one too long; 4 samples per step."""
    documents = [*drawn(9, 30), [1] * 5, [2] * 34]
    labels = [*labelled(drawn(9, 30)), [-100] * 5, [2] * 34]
    text, label = pair(tmp_path, documents, labels)
    config = resolved(tmp_path, **paths(text, label), pack_impl="unpacked")
    assert config.training.train_iters == 3 * 10 // 4
    config = resolved(tmp_path, **paths(text, label), pack_impl="unpacked", allow_chopped="false")
    assert config.training.train_iters == 3 * 9 // 4
    assert config.schedule.lr_decay_iters == 6


def test_iterations_of_joined_documents_are_gpt_neox_s(tmp_path: Path) -> None:
    """100 x 50 tokens make 156 samples of 32, of which GPT-NeoX uses 155."""
    text = token_file(tmp_path / "text", [[1] * 50] * 100)
    assert resolved(tmp_path, **paths(text)).training.train_iters == 3 * 155 // 4
    assert resolved(tmp_path, data_path=text, split='"1,1"').training.train_iters == 3 * 77 // 4


def test_ranks_receive_the_number_and_gpt_neox_s_scripts_compute_it(tmp_path: Path) -> None:
    """GPT-NeoX refuses a file with both."""
    config = resolved(tmp_path, **paths(token_file(tmp_path / "text", [[1] * 50] * 100)))
    received = parse_rank_arguments(script_arguments(config)).config
    assert (received.training.train_iters, received.training.train_epochs) == (116, 3)
    from neoxargs.targets.neox_compat import neox_values

    assert neox_values(config)["train_epochs"] == 3 and "train_iters" not in neox_values(config)


@pytest.mark.parametrize("values", [
    {"data_path": "absent"}, {"text_path": "python-stdlib"}, {"data_path": "[0.3, a, 0.7, b]"},
])  # fmt: skip
def test_what_cannot_be_counted(tmp_path: Path, values: dict[str, str]) -> None:
    pinned([problem for problem in refused(resolved, tmp_path, **values) if "train_epochs" in problem.what])


@pytest.mark.parametrize("line", ["", "seq_length: abc\n"])
def test_samples_of_unknown_length_are_not_counted(tmp_path: Path, line: str) -> None:
    file = tmp_path / "run.yml"
    file.write_text(re.sub("seq_length: .*\n", line, TRAIN) + "train_epochs: 3\ndata_path: absent\n")
    problems = refused(resolve_run, Request([str(file)], gpus=2), {"DS_ACCELERATOR": "cpu"})
    assert any(one.what.startswith("seq_length") for one in problems)
    assert not any("train_epochs" in one.about for one in problems)


def test_samples_of_lists_that_do_not_match_are_not_counted(tmp_path: Path) -> None:
    problems = refused(resolved, tmp_path, train_data_paths="[a, b]", train_label_data_paths="[c]")
    assert "train-labels-match-paths" in ids(problems)
    assert not any("train_epochs" in one.about for one in problems)


def test_a_missing_numpy_is_not_called_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_path = token_file(tmp_path / "text", drawn(40, 30))
    monkeypatch.setitem(sys.modules, "numpy", None)
    pinned(refused(resolved, tmp_path, data_path=data_path))
