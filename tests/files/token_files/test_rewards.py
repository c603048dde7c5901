"""Reward files of GPT-NeoX, megatron-core and deepy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neoxargs.files.token_files import rewards
from neoxargs.files.token_files.index import HEADER
from tests.support.finetuning import token_file
from tests.support.snapshots import pinned

REWARDS = [0.5, -2.0, 0.0]


@pytest.mark.parametrize("code", [6, 7])
@pytest.mark.parametrize("stored", [np.float32, np.float64])
def test_the_size_tells_floating_point_types_apart(tmp_path: Path, code: int, stored: type[np.generic]) -> None:
    """Code 6 is float32 in GPT-NeoX, and float64 in megatron-core; code 7 the other way round."""
    prefix = token_file(tmp_path / "reward", [[reward] for reward in REWARDS], np.float32)
    index = bytearray((tmp_path / "reward.idx").read_bytes())
    HEADER.pack_into(index, 0, *(*HEADER.unpack_from(index)[:2], code, *HEADER.unpack_from(index)[3:]))
    (tmp_path / "reward.idx").write_bytes(index)
    (tmp_path / "reward.bin").write_bytes(np.array(REWARDS, stored).tobytes())
    found = rewards.read(prefix, 3)
    assert not isinstance(found, str) and found.dtype == np.float32 and found.tolist() == REWARDS


def test_integers_are_rewards_too_and_every_document_has_one(tmp_path: Path) -> None:
    found = rewards.read(token_file(tmp_path / "int32", [[1], [-2]]), 2)
    assert not isinstance(found, str) and found.tolist() == [1, -2]
    several = token_file(tmp_path / "several", [[1], [2, 3]])
    pinned(rewards.read(several, 2))
    assert rewards.read(str(tmp_path / "absent"), 2) == "is missing or damaged"
    with open(several + ".bin", "ab") as numbers:
        numbers.write(b"x")
    assert rewards.read(several, 2) == "is missing or damaged"
