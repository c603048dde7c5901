"""Tasks are loaded before the ranks start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neoxargs.hosts.hosts import Resources
from neoxargs.launch.start.prepare import load_tasks
from tests.support.configure import configure

HERE = Resources({"localhost": [0]}, "cpu")


def loaded(text: str, **environment: str) -> tuple[int, list[str]]:
    lines: list[str] = []
    return load_tasks(configure(text), HERE, {**os.environ, **environment}, lines.append), lines


def test_tasks_of_evaluations_after_training_are_not_loaded() -> None:
    assert loaded("") == (0, [])
    assert loaded("eval_tasks: [piqa]") == (0, [])


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_an_unknown_task_is_a_problem(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    (tmp_path / "mine.yaml").write_text("{task: mine_own, dataset_path: json, output_type: generate_until}")
    text = f"{{eval_tasks: [mine_owm, absent.yaml], eval_tasks_interval: 4, eval_tasks_path: {tmp_path}}}"
    code, said = loaded(text, HF_HUB_OFFLINE="1")
    assert (code, said) == (1, ["loading the tasks mine_owm, absent.yaml"])
    shown = capfd.readouterr().err
    assert "eval_tasks (mine_owm): lm_eval has no such task" in shown and "did you mean mine_own?" in shown
    assert "eval_tasks (absent.yaml): there is no such file" in shown
