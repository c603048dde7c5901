"""Models of all families: imported ones agree with those of transformers, and exported ones equal the originals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from neoxargs.convert.huggingface import FAMILIES, exporting
from tests.support.huggingface import MODELS, MORE_MODELS, Difference, assert_same_weights, one_process
from tests.support.huggingface_table import two_ranks

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = [*MODELS, *MORE_MODELS]
FIRST = ["GPT-NeoX", "GPT-2"]
OTHERS = [name for name in NAMES if name not in FIRST]


@pytest.fixture(autouse=True)
def transformers() -> None:
    os.environ["USE_TF"] = "0"
    pytest.importorskip("transformers")


def assert_equal(difference: Difference, name: str) -> None:
    assert difference.logits is None or difference.logits < 1e-4, name
    assert difference.gradients < 1e-4, name
    assert difference.texts == 0, name


def test_every_family_has_a_model() -> None:
    assert {case.architecture for case in (MODELS | MORE_MODELS).values()} >= FAMILIES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_logits_gradients_and_tokens_on_one_process(tmp_path: Path, name: str) -> None:
    assert_equal(one_process(tmp_path, name), name)
    again = tmp_path / "again"
    architecture = (MODELS | MORE_MODELS)[name].architecture
    words = [str(tmp_path / "ours" / "model.yml"), "--to", str(again), "--architecture", architecture]
    assert exporting.main(words) == 0
    assert_same_weights(again, tmp_path / "theirs", frozenset({"lm_head.weight"}))
    assert_loads_as_it_was(architecture, tmp_path)


def assert_loads_as_it_was(architecture: str, folder: Path) -> None:
    """transformers' model of the exported folder computes what the first one did."""
    import transformers

    ids = torch.arange(2, 26).unsqueeze(0)
    models = [
        getattr(transformers, architecture).from_pretrained(folder / one, attn_implementation="eager").eval()
        for one in ("theirs", "again")
    ]
    with torch.no_grad():
        torch.testing.assert_close(models[1](ids).logits, models[0](ids).logits, rtol=0, atol=1e-5)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", [FIRST, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["first", "others"])
def test_logits_gradients_and_tokens_on_two_ranks(tmp_path: Path, names: list[str]) -> None:
    for rank in two_ranks(tmp_path, names):
        assert len(rank) == 2 * len(names)
        for name, difference in rank.items():
            assert_equal(difference, name)
