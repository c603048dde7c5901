"""The forward pass that validates a checkpoint: on the same layout, on others, and of a wrongly loaded model."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from neoxargs.base.problems import Problems
from neoxargs.facts.position import Position
from neoxargs.train.checkpoint.validation import ForwardPass
from neoxargs.train.process import mesh, setup
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY
from tests.support.snapshots import pinned
from tests.support.trials import SAMPLES, Training, Trial

TENSOR_2 = Trial({"model_parallel_size": 2})
PIPELINE_2 = Trial({"pipe_parallel_size": 2})


def results(root: str) -> dict[str, Any]:
    """Return what loads print, and the losses of two steps after a save, with and without a validation."""
    process = setup.start("gloo", seed=1)
    found: dict[str, Any] = {}

    def started(trial: Trial, validates: bool = True, **changes: Any) -> tuple[Training, Any]:
        run = Training(trial, **changes)
        saver = run.checkpoints(process)
        saver.forward_pass = ForwardPass(run.config, run.engine, VOCABULARY) if validates else None
        return run, saver

    def save(name: str, trial: Trial, validates: bool = True) -> str:
        path = str(Path(root, name))
        run, saver = started(trial, validates, save=path)
        for _ in range(2):
            run.step()
        saver.save(Position(2, 2 * SAMPLES))
        found[f"{name}, continued"] = [run.step() for _ in range(2)]
        mesh.destroy_groups()
        return path

    def load(name: str, path: str, trial: Trial, mistake: bool = False, **changes: Any) -> None:
        _, saver = started(trial, load=path, **changes)
        if mistake:
            exchange_weights_after_loading(saver)
        output = StringIO()
        try:
            with redirect_stdout(output):
                saver.load()
        except Problems as problems:
            output.write(problems.problems[0].what)
        found[name] = output.getvalue()
        mesh.destroy_groups()

    data = save("data", Trial())
    pipeline = save("pipeline", PIPELINE_2)
    load("same layout", data, Trial())
    load("other layout", data, TENSOR_2)
    load("from a pipeline", pipeline, TENSOR_2)
    load("other length", data, Trial(), seq_length=8)
    load("mistake", data, TENSOR_2, mistake=True)
    load("without a record", save("without", Trial(), validates=False), Trial())
    return found


def exchange_weights_after_loading(saver: Any) -> None:
    """Let the saver load the rows of a feed-forward matrix in the wrong order."""
    load = saver._load_state

    def wrongly(checkpoint: Path) -> Any:
        state = load(checkpoint)
        weights = [
            weight for name, weight in saver.engine.module.named_parameters() if "mlp" in name and weight.dim() == 2
        ]
        with torch.no_grad():
            weights[0].copy_(weights[0].flip(0))
        return state

    saver._load_state = wrongly


def test_a_loaded_model_has_the_loss_with_which_it_was_saved(tmp_path: Path) -> None:
    found = run_ranks(results, 2, str(tmp_path))[0]
    assert found["data, continued"] == found["without, continued"]
    for name in ("same layout", "other layout", "from a pipeline"):
        assert "global_step2: validated by a forward pass: loss " in found[name], name
    pinned(found["other length"])
    pinned(found["without a record"])
    assert ", but that of the saved model was" in found["mistake"]
