"""What `deepy preview` foretells, compared with what training then does."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoxargs.cli import main
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.files import metrics
from neoxargs.files.token_files import writer
from tests.support import smallest
from tests.support.paths import ROOT
from tests.support.processes import rank_arguments, train_on_rank
from tests.support.ranks import run_ranks
from tests.support.snapshots import pinned


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with token files of 4,000 and 12,000 tokens, in documents of 100."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    for name, documents in (("code", 40), ("web", 120)):
        with writer.new_file(Path(name), np.uint16) as file:
            file.add(np.ones(100 * documents, np.uint16), [100] * documents, [True] * documents)
    return tmp_path


MIXTURE = """
train_data_paths: [code, web]
train_data_weights: [0.25, 0.75]
valid_data_paths: [web]
test_data_paths: [web]
tokenizer_type: ByteLevelTokenizer
lr_decay_style: cosine
float32_matmul_precision: highest
"""
SAVING = "save: ckpt\ncheckpoint_factor: 20\nkeep_last_n_checkpoints: 2\neval_interval: 25\n"


def text_of(run: str, *words: str) -> str:
    Path("my.yml").write_text(smallest.YAML.replace("train_iters: 10", "train_iters: 100") + run)
    return " ".join(["my.yml", "--device", "CPU", *words])


def forecast(run: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["preview", *text_of(run, "--json", *words).split()]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    "run", [MIXTURE + SAVING, MIXTURE, "text_path: python-stdlib\ntokenizer_type: ByteLevelTokenizer\n"]
)
def test_the_text(folder: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", *text_of(run, "--price", "2").split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    pinned([line for line in lines if " as planned" not in line])


RAMP = "train_batch_size: 16\nrampup_batch_size: [4, 4, 200]\n"


def test_a_ramp_of_the_batch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = BatchSizes.with_ramp(16, [4, 4, 200])
    found = forecast(MIXTURE + RAMP, capsys, "--html", "page.html")
    assert found["batch"] == [
        {"from": stage.iteration + 1, "samples": size} for stage, size in zip(sizes.stages, [4, 8, 12, 16], strict=True)
    ]
    assert found["tokens"] == 32 * sizes.samples_after(100) == sum(each["tokens"] for each in found["data"])
    # Where 120 documents of 100 tokens have been read.
    [web] = (each for each in found["data"] if each["source"] == "web")
    read = [sizes.samples_after(web["repeats_in"] + each) * 32 * 0.75 for each in (-1, 0)]
    assert read[0] <= 12000 < read[1]
    assert "Batch size" in Path("page.html").read_text()
    constant = forecast(MIXTURE + RAMP.partition("rampup")[0], capsys)
    in_full_batches = constant["seconds"]["training"] * sizes.samples_after(100) / 1600
    # Small steps take as long as their micro batches, and each has an update of the weights besides.
    assert in_full_batches < found["seconds"]["training"] < constant["seconds"]["training"]


def test_a_weight_decay_that_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = "weight_decay_incr_style: linear\nstart_weight_decay: 0.1\nend_weight_decay: 0.3\n"
    found = forecast(MIXTURE + changes, capsys, "--html", "page.html")["weight_decay"]
    assert [iteration for iteration, _ in found] == list(range(1, 101))
    assert [decay for _, decay in found] == pytest.approx([0.1 + 0.002 * done for done in range(100)])
    assert "Weight decay" in Path("page.html").read_text()
    assert main(["preview", *text_of(MIXTURE + changes).split()]) == 0
    pinned([line for line in capsys.readouterr().out.splitlines() if "weight decay" in line])
    assert forecast(MIXTURE, capsys)["weight_decay"] == []


def test_epochs_of_a_mixture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """100 iterations of 2 samples of 32 tokens: 1,600 tokens of code and 4,800 of web."""
    found = {each["source"]: each for each in forecast(MIXTURE, capsys, "--set", "train_iters=400")["data"]}
    assert {name: (each["tokens"], each["tokens_of_one_pass"]) for name, each in found.items()} == {
        "code": (6400, 4000),
        "web": (19200, 12000),
    }
    assert [each["epochs"] for each in found.values()] == [1.6, 1.6]
    assert [each["repeats_in"] for each in found.values()] == [251, 251]


@pytest.mark.parametrize(
    ("run", "shares"),
    [
        ("data_path: [code, web]\n", [0.25, 0.75]),  # without weights: by tokens
        ("data_path: [3, code, 1, web]\n", [0.75, 0.25]),
        ("train_data_paths: [code, web]\nweight_by_num_documents: true\n", None),
        ("train_data_paths: [code, web]\ntrain_data_weights: [0, 1]\n", [1.0]),
        ("train_data_paths: [code, web]\npack_impl: unpacked\n", [0.5, 0.5]),
    ],
)
def test_shares(folder: Path, run: str, shares: list[float] | None, capsys: pytest.CaptureFixture[str]) -> None:
    others = "valid_data_paths: [web]\ntest_data_paths: [web]\n" if "train_data" in run else ""
    found = forecast(run + others + "tokenizer_type: ByteLevelTokenizer\n", capsys)["data"]
    total = sum(each["tokens"] for each in found)
    assert total == pytest.approx(100 * 2 * 32, abs=1)
    if shares:
        assert [each["tokens"] / total for each in found] == pytest.approx(shares, abs=5e-3)  # whole documents


def test_epochs_that_are_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(
        smallest.YAML.replace("train_iters: 10\n", "train_epochs: 3\npack_impl: unpacked\n")
        + MIXTURE.replace("train_data_weights: [0.25, 0.75]\n", "")
    )
    assert main(["preview", "my.yml", "--json", "--device", "CPU"]) == 0
    assert [each["epochs"] for each in json.loads(capsys.readouterr().out)["data"]] == [3, 3]


SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"lr_decay_style": "cosine", "min_lr": 1e-4, "warmup": 0.25, "warmup_from_zero": False},
    "WSD": {"lr_decay_style": "WSD", "min_lr": 1e-4, "warmup": 0.25, "lr_wsd_decay_iters": 3},
    "phases": {
        "lr_schedule": [
            {"style": "linear", "until": 3, "from": 0, "to": 1e-3},
            {"style": "constant", "until": "60%"},
            {"style": "minus_sqrt", "to": 1e-4},
        ]
    },
    "DeepSpeed": {"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 4, "total_num_steps": 12}}},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_training_does_what_was_foretold(schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {
        "save": str(tmp_path / "ckpt"), "checkpoint_factor": 3, "extra_save_iters": [4], "keep_last_n_checkpoints": 2,
        "eval_interval": 5, "log_interval": 1, "dialect": "neox-2026", **SCHEDULES[schedule],
    }  # fmt: skip
    arguments = rank_arguments(tmp_path, 1, **changes)
    assert main(["preview", str(tmp_path / "run.yml"), "--json", "--gpus", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    [(code, output, errors)] = run_ranks(train_on_rank, 1, arguments)
    assert code == 0, errors
    rows = list(metrics.read(tmp_path / "out" / metrics.FILE))
    rates = {row["step"]: row["lr"] for row in rows if row["event"] == "step"}
    assert rates == pytest.approx(dict(found["learning_rate"]))
    assert [row["step"] for row in rows if row.get("split") == "validation"] == found["evaluations"]
    saved = found["checkpoints"]["iterations"]
    assert [iteration for iteration in saved if f"saved iteration {iteration} " in output] == saved == [3, 4, 6, 9, 12]
    folders = sorted(path for path in (tmp_path / "ckpt").glob("global_step*"))
    size = sum(file.stat().st_size for path in folders for file in path.rglob("*"))
    assert math.isclose(size, 2 * found["checkpoints"]["bytes"], rel_tol=0.5)  # a small model: names take as much


def test_a_run_that_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt"), "dialect": "neox-2026"}
    [(code, _, errors)] = run_ranks(train_on_rank, 1, rank_arguments(tmp_path, 1, **changes))
    assert code == 0, errors
    more = ["--set", "train_iters=20", "--set", "optimizer.params.lr=0.002", "--set", "seed=7"]
    assert main(["preview", str(tmp_path / "run.yml"), "--json", "--gpus", "1", *more]) == 1
    found = json.loads(capsys.readouterr().out)
    told = {problem["id"] for problem in found["problems"]}
    assert {"checkpoint-other-lr-schedule", "checkpoint-training-changed"} <= told, told
    assert found["learning_rate"][0][0] == 13
    assert found["iterations"] == {"first": 13, "last": 20}
    assert found["continues"].endswith("global_step12")
    assert {"lr", "seed", "train_iters"} <= {name.rpartition(".")[2] for name in found["differences"]}
    assert found["seconds"]["training"] > 0


def test_a_run_that_does_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(smallest.YAML + MIXTURE)
    assert main(["preview", "my.yml", "--gpus", "1", "--gpu-memory", "0.01", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["fits"]) == (False, False)


def test_a_run_that_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt"), "dialect": "neox-2026"}
    [(code, _, errors)] = run_ranks(train_on_rank, 1, rank_arguments(tmp_path, 1, **changes))
    assert code == 0, errors
    words = [str(tmp_path / "run.yml"), "--gpus", "1"]
    assert main(["preview", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["evaluations"], found["checkpoints"]["iterations"], found["checkpoints"]["bytes_on_disk"]) == (
        [],
        [],
        0,
    )
    assert found["seconds"] == {"training": 0, "evaluation": 0}
    assert main(["preview", *words, "--html", str(tmp_path / "page.html")]) == 0
    pinned(capsys.readouterr().out.splitlines()[0])
    assert "<svg" not in (tmp_path / "page.html").read_text()


def test_sources_whose_shares_depend_on_absent_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = "tokenizer_type: ByteLevelTokenizer\n"
    assert forecast("data_path: [absent, missing]\n" + rest, capsys)["data"] == []
    found = forecast("data_path: [3, absent, 1, missing]\n" + rest, capsys)["data"]
    assert [(each["tokens"], each["epochs"]) for each in found] == [(4800, None), (1600, None)]
    assert main(["preview", *text_of("data_path: [absent, missing]\n" + rest).split()]) == 0
    pinned([line for line in capsys.readouterr().out.splitlines() if line.startswith("data")])


def test_it_loads_no_torch(folder: Path) -> None:
    words = ["preview", *text_of(MIXTURE + SAVING, "--html", "page.html").split()]
    program = f"import sys; from neoxargs.cli import main; main({words}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert {"torch", "deepspeed"}.isdisjoint(done.stderr.split()) and "neoxargs.cli" in done.stderr


def test_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", *text_of(MIXTURE + SAVING, "--html", "page.html").split()]) == 0
    page = Path("page.html").read_text()
    pinned(
        re.sub(
            r"<svg.*?</svg>|<style>.*?</style>|<dt>time</dt>.*?</dd>|<div><b>[^<]*</b><span>planned[^/]*/span></div>",
            "",
            page,
            flags=re.DOTALL,
        )
    )
    titles = re.findall(r'aria-label="([^"]*)"', page)
    assert titles == ["Learning rate"] * 2 + ["Passes over each source", "Tokens", "Checkpoints on disk"]


def test_a_price_must_be_positive(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["preview", *text_of(MIXTURE, "--price", "-1").split()])
    assert stop.value.code == 2
    assert "a price per device and hour" in capsys.readouterr().err


def test_each_validation_set_is_evaluated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = MIXTURE.replace("valid_data_paths: [web]", "validation: {one: web, two: web, three: code}")
    alone, sets = (forecast(run + SAVING, capsys)["seconds"]["evaluation"] for run in (MIXTURE, data))
    assert sets == pytest.approx(alone * (3 * 4 + 1) / (4 + 1))
    assert main(["preview", *text_of(data + SAVING).split()]) == 0
    pinned([line for line in capsys.readouterr().out.splitlines() if line.startswith("evaluation") or " sets" in line])


def test_sequences_that_grow(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phases = "seq_length_schedule: [{until: 10, length: 8}, {until: 320 samples, length: 16}, {length: 32}]\n"
    found = forecast(MIXTURE + "train_batch_size: 16\n" + phases, capsys, "--html", "page.html")
    whole = forecast(MIXTURE + "train_batch_size: 16\n", capsys)
    assert found["tokens"] == whole["tokens"] and found["data"] == whole["data"]
    page = Path("page.html").read_text()
    assert "Sequence length" in page
    assert "16 from iteration 11" in page and "32 from iteration 21" in page
