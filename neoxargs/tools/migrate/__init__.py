"""`deepy migrate SOURCE ...`: a configuration from elsewhere, or from another year, as today's YAML.

GPT-NeoX's files are edited where they stand, and shown as a diff until `--write` is said. What comes from DeepSpeed
or Megatron-LM becomes a new file, on stdout or in `-o FILE`.
"""

from __future__ import annotations

from neoxargs.resolve import Text
from neoxargs.tools.migrate.deepspeed import DeepSpeed
from neoxargs.tools.migrate.megatron import Megatron
from neoxargs.tools.migrate.neox import NeoX
from neoxargs.tools.migrate.source import Source

#: What can be migrated. The first that recognises a file gets it; what none recognises is taken for GPT-NeoX's.
SOURCES: tuple[Source, ...] = (NeoX(), Megatron(), DeepSpeed())


def source_of(text: Text) -> Source:
    """The source that recognises the file: by its name, or else by what stands in it."""
    return next((source for source in SOURCES if source.recognises(text)), SOURCES[0])
