"""DeepSpeed's checkpoint files and disk access: sections `checkpoint`, `nebula` and `aio`."""

from __future__ import annotations

from neoxargs.registry import data_file
from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count

data_file.declare(__name__, "checkpoint", "checkpoint.parallel_write", "checkpoint.writer", "nebula")


class Aio(Group, origin="DSC", effect="engine", section="aio"):
    """Asynchronous reads and writes on NVMe disks, for `device: nvme` and the fast checkpoint writer. The program
    `ds_nvme_tune` finds good values."""

    block_size: Count = param(1024**2)
    """Size of a read or write request in bytes."""

    queue_depth: Count = param(8)
    """Number of read or write requests in flight."""

    intra_op_parallelism: Count = param(1, aliases="thread_count")
    """Number of threads among which DeepSpeed divides each transfer."""

    single_submit: bool = param(False)
    """Hand requests to the kernel one at a time instead of in one batch."""

    overlap_events: bool = param(True)
    """Submit new requests while waiting for earlier ones."""

    use_gds: bool = param(False)
    """Move data directly between disk and GPU (NVIDIA GPUDirect Storage)."""
