"""run.lock.yml in the run folder: everything that a run depends on when it is launched.

values     every parameter with its value and source
code, packages, hardware, files     as `fingerprints.py` finds them
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.files import replace_text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.request import LOCK_FILE
from neoxargs.config.config import Config
from neoxargs.files.run_record import RECORD_FILE, recorded_values
from neoxargs.resolve.secrets import secret_values
from neoxargs.resolve.yaml.nodes import Mapping as MappingNode
from neoxargs.resolve.yaml.read import File, read_text
from neoxargs.runs.fingerprints import Section, environment

SECTIONS = ("code", "packages", "hardware", "files")
#: Line breaks of YAML, and characters that it does not allow in a text.
TO_ESCAPE = re.compile("[^ -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
HEAD = """\
# The values and the environment with which this run was launched. `deepy check run.lock.yml` reports what has
# changed since then; `deepy diff` compares the run with another one.
format: 1
"""


class Lock(NamedTuple):
    """The contents of a run.lock.yml, and the place of each entry."""

    values: dict[str, Any]
    """For each parameter, its `value` and `source`."""
    script: str
    """The script that the ranks ran."""
    sections: dict[str, Section]
    places: dict[tuple[str, str], Place]


def write_lock(config: Config, script: str, rates: str = "") -> Path:
    """Write the file to the run folder, and return its path. rates: the file of rates that the plan used."""
    path = Path(config.logging.run_dir, LOCK_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, lock_text(config, script, environment(config, script, rates)))
    return path


def replaced_record(config: Config, script: str) -> list[Problem]:
    """Return a warning if the run folder has the record of another script, which this launch replaces."""
    folder, name = config.logging.run_dir, Path(script).name
    try:
        earlier = Path(read_lock(Path(folder, LOCK_FILE)).script).name
    except Problems:
        return []
    if earlier in ("", name):
        return []
    what = f"run_dir ({folder}) has the {LOCK_FILE} and {RECORD_FILE} of a launch of {earlier}; {name} replaces them"
    hint = f"set run_dir to a folder of its own for {name}"
    return [Problem(what, config.place("run_dir"), hint, severity="warning", id="record-replaced", about=("run_dir",))]


def lock_text(config: Config, script: str, sections: Mapping[str, Section]) -> str:
    """Return the text, without secrets, the texts of the configuration files, and defaults that no run reads."""
    unread = {p.name for p, value in config.items() if p.effect == "none" and value.source.kind == "default"}
    left_out = {"config_files", *secret_values(config), *unread}  # the files' texts
    values = {name: entry for name, entry in recorded_values(config).items() if name not in left_out}
    lines = [f"{HEAD}script: {json.dumps(script)}\n"]
    for name, section in {**sections, "values": values}.items():
        lines.append(f"{name}:\n" if section else f"{name}: {{}}\n")
        for key, value in section.items():  # as JSON without surrogate pairs
            text = json.dumps(value, ensure_ascii=False)
            escaped = TO_ESCAPE.sub(lambda character: f"\\u{ord(character[0]):04x}", text)
            lines.append(f"  {key}: {escaped}\n")
    return "".join(lines)


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """Read a file; raises Problems."""
    file = File(*read_text(os.fspath(path)))
    tree = file.mapping()
    found = tree.to_python()
    sections = {name: found.get(name) or {} for name in (*SECTIONS, "values")}
    values = sections.pop("values")
    if found.get("format") != 1 or not all(isinstance(entry, dict) and "value" in entry for entry in values.values()):
        what = f"this file is not a valid {LOCK_FILE}"
        hint = f"pass the {LOCK_FILE} of a run folder; if this file is a configuration, rename it"
        raise Problems(Problem(what, Place(file.name, 0, 0), hint, id="lock-unreadable"))
    places = {
        (section.key, entry.key): entry.place
        for section in tree.entries
        if isinstance(section.value, MappingNode)
        for entry in section.value.entries
    }
    return Lock(values, str(found.get("script", "")), sections, places)
