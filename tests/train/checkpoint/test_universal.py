"""Universal checkpoints, which DeepSpeed converts from others and loads itself, are read without running code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from neoxargs.facts.position import Position
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.process import setup
from tests.support.ranks import run_ranks
from tests.support.snapshots import pinned
from tests.support.trials import SAMPLES, Training, Trial

#: Files of a universal checkpoint that DeepSpeed reads with different calls.
READ = ("optimizer_state.pt", "final_norm.bias/fp32.pt", "final_norm.bias/step.pt")


class Foreign:
    """An object whose pickle creates a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def cases(root: str, stage: int) -> dict[str, Any]:
    """Convert the checkpoint of iteration 2, and load it as it is and with a foreign pickle in each kind of file."""
    from deepspeed.checkpoint import ds_to_universal

    process = setup.start("gloo", seed=1)
    whole, universal = Path(root, "whole"), Path(root, "universal")

    def start(**options: Any) -> tuple[Training, Checkpoints]:
        deepspeed: dict[str, Any] = {"zero_optimization": {"stage": stage}}
        deepspeed["checkpoint"] = {"load_universal": "checkpoint.load_universal" in options}
        built = Training(Trial({}, deepspeed), **{"zero_optimization.stage": stage}, **options)
        return built, built.checkpoints(process)

    def load() -> Any:
        built, checkpoints = start(load=str(universal), **{"checkpoint.load_universal": True})
        try:
            position = checkpoints.load()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        built.batches = built.micro_batches(position.samples)
        return position.iteration, built.step()

    built, checkpoints = start(save=str(whole))
    for _ in range(2):
        built.step()
    checkpoints.save(Position(2, 2 * SAMPLES))
    words = ["", f"--input_folder={whole}/global_step2", f"--output_folder={universal}/global_step2",
             "--num_extract_workers=1", "--num_merge_workers=1", "--inject_missing_state"]  # fmt: skip
    universal.mkdir()
    with patch.object(sys, "argv", words):
        ds_to_universal.main(ds_to_universal.parse_arguments())
    found = {"next loss": built.step(), "loaded": load()}
    for name in READ:
        file = universal / "global_step2" / "zero" / name
        if file.exists():
            kept = file.read_bytes()
            torch.save(Foreign(Path(root, "executed")), file)
            found[name] = load()
            file.write_bytes(kept)
    return found | {"executed": Path(root, "executed").exists()}


@pytest.mark.parametrize("stage", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_universal_checkpoint_is_loaded_and_a_foreign_pickle_in_it_is_refused(tmp_path: Path, stage: int) -> None:
    found = run_ranks(cases, 1, str(tmp_path), stage)[0]
    assert found["loaded"] == (2, found["next loss"])
    refused = {name: found[name] for name in READ if name in found}
    assert set(refused) >= set(READ[:2])
    for outcome in refused.values():
        assert outcome.startswith("Problems: ")
        pinned(outcome, "[checkpoint-file-refused]")
        assert "[checkpoint-file-refused]" in outcome
    assert not found["executed"]
