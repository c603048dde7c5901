"""What DeepSpeed's engines print and write when they are asked to, and that they are silent otherwise."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from neoxargs.train.process import mesh, setup
from tests.support.ranks import run_ranks
from tests.support.trials import Training, Trial

STEPS = 4
ENGINES: dict[str, dict[str, Any]] = {"plain": {}, "pipeline": {"pipe_parallel_size": 1}}


def asked(folder: Path) -> dict[str, dict[str, Any]]:
    """DeepSpeed's keys that make it say something."""
    place = {"enabled": True, "output_path": str(folder), "job_name": "job"}
    return {
        "nothing": {},
        "default": {"steps_per_print": 10},
        "steps": {"steps_per_print": 2},
        "speed": {"steps_per_print": 2, "timers": {"throughput": {"enabled": True}}},
        "times": {"wall_clock_breakdown": True, "steps_per_print": 2},
        "times by default": {"wall_clock_breakdown": True, "steps_per_print": 10},
        "state": {"dump_state": True},
        "profile": {"flops_profiler": {"enabled": True, "profile_step": 2}},
        "csv": {"csv_monitor": place},
        "tensorboard": {"tensorboard": place},
    }


def listen(trials: dict[str, Trial]) -> dict[str, str]:
    """What each trial prints, by name."""
    logger, found = logging.getLogger("DeepSpeed"), {}
    setup.start("gloo", seed=1)
    for name, trial in trials.items():
        output = io.StringIO()
        handler = logging.StreamHandler(output)
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        with contextlib.redirect_stdout(output):
            built = Training(trial)
            for _ in range(STEPS):
                built.step()
        logger.removeHandler(handler)
        mesh.destroy_groups()
        found[name] = output.getvalue()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("monitors")


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, dict[str, str]]:
    trials = {
        f"{engine}|{name}": Trial(layout, json)
        for engine, layout in ENGINES.items()
        for name, json in asked(folder / engine).items()
    }
    found = run_ranks(listen, 1, trials)[0]
    return {engine: {name: found[f"{engine}|{name}"] for name in asked(folder)} for engine in ENGINES}


engines = pytest.mark.parametrize("engine", ENGINES)


@engines
def test_it_is_silent(said: Any, engine: str) -> None:
    assert said[engine]["nothing"] == said[engine]["default"] == ""


@engines
@pytest.mark.shows("steps_per_print")
def test_logging_at_the_interval(said: Any, engine: str) -> None:
    lines = [line for line in said[engine]["steps"].splitlines() if "skipped=0, lr=[" in line]
    assert [line.partition("step=")[2].partition(",")[0] for line in lines] == ["2", "4"]


@engines
def test_loss_and_speed_are_only_in_our_own_lines(said: Any, engine: str) -> None:
    assert not [name for name, text in said[engine].items() if re.search(r"\bloss: \d", text)]
    assert "SamplesPerSec" not in said[engine]["steps"] and "samples/sec" not in said[engine]["steps"]
    assert ("RunningAvgSamplesPerSec" in said[engine]["speed"]) == (engine == "plain")  # the other reports none


@engines
@pytest.mark.shows("wall_clock_breakdown")
def test_the_time_of_each_part(said: Any, engine: str) -> None:
    for part in ("fwd: ", "bwd: ", "bwd_allreduce: ", "step: "):
        assert part in said[engine]["times"]
        assert part not in said[engine]["steps"]
    assert "step=10" not in said[engine]["times by default"]


@engines
@pytest.mark.shows("dump_state")
def test_the_engines_settings(said: Any, engine: str) -> None:
    assert re.search(r"^  train_batch_size \.+ 8$", said[engine]["state"], re.MULTILINE)
    assert re.search(r"^  global_steps \.+ 0$", said[engine]["state"], re.MULTILINE)


@engines
@pytest.mark.shows("flops_profiler")
def test_operations_by_module(said: Any, engine: str) -> None:
    report = said[engine]["profile"]
    assert report.count("Profile Summary at step") >= 1
    assert "TransformerBlock(" in report
    assert "Profile Summary" not in said[engine]["times"]


@engines
def test_its_monitors_write_their_own_curves(said: Any, folder: Path, engine: str) -> None:
    curve = (folder / engine / "job" / "Train_Samples_train_loss.csv").read_text().splitlines()
    assert len(curve) == 1 + STEPS
    assert float(curve[-1].split(",")[1]) < 5
    assert list((folder / engine / "job").glob("events.out.tfevents.*"))
