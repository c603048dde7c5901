"""bench/train_cpu.py: runs take turns, paused runs do nothing, and ratios are of turns in the same round."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.paths import ROOT

#: Stands for a trainer: a process whose child prints the steps.
TRAINER = """
import subprocess, sys
steps = "import time\\nfor step in range(100000): print(f'iteration {step}/100000', flush=True); time.sleep(0.002)"
subprocess.run([sys.executable, "-c", steps])
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module bench/train_cpu.py."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return import_module("train_cpu")


def test_a_paused_run_does_nothing_until_its_next_turn(bench: Any) -> None:
    run = bench.Run(bench.Command([sys.executable, "-c", TRAINER], 1))
    try:
        done = 0
        while done < len(run.ends):  # lines may still be on the way
            done = len(run.ends)
            time.sleep(1)
        assert done >= bench.WARM_UP
        turn = run.turn(3)
        assert turn.speed > 0
        assert len(run.ends) >= done + 4  # the first step, which the pause interrupted, does not count
        child = psutil.Process(run.process.pid).children()[0]
    finally:
        run.end()
    child.wait(200)  # raises if it still runs


def test_a_run_that_fails_ends_the_program_with_its_output(bench: Any) -> None:
    with pytest.raises(SystemExit, match="no such layout"):
        bench.Run(bench.Command([sys.executable, "-c", "raise ValueError('no such layout')"], 1))


def test_the_least_disturbed_turn_counts(bench: Any) -> None:
    class Disturbed:
        turns = [bench.Turn(1.0, 0.5, 0.5), bench.Turn(2.0, 0.5, 0.2), bench.Turn(3.0, 0.5, 0.01)]

        def turn(self, steps: int) -> Any:
            return self.turns.pop(0)

    assert bench.undisturbed_turn(Disturbed(), 5).speed == 3.0
    always = Disturbed()
    always.turns = [bench.Turn(float(number), 0.5, 0.9 - 0.1 * (number == 2)) for number in range(bench.ATTEMPTS)]
    assert bench.undisturbed_turn(always, 5).speed == 2.0


def test_ratios_are_of_turns_in_the_same_round(bench: Any) -> None:
    speeds = {"pp2": [100.0, 10.0, 50.0], "other": [50.0, 20.0, 20.0]}
    turns = {name: [bench.Turn(speed, 0.5, 0.0) for speed in found] for name, found in speeds.items()}
    assert bench.table("pp2", 512, turns).splitlines()[1:] == [
        "  pp2                                     50 tokens/s   0.500 CPU s per step",
        "  other                                   20 tokens/s   0.500 CPU s per step   2.00 x",
    ]


def test_experts_are_compared_with_mixtral(bench: Any, tmp_path: Path) -> None:
    config = bench.prepare(tmp_path, 512, 10)
    runs = bench.commands("1 process, experts", config, tmp_path, [])
    assert list(runs) == ["1 process, experts", "mixtral"]
    files = [next(word for word in run.words if word.endswith(".yml")) for run in runs.values()]
    own, theirs = (json.loads(Path(file).read_text()) for file in files)
    assert own["moe_num_experts"] == theirs["moe_num_experts"] == 8
    assert list(bench.commands("1 process", config, tmp_path, [])) == ["1 process", "plain", "transformers", "kernels"]
    divided = bench.commands("dp2, experts divided", config, tmp_path, [])
    assert list(divided) == ["dp2, experts divided", "1 process, experts"]
    assert json.loads(Path(divided["dp2, experts divided"].words[3]).read_text())["moe_expert_parallel_size"] == 2


def test_one_option_measures_all_layouts_with_experts(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train_cpu.py", "--experts"])
    chosen = bench._options().layouts
    assert "1 process, experts" in chosen and "dp2, experts divided" in chosen
    assert all("experts" in layout for layout in chosen)
    monkeypatch.setattr(sys, "argv", ["train_cpu.py"])
    assert not set(bench._options().layouts) & set(chosen)


def test_the_other_trainer_gets_the_same_file_without_the_keys_of_deepy(bench: Any, tmp_path: Path) -> None:
    config = bench.prepare(tmp_path, 512, 10)
    (tmp_path / "other").mkdir()
    runs = bench.commands("tp2", config, tmp_path, [tmp_path / "other"])
    own, other, alone = (run.words for run in runs.values())
    assert list(runs) == ["tp2", "other, tp2", "1 process"]
    assert runs["tp2"].ranks == 2
    stand_ins = [bench.environment(run.ranks, run.trainer).get("CUDA_STAND_INS") for run in runs.values()]
    assert stand_ins == [None, "2", None]
    assert other == [sys.executable, str(tmp_path / "other/deepy.py"), "train.py", other[3]]
    files = [json.loads(Path(words[3]).read_text()) for words in (own, other, alone)]
    assert files[0] | {"master_port": 0} == files[1] | {"master_port": 0}
    assert files[2]["num_gpus"] == 1
    assert [word for word in own if "run_dir" in word]
