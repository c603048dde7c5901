"""Where the programs, configurations, schema and tables are that are shipped with the package.

A checkout has them in its root folder, an installed package in `shipped_files/`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
#: The folder from which `import neoxargs` works.
IMPORT_ROOT = _PACKAGE.parent
#: True in a checkout, where the documentation can be regenerated.
IS_CHECKOUT = (IMPORT_ROOT / "pyproject.toml").is_file() and (IMPORT_ROOT / "configs").is_dir()
#: The folder that holds `deepy.py`, `train.py`, `generate.py`, `eval.py` and `configs/`.
SHIPPED = IMPORT_ROOT if IS_CHECKOUT else _PACKAGE / "shipped_files"
CONFIGS = SHIPPED / "configs"


@cache
def table_beside(module: str, name: str = "") -> dict[str, Any]:
    """Return the JSON file beside a module. module: its `__file__`. name: of the file, by default the module's."""
    path = Path(module).with_name(name) if name else Path(module).with_suffix(".json")
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table


def installation(extra: str) -> str:
    """Return the command that installs the package with an extra. No index has the package yet."""
    if IS_CHECKOUT:
        return f"pip install -c {IMPORT_ROOT / 'constraints.txt'} -e '{IMPORT_ROOT}[{extra}]'"
    return f"pip install 'WHEEL[{extra}]', where WHEEL is the .whl file that you installed deepy from"


def config_folders() -> list[Path]:
    """Return the folders to search for a configuration by its name, after the user's own folders."""
    return [CONFIGS, *(CONFIGS / name for name in ("models", "layouts", "machines"))]
