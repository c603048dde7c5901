"""Code that `deepy export` and `deepy import` share: the output folder, digests, exit codes, names of files.

An exported folder has a files.json with the size and the checksum of every other file, in the form of checkpoints.
`deepy import` compares them; other programs ignore the file.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neoxargs.base.files import replacing_folder, why_unwritable
from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.data.exit_code import exit_code_of
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.checksums import Digest, digest_of

#: The YAML file that `deepy import` writes.
YAML = "model.yml"


@contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder to write to (`replacing_folder`). Raises Problems if `folder` exists or is not writable."""
    if os.path.exists(folder):
        what = f"--to ({folder}) already exists"
        hint = "choose a different folder, or remove this one"
        raise Problems(Problem(what, hint=hint, id="output-folder-exists"))
    if why := why_unwritable(folder):
        raise Problems(Problem(f"--to ({folder}) cannot be written: {why}", id="output-folder-unwritable"))
    try:
        with replacing_folder(folder) as part:
            yield part
    except OSError as error:
        raise Problems(
            Problem(f"--to ({folder}) cannot be written: {error.strerror or error}", id="output-folder-unwritable")
        ) from error


def write_digests(folder: Path, known: Mapping[str, Digest] | None = None) -> None:
    """Write files.json. known: digests that were computed while the files were written."""
    files = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    digests = {name: (known or {}).get(name) or digest_of(file) for name, file in files.items()}
    checkpoint_folder.write_digests(folder, digests)


def require_undamaged(folder: Path) -> None:
    """Raise Problems unless every file is as it was exported; folders of other programs have no digests."""
    if (folder / checkpoint_folder.FILES).exists() and (damage := checkpoint_folder.verify(folder)):
        what = f"{folder} is not as it was exported: {damage}"
        hint = f"export the model again; or, if you changed the folder on purpose, remove its {checkpoint_folder.FILES}"
        raise Problems(Problem(what, hint=hint, id="huggingface-folder-damaged"))


def exit_code(work: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    """Run `work`, and return the command's exit code."""
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"  # otherwise DeepSpeed warns that it found no accelerator
    return exit_code_of(lambda: work(options))


def values_set_by_user(config: Config, without: Collection[str]) -> dict[str, Any]:
    """Return the values that the user of a configuration has set, for a new YAML file, and its dialect."""
    dialect = config.dialect.name if config.dialect else "neox-2026"
    values = {parameter.name: value.value for parameter, value in config.items() if value.source.set_by_user}
    return {"dialect": dialect} | {name: value for name, value in values.items() if name not in (*without, "dialect")}


def require_finite(
    tensor: Tensor, name: str, where: str, hint: str = "set iteration to export an earlier checkpoint"
) -> Tensor:
    """Return a tensor; raise Problems if an element is infinite or NaN. where: what the tensor was read from."""
    # The largest absolute value is infinite or NaN exactly if an element is; `isfinite` would need several copies.
    numbers = tensor.detach() if tensor.dtype.itemsize > 1 else tensor.float()
    counts = tensor.is_floating_point() and tensor.numel()
    if counts and not torch.linalg.vector_norm(numbers, float("inf")).isfinite():
        what = f"{where}: {name} is infinite or NaN"
        raise Problems(Problem(what, hint=hint, id="checkpoint-not-finite", about=("load", "iteration")))
    return tensor


def weight_name(module: str, kind: str) -> str:
    """Return the name of a module's weight or bias in our checkpoints. kind: `weight` or `bias`."""
    return f"{module}.{'table' if (module, kind) == ('positions', 'weight') else kind}"
