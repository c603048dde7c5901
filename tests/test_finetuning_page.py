"""docs/finetuning.md: its example runs, from the model of the quick start to the answers of the finetuned one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.files import metrics as run_metrics
from tests.support.page_example import run_example
from tests.support.paths import CONFIGS, DOCS

#: A few steps are enough to see that everything fits together.
SHORT = "--set train_iters=4 --set eval_interval=2 --set eval_iters=1 --set log_interval=1 --set maximum_tokens=8"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_example_runs(tmp_path: Path) -> None:
    printed = run_example("finetuning.md", tmp_path, SHORT)
    shown = re.search(r"^```\n(### User\n.*?)^```", (DOCS / "finetuning.md").read_text(encoding="utf-8"), re.M | re.S)
    assert shown and shown[1] in printed
    for run in ("functions", "functions-lora"):
        answers = [row["step"] for row in run_metrics.read(tmp_path / "runs" / run / run_metrics.FILE)
                   if row["event"] == "answers"]  # fmt: skip
        assert answers == [0, 2, 4]
        assert 'class="panel answers"' in (tmp_path / "runs" / run / "report.html").read_text()
        assert (tmp_path / "runs" / run / "global_step4").is_dir()


def test_the_model_is_that_of_the_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(CONFIGS / "quickstart.yml"), str(CONFIGS / "finetuning" / "functions.yml")]
    assert main(["diff", *files, "--json"]) in (0, 1)
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert {row["name"] for row in differences if row["kind"] in ("model", "tokenizer")} == set()
    assert "pack_impl" in {row["name"] for row in differences}
