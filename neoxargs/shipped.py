"""What is shipped beside the modules: the programs, the configurations, the schema.

A checkout has them at its top, where people look for them; an installed package has them inside (`shipped_files/`).
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
#: The folder from which `import neoxargs` works.
IMPORT_ROOT = _PACKAGE.parent
#: Is this a checkout, in which the documentation can be regenerated?
IS_CHECKOUT = (IMPORT_ROOT / "pyproject.toml").is_file() and (IMPORT_ROOT / "configs").is_dir()
#: The folder that holds `deepy.py`, `train.py`, `generate.py`, `eval.py` and `configs/`.
SHIPPED = IMPORT_ROOT if IS_CHECKOUT else _PACKAGE / "shipped_files"
CONFIGS = SHIPPED / "configs"


def config_folders() -> list[Path]:
    """The folders in which a configuration is looked for by its bare name, after the user's own."""
    return [CONFIGS, *(CONFIGS / name for name in ("models", "layouts", "machines"))]
