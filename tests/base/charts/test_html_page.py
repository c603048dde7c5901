"""Every HTML page that deepy writes can be read: on a phone and on a screen, in the light and in the dark scheme."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.files.run_record import write_record
from neoxargs.plan.command import print_plan
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.search.command import SearchOptions, run_search
from neoxargs.train.track.report_page import page as report
from tests.support import smallest
from tests.support.browser import CHROMIUM, Page, browser
from tests.support.configure import configure
from tests.support.legibility import cut_texts, low_contrasts, small_texts

STEPS = 400


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def _rows(noise: float) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [{"event": "start", "step": 0, "unigram_entropy": 5.0}]
    for step in range(1, STEPS + 1):
        loss = 3 + 6 * math.exp(-5 * step / STEPS) + noise * math.sin(37 * step)
        rows.append({
            "event": "step", "step": step, "loss": loss, "lr": 6e-4, "grad_norm": 1 + noise * math.cos(step),
            "samples": 8 * step, "tokens_per_second": 5e5, "elapsed": 0.5 * step, "memory": 3 * 2**30,
            "train/kl": 0.1, "train/reward_acc": 0.7,
        })  # fmt: skip
        if step % 50 == 0:
            values = {"loss": loss + 0.1, "validation/kl": 0.2, "validation/reward_acc": 0.6}
            rows += [
                {"event": "evaluation", "step": step, "split": split, **values} for split in ("validation", "test")
            ]
    rows[100]["loss"] = 1e6
    answers = [{"prompt": "Once upon a time", "text": "there was " * 40, "finished": False}]
    return [*rows, *({"event": "answers", "step": step, "answers": answers} for step in (0, 200, STEPS))]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages that the commands write, each with as many of its parts as there are."""
    folder = tmp_path_factory.mktemp("pages")
    config = folder / "middle.yml"
    config.write_text(smallest.BILLION)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        plans = {
            "plan that fits": (["checkpoint_activations=true"], {"gpus": 16, "device": "H100"}),
            "plan that does not fit": ([], {"gpus": 16, "gpu_memory": 24}),
            "plan of a pipeline": (
                ["pipe_parallel_size=8", "model_parallel_size=2", "gradient_accumulation_steps=8"],
                {"gpus": 32, "device": "H100"},
            ),
            "plan far beyond the memory": ([], {"gpus": 8, "gpu_memory": 1}),
        }
        for name, (overrides, options) in plans.items():
            print_plan(PlanOptions([str(config)], overrides, **options), page=f"{name}.html")  # type: ignore[arg-type]
        run_search(PlanOptions([str(config)], gpus=16, device="H100"), SearchOptions(page="search.html"))
        for name, more in (("a", ""), ("b", "lr: 0.1\nzero_optimization: {stage: 2}\ndata_path: a/path/of/a/file\n")):
            write_record(configure(f"run_dir: {name}\n{more}", gpus=1))
            rows = _rows(0.1 if name == "a" else 0.2)
            Path(name, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        main(["diff", "a", "b", "--at", "5", "--html", "diff.html"])
        about = [
            ("model", "2 layers"),
            ("command", "python deepy.py train.py " + "configs/a_long_name_of_a_file.yml " * 3),
        ]
        Path("report.html").write_text(report(_rows(0.1), "iteration 400 of 500", about, Path("a")))
    return {path.stem: path for path in sorted(folder.glob("*.html"))}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast(scheme: str, window: Page, pages: dict[str, Path]) -> None:
    found = {}
    for name, path in pages.items():
        window.size(1280, 900, scheme)
        window.open(path.as_uri())
        found[name] = low_contrasts(window, scheme)
    assert not any(found.values()), found


@pytest.mark.parametrize("width", [360, 420, 760, 1280])
def test_no_text_is_cut_off_or_too_small(width: int, window: Page, pages: dict[str, Path]) -> None:
    found = {}
    for name, path in pages.items():
        window.size(width, 900)
        window.open(path.as_uri())
        found[name] = cut_texts(window, width) | small_texts(window)
        assert window.value("document.documentElement.scrollWidth") <= width, name
    assert not any(found.values()), found
