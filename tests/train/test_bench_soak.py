"""bench/soak.py: a small run that is killed ends as an undisturbed one, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.cluster import cpu_environ
from tests.support.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_ends_as_an_undisturbed_one(tmp_path):
    words = [sys.executable, str(ROOT / "bench" / "soak.py"), "--folder", str(tmp_path / "soak")]
    done = subprocess.run([*words, "--steps=60", "--kills=3"], env=cpu_environ(), capture_output=True, text=True)
    assert (tmp_path / "soak" / "report.json").exists(), done.stdout + done.stderr
    report = json.loads((tmp_path / "soak" / "report.json").read_text())
    answers = {name: report[name] for name in report if report[name] in ("yes", "NO")}
    assert "last checkpoint bit-equal" in answers and "nothing left" in answers
    # 60 steps are too few to tell whether memory grows
    assert [name for name, answer in answers.items() if answer == "NO" and "memory" not in name] == [], done.stdout
    assert 1 <= report["kills"] <= 3  # the run can end before the last one
