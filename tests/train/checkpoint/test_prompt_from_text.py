"""A soft prompt from its first step to generated text: started from text, saved, resumed, with every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.train.model.soft_prompt.prompt import NAME
from tests.support.frozen_runs import configured, losses, prompted, saved, trained, trained_base
from tests.support.ranks import run_ranks

TEXT = "a b"
PROMPT = f"soft_prompt_tuning: {{enabled: true, num_tokens: 5, init_string: {TEXT}}}\n"
LAYOUTS = {"one": (1, 0), "tp2": (2, 0), "pp2": (1, 2)}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text and with a model that was trained for two steps."""
    return trained_base(tmp_path_factory.mktemp("base"))


def of_layout(base: Path, name: str, folder: Path) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Return the losses of six steps, those with a restart after four, and the weights at the end."""
    tensor, pipe = LAYOUTS[name]
    start: dict[str, Any] = {"load": base / "base", "finetune": "true"}
    whole = configured(base, PROMPT, tensor, pipe, train_iters=6, save=folder / "whole", **start)
    first = configured(base, PROMPT, tensor, pipe, train_iters=4, save=folder / "parts", **start)
    second = configured(base, PROMPT, tensor, pipe, train_iters=6, save=folder / "parts", load=folder / "parts")
    run_ranks(trained, tensor * max(pipe, 1), [whole, first, second], timeout=240)
    return losses(folder / "whole"), losses(folder / "parts"), saved(folder / "parts" / "global_step6")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_layout_trains_saves_and_resumes_it(base: Path, tmp_path: Path) -> None:
    [whole, parts, weights] = of_layout(base, "one", tmp_path / "one")
    assert whole[-1] < whole[0]
    for name in LAYOUTS:
        ours = (whole, parts, weights) if name == "one" else of_layout(base, name, tmp_path / name)
        assert ours[0] == pytest.approx(whole, rel=1e-5), name
        assert ours[1] == pytest.approx(ours[0], rel=1e-6), name
        assert set(ours[2]) == {NAME}
        torch.testing.assert_close(ours[2][NAME], weights[NAME], rtol=1e-4, atol=1e-5)


def test_it_starts_from_the_text_and_is_used_by_generate(base: Path, tmp_path: Path) -> None:
    """With a learning rate of almost 0, it stays where it starts."""
    start: dict[str, Any] = {"load": base / "base", "finetune": "true", "lr": 1e-12}
    [_] = run_ranks(trained, 1, [configured(base, PROMPT, train_iters=1, save=tmp_path / "soft", **start)])
    weights = saved(tmp_path / "soft" / "global_step1")
    ids = [*TEXT.encode(), *TEXT.encode()][:5]
    assert set(weights) == {NAME}
    expected = saved(base / "base" / "global_step2")["embedding.word_embeddings.weight"][ids]
    torch.testing.assert_close(weights[NAME], expected, rtol=0, atol=1e-6)
    plain = prompted(base, tmp_path, "", base / "base", (TEXT * 2)[:5] + "xyz")
    assert prompted(base, tmp_path, PROMPT, tmp_path / "soft", "xyz") == plain
