"""bench/on_gpu.py: what it trains, how it judges, that no trial can hang it, and all of it on a simulated GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neoxargs.hosts.device_table import DEVICES
from tests.support import simulated_gpu
from tests.support.paths import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module bench/on_gpu.py."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return import_module("on_gpu")


def test_every_layout_can_be_configured(bench: Any) -> None:
    for name in bench.LAYOUTS:
        for changes in ({}, bench.SMALL):
            for sets in (bench.layout(name), bench.reference(name)):
                config = bench.resolve_trial(None, sets | changes)
                assert config.batch.train_batch_size == 8, name
                ignored = [problem.what for problem in config.warnings if "no effect" in problem.what]
                assert not ignored, name


def test_a_model_is_tried_in_the_ways_that_fit(bench: Any) -> None:
    ways = {name: bench.choose_ways(name, DEVICES["H100-80GB"], False) for name in bench.MODELS}
    assert ways["GPT-3 125M"] == [(8, False, False), (4, False, False), (2, False, False)]
    assert not ways["GPT-3 1.3B"][0].offload
    assert all(way.offload for way in ways["GPT-3 6.7B"])
    small = bench.choose_ways("GPT-3 6.7B", DEVICES["V100-16GB"], False)
    assert small == bench.WAYS[-1:]


GOOD = {"losses": [6.0, 5.0], "logits": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("name", "found", "problem"),
    [
        ("fp32", GOOD, ""),
        ("fp32", {"losses": [6.0, 5.004], "logits": [0.5, 1.0]}, ""),
        ("fp32", {"losses": [6.0, 5.01], "logits": [0.5, 1.0]}, "losses differ by more than 0.001"),
        ("bf16", {"losses": [6.0, 5.01], "logits": [0.5, 1.0]}, ""),
        ("bf16", {"losses": [6.0, float("nan")], "logits": None}, "losses differ by more than 0.02"),
        ("fp32", {"losses": [6.0, 5.0], "logits": [0.5, 1.1]}, "logits differ by more than 0.001"),
        ("fp32, pipeline engine", {"losses": [6.0, 5.0], "logits": None}, ""),
        ("dropout in one kernel", {"losses": [6.0, 5.3], "logits": None}, ""),
        ("deterministic", GOOD | {"repeats": False}, "a second run has different losses"),
        ("fp32", {"error": "OutOfMemoryError: full"}, "OutOfMemoryError: full"),
    ],
)
def test_a_layout_is_compared_with_the_cpu(bench: Any, name: str, found: dict[str, Any], problem: str) -> None:
    assert bench.compare(name, found, GOOD)["problem"] == problem


def test_an_error_on_the_cpu_is_no_success(bench: Any) -> None:
    assert bench.compare("fp32", GOOD, {"error": "no"})["problem"] == "on the CPU: no"


#: Stands for gpu_trials.py: trials name what becomes of them.
CHILD = """
import json, os, sys, time
for trial in json.load(sys.stdin):
    if trial["name"] == "hangs":
        time.sleep(900)
    if trial["name"] == "dies":
        print("Killed", flush=True)
        os._exit(9)
    row = {"error": "CUDA error: lost"} if trial["name"] == "loses the GPU" else {"name": trial["name"]}
    print(json.dumps(row), file=open(sys.argv[1], "a"), flush=True)
    if "error" in row:
        sys.exit(1)
"""


def test_no_trial_takes_the_others_with_it(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    monkeypatch.setattr(bench, "CHILD", child)
    names = ["first", "dies", "loses the GPU", "second", "hangs", "late"]
    # When each of the three processes starts, and after the one that hangs.
    clock = SimpleNamespace(monotonic=iter([0.0, 0.0, 895.0, 901.0]).__next__)
    monkeypatch.setattr(bench, "time", clock)
    rows = bench.run_trials([{"name": name} for name in names], 900.0, {})
    assert rows[:4] == [
        {"name": "first"}, {"error": "ended without a result: Killed"}, {"error": "CUDA error: lost"},
        {"name": "second"},
    ]  # fmt: skip
    assert rows[4]["error"].startswith("no result within ")
    assert rows[5] == {"error": "no time left"}


def test_without_a_gpu_it_says_so(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["on_gpu.py"])
    with pytest.raises(SystemExit) as stop:
        bench.main()
    assert str(stop.value) == (
        "error: torch finds no GPU on this machine [no-gpu]\n"
        "  = run this on a machine with a GPU; deepy plan estimates memory and speed without one"
    )


#: Python imports this module when it starts; the child on the CPU shall have no GPU.
SITE = """
import os
if os.environ.get("DS_ACCELERATOR") != "cpu":
    from tests.support.simulated_gpu.start import start
    start()
"""


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_program_on_a_simulated_gpu(tmp_path: Path) -> None:
    simulated_gpu.MACHINE.prepare()
    (tmp_path / "sitecustomize.py").write_text(SITE)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    environ = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    command = [sys.executable, "bench/on_gpu.py", "--small", "--json", str(tmp_path / "results"), "--minutes", "12"]
    command += ["--only", "fp32", "ZeRO-3", "dropout", "deterministic", "6.7B"]
    done = subprocess.run(
        command, cwd=ROOT, env=environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    results = json.loads((tmp_path / "results").read_text())
    assert [row for row in results["layouts"] if row["problem"]] == [], done.stderr
    assert len(results["layouts"]) == 9
    assert done.returncode == 0
    [model] = results["models"]
    assert model["attempts"][-1]["error"] == ""
    assert model["seconds"] > 0
    assert 0 < model["plan"]["tensors"] < model["plan"]["used"]
    assert model["tensors"] > 16 * model["parameters"]  # bf16 weights; gradients, and Adam's state, in fp32
    for text in ("# Measured on one GPU", "Simulated H100", "| ZeRO-3 |", "| GPT-3 6.7B |"):
        assert text in done.stdout
