"""`use_wandb` with the real package: an offline run writes its configuration and losses to a file."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from neoxargs.base.problems import Problems
from neoxargs.registry.logging import Wandb
from neoxargs.train.track.series import WandbTracker
from tests.support.processes import start_ranks, step_rows
from tests.support.tracking import run

pytest.importorskip("wandb", reason="wandb is not installed (it brings 15 packages that nothing else here needs)")

#: LevelDB's log format, which wandb's files use: header size, block size, header of a record.
HEADER, BLOCK, RECORD = 7, 32 * 1024, struct.Struct("<IHB")
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Yield the records in a run's file."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, message = path.read_bytes(), HEADER, b""
    while place < len(content):
        if BLOCK - place % BLOCK < RECORD.size:  # too little for a record: the rest of the block is padding
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = RECORD.unpack_from(content, place)
        message += content[place + RECORD.size : place + RECORD.size + length]
        place += RECORD.size + length
        if kind in (FULL, LAST):
            found = Record()
            found.ParseFromString(message)
            yield found
            message = b""


@pytest.mark.timeout(200)
def test_an_offline_run_leaves_a_file_with_its_configuration_and_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.setblocking(False)
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
        host = f"http://127.0.0.1:{service.getsockname()[1]}"
        changes = {"train_iters": 4, "log_interval": 1, "use_wandb": True, "wandb_project": "here", "wandb_host": host}
        with start_ranks(tmp_path, 1, checkpoint_factor=None, **changes) as ranks:
            codes, _, errors = ranks.wait()
        assert codes == [0], errors
        with pytest.raises(BlockingIOError):  # nobody has knocked
            service.accept()
    (path,) = (tmp_path / "out").glob("wandb/offline-run-*/run-*.wandb")
    found = list(records(path))
    (begun,) = [record.run for record in found if record.HasField("run")]
    values = {item.key: yaml.safe_load(item.value_json) for item in begun.config.update}
    assert begun.project == "here"
    assert (values["hidden_size"], values["train_iters"], values["use_wandb"]) == (32, 4, True)
    logged = [record.history.item for record in found if record.HasField("history")]
    losses = [
        float(item.value_json) for items in logged for item in items if "train/lm_loss" in (item.key, *item.nested_key)
    ]
    assert losses == pytest.approx([row["loss"] for row in step_rows(tmp_path)], rel=1e-6)
    assert len(losses) == 4


def test_without_a_key_the_problem_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR"):  # no key of this machine's user
        monkeypatch.setenv(name, str(tmp_path / "nobody"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    tracker = WandbTracker(Wandb(wandb_host="http://127.0.0.1:9"), {})
    with pytest.raises(Problems, match=r"use_wandb \(true\): (?s:.*)WANDB_MODE=offline in the environment"):
        tracker.on_start(run(tmp_path))
