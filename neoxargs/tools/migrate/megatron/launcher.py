"""Flags of torchrun and DeepSpeed's launcher, which start Megatron-LM."""

from __future__ import annotations

import os
from collections.abc import Sequence

from neoxargs.problems import close_matches
from neoxargs.registry import normal
from neoxargs.tools.migrate.megatron.open_values import leave_placeholder
from neoxargs.tools.migrate.megatron.reading import Option, Reading, options_of
from neoxargs.tools.migrate.shell.values import Word

#: Flags of torchrun and DeepSpeed's launcher, and their parameters.
LAUNCHER_FLAGS = {
    "nproc_per_node": "num_gpus", "nnodes": "num_nodes", "master_addr": "master_addr", "master_port": "master_port",
    "num_gpus": "num_gpus", "num_nodes": "num_nodes", "hostfile": "hostfile", "include": "include",
    "exclude": "exclude",
}  # fmt: skip
#: Modules that are launchers, as in `python -m torch.distributed.run`.
_LAUNCHERS = ("torch.distributed", "deepspeed", "accelerate")


def read_launcher(reading: Reading, words: Sequence[Word]) -> list[Option]:
    """Read the flags before the program that is launched, and return them."""
    _warn_of_misspelt_flags(reading, words)
    options = [
        option._replace(values=option.values[:1])  # further words are the launched program, as in `--nnodes 2 python`
        for option in options_of(words).values()
        if normal(option.name) in LAUNCHER_FLAGS
    ]
    for option in options:
        _read_flag(reading, option)
    return options


def _warn_of_misspelt_flags(reading: Reading, words: Sequence[Word]) -> None:
    """Warn about flags of torchrun or DeepSpeed's launcher that are similar to one that is read."""
    starts = [i for i, word in enumerate(words) if _is_launcher(word.text)]
    for option in options_of(words[max(starts, default=len(words)) :]).values():
        similar = close_matches(normal(option.name), LAUNCHER_FLAGS, most=1, alike=0.85)
        if similar and similar[0] != normal(option.name):
            what = f"{option} is not a launcher flag and is left out"
            reading.warn("migrate-unknown-flag", what, option.place, f"did you mean --{similar[0]}?")


def _is_launcher(text: str) -> bool:
    return os.path.basename(text) in ("torchrun", "deepspeed") or text.startswith("torch.distributed")


def index_of_program(texts: Sequence[str]) -> int:
    """Return the index of the program that the launcher starts, `NAME.py` or the module after `-m`; -1 if none."""
    modules = [i + 1 for i, text in enumerate(texts[:-1]) if text == "-m" and not texts[i + 1].startswith(_LAUNCHERS)]
    return next((i for i, text in enumerate(texts) if text.endswith(".py") or i in modules), -1)


def note_hostfile(reading: Reading) -> None:
    """Add a comment that several machines need a hostfile, without which `deepy check` refuses them."""
    nodes, address = (reading.settings.get(name) for name in ("num_nodes", "master_addr"))
    if nodes is None or nodes.value < 2 or {"hostfile", "launcher"} & {*reading.settings, *reading.to_write}:
        return
    reading.to_do.append(f"TODO: set hostfile to a file that lists the {nodes.value} machines (num_nodes).")
    if address and address.value in ("localhost", "127.0.0.1"):
        del reading.settings["master_addr"]  # the other machines could not reach it


def _read_flag(reading: Reading, option: Option) -> None:
    name = LAUNCHER_FLAGS[normal(option.name)]
    if option.is_placeholder:
        leave_placeholder(reading, option, [name])
    elif option.is_known:
        reading.set_from(option, name)
