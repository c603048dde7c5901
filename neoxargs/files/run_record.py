"""config.json in the run folder: every value of a run, with its source."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from neoxargs.base.files import replace_text
from neoxargs.base.problems import SET
from neoxargs.config.config import Config
from neoxargs.registry import ABSENT, plugins

#: The file in `run_dir` with all values of the run and their sources.
RECORD_FILE = "config.json"


def recorded_values(config: Config, defaults: bool = True) -> dict[str, dict[str, object]]:
    """Return parameter -> its value and source. defaults: also of those that have their default."""
    return {
        parameter.name: {"value": value.value, "source": str(value.source)}
        for parameter, value in config.items()
        if value.value is not ABSENT and (defaults or value.value != parameter.default)
    }


def write_record(config: Config) -> Path:
    """Write all values with their sources to `RECORD_FILE`, one per line, and return its path."""
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in recorded_values(config).items()]
    path = Path(config.logging.run_dir, RECORD_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def launch_command(config: Config) -> str:
    """Return a command that launches a run with the files and overrides of its record in `run_dir`; "" without one."""
    try:
        record = json.loads(Path(config.logging.run_dir, RECORD_FILE).read_text(encoding="utf-8"))
        sources = list(dict.fromkeys(str(entry["source"]) for entry in record.values()))
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return ""
    files = dict.fromkeys(match[1] for source in sources if (match := re.fullmatch(r"(.+?):\d+:\d+", source)))
    order = list(config.get("config_files") or ())  # of the files by their base names; the record is in that of keys
    in_order = sorted(files, key=lambda file: order.index(base) if (base := os.path.basename(file)) in order else -1)
    changes = [source.partition(" ")[2] for source in sources if source.startswith(f"{SET} ")]
    options = [*(("--plugin", name) for name in plugins.LOADED), *((SET, change) for change in changes)]
    script = str(config.get("user_script") or "train.py")
    return shlex.join(["deepy", script, *in_order, *(word for pair in options for word in pair)])
