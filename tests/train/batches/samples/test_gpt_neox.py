"""The samples of a run are, token for token, those that GPT-NeoX's own data loaders give to the same run."""

from __future__ import annotations

import hashlib
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoxargs.base.request import Request
from neoxargs.config.config import Config
from neoxargs.config.value import DEFAULT, Value
from neoxargs.data.tokenizer import ByteTokenizer, build_tokenizer
from neoxargs.files.token_files import writer as indexed
from neoxargs.runs.run_spec import resolve_run
from neoxargs.train.batches.datasets import build_datasets
from neoxargs.train.batches.loader import Loader
from neoxargs.train.batches.samples import gpt_neox
from neoxargs.train.process.mesh import Axis, Mesh
from tests.support.neox_runs import OUTSIDE, needs_all_runs, unpacked
from tests.support.reference import read
from tests.support.snapshots import pinned

REFERENCE = read("neox_sample_orders.json")
CASES = {case["name"]: case for case in REFERENCE["cases"]}
TOKENIZER = ByteTokenizer(500, 0)
LISTS = ("train_data_paths", "valid_data_paths", "test_data_paths")
Rows = np.ndarray[Any, np.dtype[np.int64]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the token files that the reference was made with."""
    folder = tmp_path_factory.mktemp("data")
    for name, (count, longest, salt) in REFERENCE["files"].items():
        with indexed.new_file(folder / name, np.uint16) as writer:
            for i in range(count):
                length = 1 + (i * 7919 + salt * 104729 + i * i * 31) % longest
                ids = [(i * 31 + position * 7 + salt * 101 + position * i) % 500 for position in range(length)]
                writer.add(np.array(ids, np.uint16), [length], [True])
    return folder


def loader(case: dict[str, Any], files: Path, run_dir: Path, rank: int = 0, **changes: Any) -> Loader:
    """Return the data of a case as one rank sees it."""
    paths = {name: [str(files / part) for part in case[name]] for name in LISTS if case.get(name)}
    if case["data_path"]:
        paths |= {"data_path": str(files / case["data_path"]), "split": case["split"]}
    kept = ("weight_by_num_documents", "weighted_sampler_alpha", *(name.replace("paths", "weights") for name in LISTS))
    values = {
        "run_dir": str(run_dir), "seq_length": case["seq_length"], "seed": case["seed"], "num_workers": 0,
        "train_iters": case["train_iters"], "eval_interval": case["eval_interval"], "eval_iters": case["eval_iters"],
        "train_micro_batch_size_per_gpu": case["micro"], "train_batch_size": samples(case),
        **{name: case[name] for name in kept if name in case}, **paths, **changes,
    }  # fmt: skip
    config = Config({name: Value(value, DEFAULT) for name, value in values.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_datasets(config, TOKENIZER, Mesh(data=Axis(case["ranks"], rank)))


def samples(case: dict[str, Any]) -> int:
    """Samples of a batch."""
    return int(case["micro"] * case["gas"] * case["ranks"])


def rows(case: dict[str, Any], files: Path, run_dir: Path, **changes: Any) -> dict[str, Rows]:
    """Return the rows of tokens that a run reads, in the order of its micro steps: split -> (rows, seq + 1)."""
    read: dict[str, list[Rows]] = {"train": [], "validation": [], "test": []}
    for rank in range(case["ranks"]):
        data, evaluation = loader(case, files, run_dir, rank, **changes), case["eval_iters"] * case["gas"]
        parts = {
            "train": list(islice(data.train(0) or [], case["train_iters"] * case["gas"])),
            "validation": [
                batch
                for number in range(case["train_iters"] // case["eval_interval"] + 1)
                for batch in islice(data.held_out("validation", number) or [], evaluation)
            ],
            "test": list(islice(data.held_out("test") or [], evaluation)),
        }
        for part, batches in parts.items():
            whole = [np.hstack([batch.tokens.numpy(), batch.labels.numpy()[:, -1:]]) for batch in batches]
            if whole:
                read[part].append(np.stack(whole))  # (micro steps, micro batch, seq + 1)
    joined = {part: np.concatenate(of_ranks, axis=1) for part, of_ranks in read.items() if of_ranks}
    return {part: both.reshape(-1, both.shape[-1]) for part, both in joined.items()}


def facts(found: Rows) -> dict[str, Any]:
    digest = hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16]
    return {"rows": len(found), "sha256": digest, "first": found[0][:6].tolist(), "last": found[-1][:6].tolist()}


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_gpt_neoxs(name: str, files: Path, tmp_path: Path) -> None:
    found = rows(CASES[name], files, tmp_path)
    assert {part: facts(of_part) for part, of_part in found.items()} == CASES[name]["splits"]


@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=needs_all_runs)])
def test_first_batches_of_gpt_neoxs_runs(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(unpacked() if kept else OUTSIDE)
    recorded = sorted(Path().glob("*/batches.npy"))
    assert recorded
    for file in recorded:
        theirs = np.load(file).astype(np.int64)  # (iterations, micro batches, samples, seq + 1)
        given = [f"run_dir={tmp_path / file.parent}", "num_workers=0"]
        config = resolve_run(Request([str(next(file.parent.glob("*.yml")))], given), {"DS_ACCELERATOR": "cpu"}).config
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = build_datasets(config, build_tokenizer(config.tokenizer), Mesh())
        micro_batches = islice(data.train(0) or [], theirs.shape[0] * theirs.shape[1])
        ours = [np.hstack([batch.tokens.numpy(), batch.labels.numpy()[:, -1:]]) for batch in micro_batches]
        assert np.array_equal(theirs, np.stack(ours).reshape(theirs.shape)), file.parent


@pytest.mark.parametrize(("name", "same"), [("1.9 epochs", True), ("1.08 epochs", False), ("a list of one", False)])
def test_megatron_core_has_another_order(name: str, same: bool, files: Path, tmp_path: Path) -> None:
    """megatron-core keeps a last epoch of which less than 80 % is needed separate, and other sizes in a blend."""
    found = rows(CASES[name], files, tmp_path, sample_order="megatron-core")
    assert (facts(found["train"]) == CASES[name]["splits"]["train"]) == same


def test_files_of_the_index_are_read_by_the_next_run(files: Path, tmp_path: Path) -> None:
    case = CASES["weights"]
    first = rows(case, files, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "data" / "index").iterdir()}
    second = rows(case, files, tmp_path)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "data" / "index").iterdir()}
    assert all(np.array_equal(first[part], second[part]) for part in ("train", "validation", "test"))


@pytest.mark.parametrize(
    ("tokens", "samples", "seq_length", "count"), [(33, 2, 16, 1), (32, 2, 16, 2), (100, 0, 16, 1), (5, 10, 16, 33)]
)
def test_epochs(tokens: int, samples: int, seq_length: int, count: int) -> None:
    assert gpt_neox.epochs(tokens, samples, seq_length) == count


def test_a_long_wait_for_an_order_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for samples in (9_999_999, 1_000_000_000):
        gpt_neox.cached(tmp_path, ["source", samples], ("order",), lambda: {"order": np.arange(1)}, samples)
    pinned(capsys.readouterr().out)
