"""report.html: complete, small, and without network access."""

from __future__ import annotations

import json
import math
import re
import shlex
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from neoxargs.config.config import Config
from neoxargs.config.value import Source, Value
from neoxargs.facts.timeline import Drawn, Timeline
from neoxargs.files import metrics as run_metrics
from neoxargs.files.run_record import launch_command, write_record
from neoxargs.launch.start.prepare import with_launch
from neoxargs.registry import plugins
from neoxargs.resolve import File, complete, draft
from neoxargs.train.run import _launched
from neoxargs.train.track.console import Console
from neoxargs.train.track.metrics import Metrics
from neoxargs.train.track.report_page import Page, page
from neoxargs.train.track.tracker import Evaluation
from tests.support import smallest
from tests.support.snapshots import pinned
from tests.support.tracking import DONE, play, run, step

SVG = "{http://www.w3.org/2000/svg}"


def rows(count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"event": "start", "step": 0, "unigram_entropy": 3.0}]
    for number in range(1, count + 1):
        loss = 2 + 4 * math.exp(-number / count) + 0.1 * math.sin(number)
        found.append({
            "event": "step", "step": number, "loss": loss, "lr": 6e-4, "tokens_per_second": 5e5 + number,
            "elapsed": float(number), "samples": number * 8, "grad_norm": 0.5 + number % 7, "memory": 3 * 2**30,
        })  # fmt: skip
    return [*found, {"event": "evaluation", "step": count, "split": "validation", "loss": 2.5}]


def test_a_run_writes_the_page_and_its_curve(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    play(Metrics(tmp_path / run_metrics.FILE), tmp_path)
    play(Page([("model", "2 layers, <small>"), ("precision", "bf16")]), tmp_path)
    text = (tmp_path / "report.html").read_text()
    titles = re.findall('<text class="title"[^>]*>([^<]*)<', text)
    # the loss on a screen and on a phone
    pinned(titles)
    for words in ("2 layers, &lt;small&gt;", "bf16", "4 iterations done", 'href="config.json"', 'href="metrics.jsonl"'):
        assert words in text
    assert "<b>2.5000</b><span>validation loss</span>" in text
    assert 'href="loss.svg"' in text
    curve = ElementTree.parse(tmp_path / "loss.svg").getroot()
    assert curve.tag == f"{SVG}svg"
    assert [text.text for text in curve.iter(f"{SVG}text") if text.get("class") == "title"] == ["Loss"]
    assert "--train: #" in curve.find(f"{SVG}style").text


def test_the_page_shows_the_whole_run_as_configured(tmp_path: Path) -> None:
    config = complete(draft([File("a.yml", smallest.YAML)], []), 1)
    sources = [Drawn("web", [(0.0, 0.0), (80.0, 1280.0)], 640.0)]
    text = page(rows(4), "iteration 4 of 10", [], tmp_path, Timeline(config, drawn=sources))
    titles = re.findall('aria-label="([^"]*)"', text)
    assert titles.count("Learning rate") == 2  # on a screen and on a phone, with both curves
    assert {"Passes over each source", "Tokens"} <= set(titles)
    assert {"planned", "measured"} <= set(re.findall('<text class="key"[^>]*>([^<]*)<', text))
    assert '<td data-name="epochs">2.00</td>' in text


@pytest.mark.parametrize(("start", "began"), [(0, "started"), (2, "resumed at iteration 2")])
def test_the_page_says_when_and_where_the_run_was(start: int, began: str, tmp_path: Path) -> None:
    play(Metrics(tmp_path / run_metrics.FILE), tmp_path, start)
    play(Page([]), tmp_path, start)
    facts = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", (tmp_path / "report.html").read_text()))
    assert facts["host of rank 0"] == socket.gethostname()
    for label in (began, "written"):
        then = datetime.strptime(facts[label], "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - then) < timedelta(hours=1)


def test_the_page_says_how_the_run_was_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "LOADED", ["mine"])
    texts = [File("b/z.yml", f"run_dir: {tmp_path}\n"), File("b/a b.yml", smallest.BILLION)]
    overrides = ["lr=0.5", "wandb_host=https://me:hunter2@x.org", "eval_prompts=['a \"b\"']"]
    config = complete(draft([File(*text) for text in texts], overrides), 1)
    assert launch_command(config) == ""
    write_record(config)
    values = with_launch(config, "train.py", texts, "v1-2-gabc").values
    ranks = Config({name: Value(value.value, Source("environment")) for name, value in values.items()})
    facts = dict(_launched(ranks))
    assert facts["commit"] == "v1-2-gabc" and "hunter2" not in facts["command"]
    words = shlex.split(facts["command"])
    assert words[:6] == ["deepy", "train.py", "b/z.yml", "b/a b.yml", "--plugin", "mine"]
    assert sorted(words[7::2]) == sorted([*overrides[::2], "wandb_host=https://me:*******@x.org"])
    assert words[6::2] == ["--set"] * 3
    (tmp_path / "config.json").write_text("[1]")
    assert launch_command(ranks) == ""


def test_a_killed_run_has_the_page_of_its_last_checkpoint(tmp_path: Path) -> None:
    record, report = Metrics(tmp_path / run_metrics.FILE), Page([])
    for tracker in (record, report):
        tracker.on_start(run(tmp_path))
        tracker.on_step(step(1))
        tracker.on_eval(Evaluation(1, "validation", 2.5))
        tracker.on_save(1, tmp_path / "global_step1")
    assert "iteration 1 of 4" in (tmp_path / "report.html").read_text()
    record.on_end(DONE)


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_validation_loss_that_is_not_finite_is_shown_as_that(tmp_path: Path, loss: float) -> None:
    record, report = Metrics(tmp_path / run_metrics.FILE), Page([])
    for tracker in (record, report, Console(1, lambda text: None, None, None)):
        tracker.on_start(run(tmp_path))
        tracker.on_step(step(1))
        tracker.on_eval(Evaluation(1, "validation", loss, math.inf, {"margin": math.nan}))
        tracker.on_end(DONE)
    assert "<b>not finite</b><span>validation loss</span>" in (tmp_path / "report.html").read_text()
    for line in (tmp_path / run_metrics.FILE).read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_a_record_of_an_earlier_version_may_have_infinite_losses(tmp_path: Path) -> None:
    old = [*rows(5)[:-1], {"event": "evaluation", "step": 5, "split": "validation", "loss": math.inf}]
    (tmp_path / run_metrics.FILE).write_text("".join(json.dumps(row) + "\n" for row in old))
    assert "not finite" in page(list(run_metrics.read(tmp_path / run_metrics.FILE)), "done", [], tmp_path)


def test_the_page_loads_nothing_and_has_a_dark_mode() -> None:
    text = page(rows(50), "done", [], Path("x"))
    assert not re.search(r"<script|<link|<img|@import|url\(|src=|https?:", text)
    assert "prefers-color-scheme: dark" in text
    used = set(re.findall(r"var\(--(\w+)\)", text))
    assert used <= set(re.findall(r"--(\w+):", text.split("prefers-color-scheme")[0]))


def test_a_page_of_ten_thousand_steps_is_small() -> None:
    assert len(page(rows(10_000), "done", [], Path("x"))) < 150_000


def test_no_page_without_a_step(tmp_path: Path) -> None:
    assert page([{"event": "start", "step": 0}], "done", [], tmp_path) == ""


def test_a_run_on_preference_pairs_shows_rewards_in_place_of_the_perplexity() -> None:
    rewards = {"train/reward_acc": 0.75, "train/margins": 0.5}
    text = page([{**row, **rewards} if row["event"] == "step" else row for row in rows(9)], "done", [], Path("x"))
    assert "75.0%" in text and "Reward margin" in text and "of preference training" in text
    assert "perplexity" not in text and "nats per token" not in text
    held_out = {"event": "evaluation", "step": 9, "split": "validation", "loss": 0.5, "validation/reward_acc": 0.625}
    more = page([*({**row, **rewards} for row in rows(9)), held_out], "done", [], Path("x"))
    assert "<b>62.5%</b><span>validation accuracy</span>" in more
    assert re.findall(r"(\w+) after iteration 9: 0.625", more) == ["validation"]
    assert "perplexity" in page(rows(9), "done", [], Path("x"))
