"""Where the programs, configurations and schema are that are shipped with the package.

A checkout has them in its root folder, an installed package in `shipped_files/`.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
#: The folder from which `import neoxargs` works.
IMPORT_ROOT = _PACKAGE.parent
#: True in a checkout, where the documentation can be regenerated.
IS_CHECKOUT = (IMPORT_ROOT / "pyproject.toml").is_file() and (IMPORT_ROOT / "configs").is_dir()
#: The folder that holds `deepy.py`, `train.py`, `generate.py`, `eval.py` and `configs/`.
SHIPPED = IMPORT_ROOT if IS_CHECKOUT else _PACKAGE / "shipped_files"
CONFIGS = SHIPPED / "configs"


def installation(extra: str) -> str:
    """Return the command that installs the package with an extra. No index has the package yet."""
    if IS_CHECKOUT:
        return f"pip install -c {IMPORT_ROOT / 'constraints.txt'} -e '{IMPORT_ROOT}[{extra}]'"
    return f"pip install 'WHEEL[{extra}]', where WHEEL is the .whl file that you installed deepy from"


def config_folders() -> list[Path]:
    """Return the folders to search for a configuration by its name, after the user's own folders."""
    return [CONFIGS, *(CONFIGS / name for name in ("models", "layouts", "machines"))]
