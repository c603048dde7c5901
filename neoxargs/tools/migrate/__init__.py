"""`deepy migrate SOURCE ...`: convert a configuration of another program, or of an older GPT-NeoX, to current YAML.

GPT-NeoX files are edited in place, and shown as a diff without `--write`. A DeepSpeed JSON or Megatron-LM script
becomes a new file, on stdout or in `-o FILE`.
"""

from __future__ import annotations

from neoxargs.resolve import Text
from neoxargs.tools.migrate.deepspeed import DeepSpeed
from neoxargs.tools.migrate.megatron import Megatron
from neoxargs.tools.migrate.neox import NeoX
from neoxargs.tools.migrate.source import Source

#: The formats that can be migrated. The first one that recognises a file reads it; the first of all is the fallback.
SOURCES: tuple[Source, ...] = (NeoX(), Megatron(), DeepSpeed())


def source_of(text: Text) -> Source:
    """Return the source that recognises the file, by its name or its content."""
    return next((source for source in SOURCES if source.recognises(text)), SOURCES[0])
