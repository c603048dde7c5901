"""`pdsh`, with which DeepSpeed's runner starts its launcher on all hosts in parallel; DeepSpeed's default."""

from __future__ import annotations

from neoxargs.base.record import replace
from neoxargs.hosts.launchers.deepspeed import THROUGH_RUNNER

#: DeepSpeed 0.19.6 does not quote the paths in the command for the remote shells.
PDSH = replace(THROUGH_RUNNER, name="pdsh", program="pdsh", by_ssh=True, quotes=False, one_word=True)
