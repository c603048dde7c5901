"""docs/huggingface.md: its commands and its program run, and its table agrees with the code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from neoxargs.base.problems import render
from neoxargs.convert.huggingface import FAMILIES, exporting, importing
from neoxargs.convert.huggingface.family import Family
from neoxargs.resolve import resolve
from tests.support import huggingface, huggingface_table
from tests.support.paths import CONFIGS, DOCS, ROOT

TEXT = (DOCS / "huggingface.md").read_text(encoding="utf-8")
#: Overrides that make the runs of the page small and single-process.
QUICKLY = {
    "model_parallel_size": 1, "pipe_parallel_size": 0, "num_layers": 1, "hidden_size": 16, "seq_length": 64,
    "max_position_embeddings": 64, "train_iters": 2, "eval_iters": 1, "tensorboard_dir": "null",
}  # fmt: skip
IMPORTED = {"train_iters": 2, "eval_iters": 1, "checkpoint_factor": 1}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, flags=re.M | re.S)


#: Commands called in this process, which saves importing torch again.
VERBS = {"export": exporting.main, "import": importing.main}


def deepy(command: str, folder: Path) -> None:
    words = shlex.split(command)
    assert words[:2] == ["python", "deepy.py"]
    if words[2] != "import":
        for key, value in (QUICKLY if words[3].startswith("configs/") else IMPORTED).items():
            words += ["--set", f"{key}={value}"]
        words += ["--set", f"text_path={folder / 'text.txt'}"] * ("text_path" not in command)
    if words[2] in VERBS:
        assert VERBS[words[2]](words[3:]) == 0, command
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    words = [sys.executable, str(ROOT / "deepy.py"), *words[2:]]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("USE_TF", "0")
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(CONFIGS)
    (tmp_path / "text.txt").write_text("def main():\n    return 1\n" * 400)
    out, into = blocks("sh")
    (program,) = blocks("python")
    for command in out.splitlines():
        deepy(command, tmp_path)
    capsys.readouterr()
    exec(program, {})
    assert capsys.readouterr().out.startswith("def main(")
    for command in into.replace("python-stdlib", "text.txt").splitlines():
        deepy(command, tmp_path)
    assert (tmp_path / "runs" / "tuned" / "latest").read_text() == "global_step2"


def test_the_refusal_on_the_page_is_that_of_the_code() -> None:
    """With the place of a parameter that is set, and without one for a default."""
    (shown,) = blocks("console")
    command, _, output = shown.partition("\n")
    words = shlex.split(command)
    overrides = [value for option, value in pairwise(words) if option == "--set"]
    config = resolve([ROOT / words[words.index("export") + 1]], overrides, gpus=4)
    problems = FAMILIES[words[words.index("--architecture") + 1]].obstacles(config)
    assert render(list(problems)) == output.rstrip("\n")


def columns(table: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each architecture of a table, and its cells by parameter."""
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*$", table, flags=re.M)
    ]
    for column, name in enumerate(header[1:], 1):
        yield name, {key: row[column] for row in rows for key in re.findall(r"`([\w.]+)[`:]", row[0])}


def assert_complete(family: Family, cells: dict[str, str], known: Family | None = None) -> None:
    """Every setting and demand of the family has a cell, unless `known` has it too."""
    keys = {setting.key.rpartition(".")[2] for setting in known.settings} if known else set()
    for setting in family.settings:
        key = setting.key.rpartition(".")[2]
        if key not in keys and not setting.ours[0].startswith("rope_scaling."):
            assert any(key in cells.get(ours, "") for ours in setting.ours), (family.architecture, setting.key)
    demands = {demand.ours for demand in known.demands} if known else set()
    for demand in family.demands:
        name = demand.ours.partition(".")[0]
        known_or_shown = demand.ours in demands or {demand.ours, name} & cells.keys()
        assert known_or_shown or name in NOT_IN_THE_TABLE, (family.architecture, demand.ours)


def test_the_tables_have_every_row_of_the_families() -> None:
    first, second, third = re.findall(r"^\| parameter \|.*?\n\n", TEXT, flags=re.M | re.S)
    llama = FAMILIES["LlamaForCausalLM"]
    for name, cells in (*columns(first), *columns(third)):
        assert_complete(FAMILIES[name], cells)
    for name, cells in columns(second):
        assert_complete(FAMILIES[name], cells, llama)
    assert {name for table in (first, second, third) for name, _ in columns(table)} == FAMILIES.keys()


def test_the_table_of_agreement_has_every_model() -> None:
    """As measured last; the tests of the families measure anew."""
    measured = huggingface_table.rows()
    assert [row[0] for row in measured] == list(huggingface.MODELS)
    for name, architecture, *cells in measured:
        assert architecture == huggingface.MODELS[name].architecture
        for cell in cells:
            logits, gradients, texts = cell.split(", ")
            assert float(logits) < 1e-4 and float(gradients) < 1e-4 and texts == "40 of 40", name


#: Parameters that no architecture supports at any value but the default.
NOT_IN_THE_TABLE = ("apply_residual_connection_post_layernorm", "attention_config", "te_layernorm_mlp")
