"""The shapes of a base model, which muP compares with those of the model."""

from __future__ import annotations

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.regular_files import read_regular

SAVE_HINT = "to write the file, run train.py with the base model's configuration and save_base_shapes: true"


def read_base_shapes(path: str, place: Place | None = None) -> dict[str, list[int | None]]:
    """Return weight -> its sizes in the base model, of a file in the format of the package mup; raises Problems."""
    import yaml

    name, hint = "base_shapes_file", SAVE_HINT
    try:
        base = yaml.safe_load(read_regular(path).decode())
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a YAML file"
        what = f"{name} ({path}) cannot be read: {reason}"
        raise Problems(Problem(what, place, hint, id="base-shapes-unreadable", about=(name,))) from None
    if not isinstance(base, dict) or not all(isinstance(sizes, list) for sizes in base.values()):
        what = f"{name} ({path}) must map weight names to lists of sizes"
        raise Problems(Problem(what, place, hint, id="base-shapes-malformed", about=(name,)))
    return base
