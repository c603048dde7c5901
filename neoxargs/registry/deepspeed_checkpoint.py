"""DeepSpeed's checkpoint files and disk access: sections `checkpoint`, `nebula` and `aio`."""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(__name__, "checkpoint", "checkpoint.parallel_write", "checkpoint.writer", "nebula", "aio")
