"""Convert a GPT-NeoX checkpoint for `deepy import` to a deepy checkpoint, or directly to a Hugging Face folder.

The configuration is the one that GPT-NeoX stored in the checkpoint, or is in files that the user names. The new
checkpoint has a file of weights and a file of optimizer states per layer, so only one layer is in memory at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from neoxargs.base.problems import Problem, Problems, render
from neoxargs.checks.checkpoint.neox import neox_checkpoint
from neoxargs.config.config import Config
from neoxargs.convert import imported
from neoxargs.convert.folder import YAML, require_finite, values_set_by_user
from neoxargs.convert.imported import Imported
from neoxargs.data.meter import Meter
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.resolve import resolve
from neoxargs.targets.nesting import nested
from neoxargs.train.checkpoint.neox.loading import schedule_state
from neoxargs.train.checkpoint.neox.weights import NeoxWeights

#: Parameters that are not copied from the configuration of the run that wrote the checkpoint.
NOT_TAKEN = ("load", "save", "iteration", "finetune", "hostfile", "include", "exclude", "num_gpus", "num_nodes")
HEAD = """\
# Imported from the GPT-NeoX checkpoint {source}. The values below are from the run's configuration: {files}
#
#   python deepy.py train.py {file} --set save=FOLDER
"""


def configuration(contents: Contents, root: Path, files: Sequence[Path], overrides: Sequence[str]) -> Config:
    """Return the configuration of the run that wrote the checkpoint, with `load` set to the checkpoint.

    files: the configuration, if it is not in the checkpoint. Raises Problems.
    """
    found = [*files] or contents.configurations
    if not found:
        what = f"{contents.folder} does not contain the configuration of the run that wrote it"
        hint = (
            "pass the run's YAML files with --config FILE; GPT-NeoX has stored them in checkpoints since November 2021"
        )
        raise Problems(Problem(what, hint=hint, id="checkpoint-incomplete", about=("load",)))
    return resolve(found, [*overrides, f"load={root}"], gpus=contents.files.ranks)


def listing(config: Config, weights: NeoxWeights) -> Iterator[str]:
    """Yield what would be imported: the messages of `check`, then every weight with its shape."""
    if found := list(neox_checkpoint(config)):
        yield render(found)
    counts: dict[tuple[str, str], int] = {}
    for name in weights.slices:
        key = re.sub(r"^layers\.\d+", "layers.*", name), " x ".join(map(str, weights.shape(name)))
        counts[key] = counts.get(key, 0) + 1
    for (name, shape), count in counts.items():
        yield f"{count:4} x {name:42} {shape}"


def write(config: Config, weights: NeoxWeights, files: Sequence[Path], folder: Path, final: Path) -> None:
    """Write the YAML file and the checkpoint. final: the folder's path after renaming."""
    (folder / YAML).write_text(_yaml(config, weights, files, final), encoding="utf-8")
    common = weights.common
    curve = LearningRateCurve.of(config.get)
    # GPT-NeoX stores fewer values of a schedule than deepy; the configuration has the others.
    common["lr_scheduler"] = schedule_state(curve, common["lr_scheduler"], common["iteration"])
    optimizer = partial(_optimizer, weights) if weights.complete else None
    source = Imported(common, weights.dtype, list(weights.slices), partial(_finite, weights), optimizer)
    with Meter(sum(map(weights.size, weights.slices)), "reading GPT-NeoX's checkpoint") as meter:
        imported.write(source, config, folder, meter.advance)


def _finite(weights: NeoxWeights, name: str, state: str = "", master: bool = False) -> Tensor:
    """Return a weight or one of its optimizer states; raise Problems if an element is infinite or NaN."""
    what = f"the optimizer state {state} of {name}" if state else f"the weight {name}"
    hint = "pass --iteration N to import an earlier checkpoint"
    return require_finite(weights.full_tensor(name, state, master=master), what, str(weights.folder), hint)


def _optimizer(weights: NeoxWeights, names: Sequence[str]) -> dict[str, Any]:
    """Return the optimizer file of some weights."""
    masters = [_finite(weights, name, master=True).flatten() for name in names] if weights.optimizer.masters else []
    states = {
        number: {
            state: _finite(weights, name, state).flatten() if value is None else value
            for state, value in weights.states(name).items()
        }
        for number, name in enumerate(names)
    }
    plain = {key: value for key, value in weights.loss_scale.items() if isinstance(value, bool | int | float)}
    # No groups: the schedule and the configuration set what they contain.
    inner = {"state": states, "param_groups": []}
    return {
        "optimizer_state_dict": {"single_partition_of_fp32_groups": masters, "base_optimizer_state": inner, **plain}
    }


def _yaml(config: Config, weights: NeoxWeights, files: Sequence[Path], final: Path) -> str:
    values = values_set_by_user(config, NOT_TAKEN) | {"load": str(final)}
    values |= {} if weights.complete else {"finetune": True}
    listed = ", ".join(path.name for path in files or weights.contents.configurations)
    head = HEAD.format(source=weights.folder, files=listed, file=final / YAML)
    return f"{head}\n{yaml.safe_dump(nested(values), sort_keys=False)}"
