"""`diff` of two run folders: where their losses part, and the page with both curves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from neoxargs.cli import main
from neoxargs.commands.diff.losses import Losses
from neoxargs.files.run_record import write_record
from neoxargs.targets.ranks import train_values
from tests.support.configure import configure
from tests.support.snapshots import pinned

STEPS = 40


def write_run(folder: Path, loss: Callable[[int], float | None], more: str = "") -> None:
    write_record(configure(f"run_dir: {folder}\n{more}", gpus=1))
    rows = [{"event": "start", "step": 0}, *({"event": "step", "step": n, "loss": loss(n)} for n in range(1, STEPS))]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"event": "st')  # a killed run may leave an incomplete line


def resumed(folder: Path, *launches: str) -> None:
    """Write a run of launches with these values, each of 10 steps; one that is empty took none."""
    rows: list[dict[str, Any]] = []
    for number, more in enumerate(launches):
        config = configure(f"run_dir: {folder}\n{more}", gpus=1)
        write_record(config)
        rows.append({"event": "start", "step": 10 * number, "values": train_values(config)})
        steps = range(10 * number + 1, 10 * number + 11) if more else ()
        rows += [{"event": "step", "step": step, "loss": 3.0} for step in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


SKIPPED = {"on_spike": "skip", "spike_window": 16, "seed": 1234}
SPIKES = "on_spike: skip\nspike_window: 16\n"


@pytest.mark.parametrize(
    ("a", "b", "code", "earlier"),
    [
        ((SPIKES, "seed: 7"), ("seed: 7", "seed: 7"), 1, [(1, 10, SKIPPED)]),
        ((SPIKES, "seed: 7"), ("seed: 7",), 1, [(1, 10, SKIPPED)]),
        (("lr: 0.1", "lr: 0.2"), ("lr: 0.1", "lr: 0.2"), 0, [(1, 10, {"lr": 0.1})]),
        (("log_interval: 7", "seed: 7"), ("log_interval: 7\nseed: 7", "seed: 7"), 1, [(1, 10, {"seed": 1234})]),
        (("", "seed: 7"), ("seed: 7",), 0, []),
        (("seed: 7", "log_interval: 7\nseed: 7"), ("seed: 7\nlog_interval: 7",), 0, []),
    ],
)
def test_values_of_earlier_launches(
    a: tuple[str, ...],
    b: tuple[str, ...],
    code: int,
    earlier: list[Any],
    runs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    resumed(Path("a"), *a)
    resumed(Path("b"), *b)
    assert main(["diff", "a", "b", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert [(*each["steps"], each["values"]) for each in found["a"]["earlier"]] == earlier
    assert main(["diff", "a", "b"]) == code
    pinned(capsys.readouterr().out)


def test_a_launch_that_failed_before_its_values_were_recorded(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resumed(Path("a"), "seed: 7")
    write_record(configure("run_dir: a\nseed: 8", gpus=1))
    resumed(Path("b"), "seed: 7")
    assert main(["diff", "a", "b", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["a"]["earlier"] == [{"steps": [1, 10], "values": {"seed": 7}}]


def test_what_only_an_earlier_launch_read_has_an_effect(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resumed(Path("a"), SPIKES, "spike_window: 16")
    resumed(Path("b"), "spike_window: 32", "spike_window: 32")
    assert main(["diff", "a", "b", "--json"]) == 1
    found = {each["name"]: each["impact"] for each in json.loads(capsys.readouterr().out)["differences"]}
    assert found["spike_window"] == "result"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs a and b, whose losses differ from step 3 on, and by more than 0.1 % from step 20 on."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("a"), lambda step: 5 - step / 20)
    write_run(
        Path("b"), lambda step: 5 - step / 20 + (1e-6 if step >= 3 else 0) + (0.1 if step >= 20 else 0), "lr: 0.1"
    )
    return tmp_path


def test_where_the_losses_part(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a", "b"]) == 1
    pinned(capsys.readouterr().out.partition("\nlosses:\n")[2].splitlines())
    main(["diff", "a", "b", "--json"])
    found = json.loads(capsys.readouterr().out)["losses"]
    assert found == {"first_different": 3, "first_apart": 20, "last_common": 39}


def test_the_page(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a", "b", "--at", "5", "--html", "out.html"]) == 1
    assert main(["diff", "a", "b", "--html", "out.html"]) == 1  # a page replaces an older one
    assert main(["diff", "a", "b", "--at", "5", "--html", "out.html"]) == 1
    text = Path("out.html").read_text(encoding="utf-8")
    pinned(re.findall('class="title"[^>]*>([^<]*)<', text))
    assert re.findall("<h2>([^<]*)<", text) == [
        "Losses",
        "At step 5",
        "Can change the result",
        "Cannot change training",
    ]
    cells = ("optimizer", "lr", "0.001", "0.1")
    assert "".join(f"<td class=short>{cell}</td>" for cell in cells) in text
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", text)
    used = set(re.findall(r"var\(--(\w+)\)", text))
    assert used <= set(re.findall(r"--(\w+):", text))
    assert main(["diff", "a", "b", "--html", "missing/out.html"]) == 2


def test_a_damaged_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("[]\n", "{}\n", "x\n"):
        Path("b/metrics.jsonl").write_text(text)
        assert main(["diff", "a", "b"]) == 2
        assert capsys.readouterr().err.startswith("b/metrics.jsonl: error: this file does not contain the losses")


@pytest.mark.parametrize("end", ['{"event": "st', '{"event": "st\n'])
def test_an_incomplete_last_line_is_a_warning(end: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("b/metrics.jsonl")
    path.write_text(path.read_text().rpartition("\n")[0] + "\n")  # without the incomplete line
    Path("a/metrics.jsonl").write_text(path.read_text())
    main(["diff", "a", "b"])
    assert not capsys.readouterr().err
    path.write_text(path.read_text() + end)
    assert main(["diff", "a", "b"]) == 1
    printed = capsys.readouterr()
    assert "identical at every common step (39)" in printed.out
    assert printed.err.startswith("b/metrics.jsonl: warning: the last line of this file is incomplete")
    main(["diff", "a", "b", "--json"])
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["problems"]] == ["diff-losses-incomplete"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_differs(number: float, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("b"), lambda step: number if step >= 7 else 5 - step / 20)
    main(["diff", "a", "b", "--html", "out.html"])
    pinned(capsys.readouterr().out, "differ at")


def test_both_charts_have_the_same_horizontal_axis(runs: Path) -> None:
    write_run(Path("b"), lambda step: 3.0 if step < 12 else None)
    main(["diff", "a", "b", "--html", "out.html"])
    axes = [
        [text for text in re.findall(r'text-anchor="middle">([^<]*)<', chart)]
        for chart in re.findall("<figure.*?</figure>", Path("out.html").read_text())
    ]
    assert axes == [["10", "20", "30"] * 2] * 2  # on a screen and on a phone


def test_noisy_losses_are_smoothed_as_in_the_report_of_a_run(runs: Path) -> None:
    write_run(Path("a"), lambda step: 5 - step / 20 + 0.3 * (-1) ** step)
    write_run(Path("b"), lambda step: 5 - step / 25 + 0.3 * (-1) ** step)
    main(["diff", "a", "b", "--html", "out.html"])
    for chart in re.findall("<svg viewBox.*?</svg>.*?</svg>", Path("out.html").read_text()):
        lines = re.findall('<polyline class="(line[^"]*)" stroke="([^"]+)" points="([^"]+)"', chart)
        colours = list(dict.fromkeys(colour for _, colour, _ in lines))
        assert [kind for kind, *_ in lines] == ["line faint", "line"] * len(colours)
        swings = [swing([float(point.split(",")[1]) for point in points.split()][3:-3]) for *_, points in lines]
        assert all(drawn < raw / 2 for raw, drawn in zip(swings[::2], swings[1::2], strict=True)) or (
            "difference" in chart  # which has no noise
        )


def swing(heights: list[float]) -> float:
    """Return the mean distance between adjacent points."""
    return sum(abs(a - b) for a, b in pairwise(heights)) / len(heights)


def test_a_run_whose_losses_are_all_not_finite(runs: Path) -> None:
    for name in ("a", "b"):
        write_run(Path(name), lambda step: None)
    assert main(["diff", "a", "b", "--html", "out.html"]) == 0
    assert "<figure" not in Path("out.html").read_text()


def test_other_ends() -> None:
    pinned(Losses({1: 2.0}, {1: 2.0 + 1e-12}).lines()[0])
    pinned(Losses({1: 2.0, 2: 1.0}, {1: 2.0, 2: 1.0}).lines())
    pinned(Losses({1: 2.0}, {2: 2.0}).lines())
    lines = Losses({1: 2.0, 2: 1.0}, {1: 2.0 + 1e-7, 2: None}).lines()
    assert lines[0].startswith("first differ at step 1")
    pinned(lines[1])
    pinned(Losses({1: 2.0}, {1: 2.0 + 1e-7}).lines()[1])
