"""RWKV models and the checkpoints of other programs: GPT-NeoX's belong to another function of the same weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from neoxargs.convert.neox.exporting import write
from neoxargs.files.neox_checkpoint.weights import locate
from tests.support.refused import refused
from tests.support.small_gpt import small
from tests.support.snapshots import pinned


def test_checkpoints_of_gpt_neox_are_refused_with_the_reason() -> None:
    tensor: Any = [SimpleNamespace(shape=(8, 8))]
    layer = dict.fromkeys(("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "att.time_maa_x"), tensor)
    contents: Any = SimpleNamespace(folder="old", layers={0: {"word_embeddings.weight": tensor}, 2: layer})
    pinned(refused(locate, contents)[0])


def test_an_export_to_gpt_neox_is_refused_with_the_reason(tmp_path) -> None:
    unused: Any = None
    pinned(refused(write, small(attention_config=["global", "rwkv"]), unused, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
