"""`deepy plan --learn` finds the rates that step times were made with, and says what they do not determine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.record import replace
from neoxargs.cli import main
from neoxargs.config.config import Config
from neoxargs.files.run_record import recorded_values
from neoxargs.hosts.device_table import DEVICES
from neoxargs.plan.command import plan_of
from neoxargs.plan.estimate import rows_of
from neoxargs.plan.given.assumptions import DEFAULT, Assumptions
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.given.rates import read_rates
from neoxargs.plan.learn.measured import Measured, measured_runs
from neoxargs.plan.learn.posterior import learn
from neoxargs.plan.output.wording import assumption_notes
from neoxargs.runs.lockfile import lock_text
from tests.support.configure import configure
from tests.support.plans import planned
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

#: What the machine of these tests really reaches; its links are as slow as PCIe.
TRUTH = {"matmul_hopper": 0.55, "bandwidth": 0.5, "link": 0.05, "slowdown": 1.3}
MODEL = "{num_layers: 24, hidden_size: 2048, num_attention_heads: 16, seq_length: 2048, max_position_embeddings: 2048}"
BASE = "{train_iters: 100, precision: bfloat16, train_micro_batch_size_per_gpu: 4, gradient_accumulation_steps: 8}"
ZERO = "{zero_optimization: {stage: 1}}"
ONE, DP8 = (1, ""), (8, "")
TP2, TP8, PP2 = (2, "{model_parallel_size: 2}"), (8, "{model_parallel_size: 8}"), (2, "{pipe_parallel_size: 2}")


def measured(gpus: int, text: str, assumed: Assumptions = DEFAULT, device: str = "H100-80GB") -> Measured:
    """Return a run whose steps take what the plan says with these assumptions."""
    config = configure(*filter(None, (MODEL, BASE, ZERO, text)), gpus=gpus)
    run = Measured(f"{gpus} {text}", config, DEVICES[device], 8, 1.0, 0.01, rows_of(config))
    return replace(run, seconds=run.planned(assumed))


def test_step_times_of_other_layouts_follow_from_the_learned_rates() -> None:
    truth = Assumptions(**TRUTH)
    rates = learn([measured(*layout, truth) for layout in (ONE, TP2, DP8)])
    learned = Assumptions(**rates.values)
    for layout in (PP2, TP8, (4, "{model_parallel_size: 4}")):
        run = measured(*layout, truth)
        before, after = (abs(math.log(run.planned(assumed) / run.seconds)) for assumed in (DEFAULT, learned))
        assert 5 * after < before, layout


def test_what_no_run_shows_stays_as_uncertain_as_it_was() -> None:
    alone = learn([measured(*ONE, Assumptions(**TRUTH))])
    together = learn([measured(*layout, Assumptions(**TRUTH)) for layout in (ONE, TP2, DP8)])
    names = list(alone.values)
    link, hosts, products = (names.index(name) for name in ("link", "link_hosts", "matmul_hopper"))
    assert alone.values["link"] == DEFAULT.link and alone.covariance[link][link] == pytest.approx(1)
    assert together.covariance[link][link] < 0.35**2 and together.values["link"] == pytest.approx(0.05, rel=0.2)
    assert together.covariance[hosts][hosts] == pytest.approx(1)
    assert alone.covariance[products][products] < 0.25**2


def test_runs_that_contradict_each_other_leave_a_wide_interval() -> None:
    run = measured(*ONE)
    twice = replace(run, seconds=2.5 * run.seconds)
    alike, apart = learn([run, run]), learn([run, twice])
    assert alike.unexplained == pytest.approx(math.sqrt(run.variance - run.spread**2))
    assert apart.unexplained > 3 * alike.unexplained
    middle, error = run.planned(Assumptions(**apart.values)), math.exp(1.2816 * apart.unexplained)
    assert middle / error < run.seconds < twice.seconds < middle * error


def test_runs_on_two_kinds_of_device_have_no_common_rates() -> None:
    pinned(refused(learn, [measured(*ONE), measured(*ONE, device="A100-80GB")]))


def run_folder(folder: Path, config: Config, seconds: float, steps: int = 50) -> str:
    """Write the lock and the metrics of a run on a machine with eight H100s."""
    lock = lock_text(config, "train.py", {"hardware": {"cores": 96, "gpus": ["NVIDIA H100 80GB HBM3"] * 8}})
    folder.mkdir()
    (folder / "run.lock.yml").write_text(lock)
    tokens = config.batch.train_batch_size * config.shape.seq_length
    # the first step compiles; others differ by 2 %
    times = [seconds * (50 if n == 1 else 1 + 0.02 * (n % 3 - 1)) for n in range(1, steps + 1)]
    rows: list[dict[str, Any]] = [{"event": "start", "step": 0}]
    rows += [{"event": "step", "step": n, "tokens_per_second": tokens / time} for n, time in enumerate(times, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def model_file(folder: Path, more: str = "") -> str:
    """Write the configuration that these runs have in common, with more lines."""
    path = folder / "model.yml"
    path.write_text("\n".join(text[1:-1].replace(", ", "\n") for text in (MODEL, BASE)) + f"\n{more}")
    return str(path)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three run folders of the machine, in the working directory."""
    monkeypatch.chdir(tmp_path)
    chosen = [measured(*layout, Assumptions(**TRUTH)) for layout in (ONE, TP2, DP8)]
    return [run_folder(Path(f"run{n}"), each.config, each.seconds) for n, each in enumerate(chosen)]


def test_a_file_of_rates_serves_the_plans_beside_it(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, model = tmp_path / "ours.yml", model_file(tmp_path, "model_parallel_size: 2\n")
    machine.write_text("num_gpus: 8\n")
    assert main(["plan", "--learn", *runs, "--write", "ours.rates.yml"]) == 0
    pinned(capsys.readouterr().out)
    asked = {"files": [model, str(machine)], "gpus": 8, "device": "H100-80GB"}
    plan = plan_of(PlanOptions(**asked))
    assert plan.target.rates and plan.target.assumed.matmul_hopper == pytest.approx(0.55, rel=0.15)
    assert plan.time_error < DEFAULT.error_time  # narrower than what published runs allow
    # said in the plan; --assume comes last; another device has other rates; no file beside it, no rates
    assert any("ours.rates.yml" in note for note in assumption_notes(plan))
    assert plan_of(PlanOptions(**asked, assume=["link=0.9"])).target.assumed.link == 0.9
    assert plan_of(PlanOptions(**{**asked, "device": "A100-80GB"})).target.rates is None
    assert plan_of(PlanOptions(**{**asked, "files": [model]})).target.rates is None


def test_a_plan_is_less_sure_of_what_the_rates_do_not_cover(runs: list[str], tmp_path: Path) -> None:
    """One rank says nothing of messages, so a layout that waits for them has a wider interval."""
    model, rates = model_file(tmp_path), str(tmp_path / "some.rates.yml")
    assert main(["plan", "--learn", runs[0], "--write", rates]) == 0
    plans = [planned(model, f"model_parallel_size={tensor}", device="H100-80GB", rates=rates) for tensor in (1, 8)]
    assert plans[0].time_error < plans[1].time_error


def test_rates_of_another_device_are_refused(runs: list[str], tmp_path: Path) -> None:
    model, rates = model_file(tmp_path), str(tmp_path / "some.rates.yml")
    main(["plan", "--learn", runs[0], "--write", rates])
    assert ids(refused(planned, model, device="A100-80GB", rates=rates)) == ["rates-of-another-device"]


@pytest.mark.parametrize(
    "change",
    [
        ("format: 1", "format: 2"),
        ("matmul_hopper: ", "matmul_hoper: "),
        ("link: ", "link: -"),
        ("link: ", "link: x"),
        ("unexplained: ", "unexplained: -"),
        ("device: H100-80GB", "device: [1]"),
        ("covariance:\n  - [", "covariance:\n  - [1, "),
        ("covariance:\n  - [", "covariance:\n  - [.nan, "),
    ],
)
def test_a_damaged_file_of_rates_is_refused(change: tuple[str, str], tmp_path: Path) -> None:
    text = learn([measured(*ONE)]).text()
    assert change[0] in text
    path = tmp_path / "some.rates.yml"
    path.write_text(text)
    assert read_rates(str(path)).device == "H100-80GB"
    path.write_text(text.replace(*change, 1))
    assert ids(refused(read_rates, str(path))) == ["rates-unreadable"]


def test_the_smaller_batches_of_a_ramp_are_not_measured(tmp_path: Path) -> None:
    config = measured(*ONE).config
    whole = run_folder(tmp_path / "whole", config, 1.0)
    ramp = run_folder(tmp_path / "ramp", config, 1.0)
    small = {"event": "step", "step": 0, "tokens_per_second": 1.0, "batch": 1}
    file = Path(ramp, "metrics.jsonl")
    file.write_text(f"{json.dumps(small)}\n" * 60 + file.read_text())
    ([one], [other]) = (measured_runs(folder) for folder in (whole, ramp))
    assert (one.seconds, one.spread, one.steps) == (other.seconds, other.spread, other.steps)


def test_a_folder_without_enough_steps_or_records_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = measured(*ONE).config
    short = run_folder(tmp_path / "short", config, 1.0, steps=12)
    torn = run_folder(tmp_path / "torn", config, 1.0)
    Path(torn, "metrics.jsonl").write_text('{"event": "step", "step": 1}\n' * 30)
    assert main(["plan", "--learn", short, torn, str(tmp_path / "none"), "--write", str(tmp_path / "x.yml")]) == 1
    assert not (tmp_path / "x.yml").exists()
    pinned(capsys.readouterr().err.replace(str(tmp_path), "."))


def test_the_models_of_the_bench_on_a_gpu_are_runs_too(tmp_path: Path) -> None:
    run, path = measured(*ONE, Assumptions(**TRUTH)), tmp_path / "gpu.json"
    values = recorded_values(run.config, defaults=False)
    row = {"name": "some model", "seconds": run.seconds, "steps": 20, "config": values}
    path.write_text(json.dumps({"machine": {"gpu": "NVIDIA H100 80GB HBM3"}, "models": [row, {"name": "failed"}]}))
    [found] = measured_runs(str(path))
    assert (found.name, found.device.name, found.seconds) == ("some model", "H100-80GB", run.seconds)
    assert found.planned(DEFAULT) == run.planned(DEFAULT) and found.slots == 1
    path.write_text(json.dumps({"machine": {"gpu": "NVIDIA H100 80GB HBM3"}, "models": [row | {"gpus": 8}]}))
    assert measured_runs(str(path))[0].slots == 8
    for text in ('{"machine": {"gpu": "NVIDIA H100"}, "models": []}', "[]", "{"):
        path.write_text(text)
        assert ids(refused(measured_runs, str(path))) == ["learn-metrics-unreadable"]
