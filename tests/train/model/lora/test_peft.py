"""Adapters against peft's, on every layout: logits, gradients and three steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.peft_models import CASES, measured

pytest.importorskip("peft")


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", CASES)
def test_every_layout_computes_what_peft_computes(name: str, tmp_path: Path) -> None:
    for layout, found in measured(tmp_path, CASES[name]).items():
        assert (found.logits is None) is (layout == "tp2 sequence")
        assert (found.logits or 0) < 1e-4, (layout, found)
        assert 0 < found.gradients < 2e-5, (layout, found)
        assert 0 < found.weights < 2e-5, (layout, found)
        assert found.losses < 1e-5, (layout, found)
