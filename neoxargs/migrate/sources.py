"""`deepy migrate SOURCE ...`: convert a configuration of another program, or of an older GPT-NeoX, to current YAML.

GPT-NeoX files are edited in place, and shown as a diff without `--write`. A DeepSpeed JSON or Megatron-LM script
becomes a new file, on stdout or in `-o FILE`.
"""

from __future__ import annotations

import os

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems, has_errors
from neoxargs.migrate.deepspeed.accelerate import Accelerate
from neoxargs.migrate.deepspeed.command import DeepSpeed
from neoxargs.migrate.megatron.command import Megatron
from neoxargs.migrate.neox.command import NeoX
from neoxargs.migrate.source import Options, Source
from neoxargs.resolve.yaml.read import read_texts

#: The format of files that no other one recognises.
FALLBACK = NeoX()
#: The formats that can be migrated. The first one that recognises a file reads it.
SOURCES: tuple[Source, ...] = (Accelerate(), FALLBACK, Megatron(), DeepSpeed())


def run_of_script(file: str) -> tuple[Text, list[Problem]]:
    """Return the run that a Megatron-LM script starts, as YAML, and what it leaves out. Raises Problems."""
    (text,) = read_texts([file])
    result = Megatron().converts([text], Options(environ=os.environ))
    left_open = (f"the script leaves this open: {line.removeprefix('TODO: ')}" for line in result.to_do)
    result.problems += [
        Problem(line, Place(file, 0, 0), severity="warning", id="script-not-whole") for line in left_open
    ]
    if has_errors(result.problems):
        raise Problems(result.problems)
    return Text(f"{file}, as YAML", result.text), result.problems


def source_of(text: Text) -> Source:
    """Return the source that recognises the file, by its name or its content."""
    return next((source for source in SOURCES if source.recognises(text)), FALLBACK)
