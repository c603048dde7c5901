"""`pdsh`, by which DeepSpeed's runner starts its launcher on every host at once; DeepSpeed's default."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.launch.launchers.deepspeed import THROUGH_RUNNER

#: DeepSpeed 0.19.6 writes the line for the remote shells without quoting the paths in it.
PDSH = replace(THROUGH_RUNNER, name="pdsh", program="pdsh", by_ssh=True, quotes=False, one_word=True)
