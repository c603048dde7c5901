"""docs/huggingface.md: its commands and its program run, and its table agrees with the code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from neoxargs.train.huggingface import FAMILIES, exporting, importing
from tests.support.paths import CONFIGS, DOCS, ROOT
from tests.support.small_gpt import small

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
    (shown,) = blocks("console")
    found = FAMILIES["LlamaForCausalLM"].obstacles(small(norm="rmsnorm"))
    assert [f"error: {problem.what} [{problem.id}]" for problem in found] == shown.splitlines()[1::2]


def test_the_table_has_every_row_of_the_families() -> None:
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*$", TEXT[TEXT.index("| parameter |") :], flags=re.M)
    ]
    for name, column in zip(header[1:], range(1, len(header)), strict=True):
        cells = {key: row[column] for row in rows for key in re.findall(r"`(\w+)[`:]", row[0])}
        for setting in FAMILIES[name].settings:
            key = setting.key.rpartition(".")[2]
            assert any(key in cells[ours] for ours in setting.ours), (name, setting.key)
        for demand in FAMILIES[name].demands:
            assert demand.ours in cells or demand.ours in NOT_IN_THE_TABLE, (name, demand.ours)


#: Parameters that no architecture supports at any value but the default.
NOT_IN_THE_TABLE = ("apply_residual_connection_post_layernorm", "attention_config")
