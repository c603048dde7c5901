"""`deepy migrate SOURCE ...`: convert a configuration of another program, or of an older GPT-NeoX, to current YAML.

GPT-NeoX files are edited in place, and shown as a diff without `--write`. A DeepSpeed JSON or Megatron-LM script
becomes a new file, on stdout or in `-o FILE`.
"""

from __future__ import annotations

from neoxargs.base.files import Text
from neoxargs.migrate.deepspeed.accelerate import Accelerate
from neoxargs.migrate.deepspeed.command import DeepSpeed
from neoxargs.migrate.megatron.command import Megatron
from neoxargs.migrate.neox.command import NeoX
from neoxargs.migrate.source import Source

#: The format of files that no other one recognises.
FALLBACK = NeoX()
#: The formats that can be migrated. The first one that recognises a file reads it.
SOURCES: tuple[Source, ...] = (Accelerate(), FALLBACK, Megatron(), DeepSpeed())


def source_of(text: Text) -> Source:
    """Return the source that recognises the file, by its name or its content."""
    return next((source for source in SOURCES if source.recognises(text)), FALLBACK)
