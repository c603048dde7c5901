"""Models of today's families: imported ones agree with those of transformers, and exported ones equal the originals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from neoxargs.convert.huggingface import FAMILIES, exporting
from neoxargs.convert.huggingface.safetensors import Reader
from tests.support.huggingface import MODELS, Difference, one_process
from tests.support.huggingface_table import two_ranks

pytestmark = pytest.mark.filterwarnings("ignore")

#: Other tests add models to MODELS while they run, which the ranks do not know.
KNOWN_TO_RANKS = len(MODELS)


@pytest.fixture(autouse=True)
def transformers() -> None:
    os.environ["USE_TF"] = "0"
    pytest.importorskip("transformers")


def assert_equal(difference: Difference, name: str) -> None:
    assert difference.logits is None or difference.logits < 1e-4, name
    assert difference.gradients < 1e-4, name
    assert difference.texts == 0, name


def test_every_family_has_a_model() -> None:
    elsewhere = {"GPTNeoXForCausalLM", "GPT2LMHeadModel"}  # test_export_import.py
    assert {case.architecture for case in MODELS.values()} >= FAMILIES.keys() - elsewhere


@pytest.mark.parametrize("name", MODELS)
def test_logits_gradients_and_tokens_on_one_process(tmp_path: Path, name: str) -> None:
    assert_equal(one_process(tmp_path, name), name)
    again = tmp_path / "again"
    words = [str(tmp_path / "ours" / "model.yml"), "--to", str(again), "--architecture", MODELS[name].architecture]
    assert exporting.main(words) == 0
    written, before = Reader(again), Reader(tmp_path / "theirs")
    assert set(written.where) == set(before.where) | ({"lm_head.weight"} & set(written.where))
    for key in before.where:
        assert torch.equal(written.read(key), before.read(key)), key
    assert_loads_as_it_was(name, tmp_path)


def assert_loads_as_it_was(name: str, folder: Path) -> None:
    """transformers' model of the exported folder computes what the first one did."""
    import transformers

    ids = torch.arange(2, 26).unsqueeze(0)
    models = [
        getattr(transformers, MODELS[name].architecture)
        .from_pretrained(folder / one, attn_implementation="eager")
        .eval()
        for one in ("theirs", "again")
    ]
    with torch.no_grad():
        torch.testing.assert_close(models[1](ids).logits, models[0](ids).logits, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_logits_gradients_and_tokens_on_two_ranks(tmp_path: Path) -> None:
    for rank in two_ranks(tmp_path):
        assert len(rank) == 2 * KNOWN_TO_RANKS
        for name, difference in rank.items():
            assert_equal(difference, name)
