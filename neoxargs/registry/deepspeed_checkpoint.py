"""DeepSpeed's checkpoint files and disk access: sections `checkpoint`, `nebula` and `aio`."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class DeepspeedCheckpoint(Group, origin="DSC", effect="checkpoint", section="checkpoint"):
    """How DeepSpeed writes and reads checkpoint files."""

    tag_validation: Literal[
        "WARN", "IGNORE", "FAIL", "Warn", "Ignore", "Fail", "warn", "ignore", "fail"
    ] = param("WARN")  # fmt: skip
    """What to do when ranks disagree on a checkpoint's name."""

    load_universal: bool = param(False)
    """Whether the checkpoint to load is in DeepSpeed's universal format, which fits any layout."""

    use_node_local_storage: bool = param(False)
    """Save to the machines' local disks instead of a shared folder."""

    checkpoint_serialization: bool = param(True)
    """Write torch's zip format; false writes its older format, which the fast writer prefers."""


class ParallelWrite(Group, origin="DSC", effect="checkpoint", section="checkpoint.parallel_write"):
    """Which ranks write checkpoint files."""

    pipeline_stage: bool = param(False)
    """Let the data parallel ranks of a pipeline stage share the writing of its layers."""


class CheckpointWriter(Group, origin="DSC", effect="checkpoint", section="checkpoint.writer"):
    """DeepSpeed's fast checkpoint writer. The presence of the section turns it on; it needs the aio operator."""

    type: Literal["FAST", "PYTHON", "MOCK", "fast", "python", "mock"] = param(
        "FAST",
        refused={
            "MOCK": "it writes nothing, so the run would have no checkpoints",
            "FAST": "below ZeRO stage 3, it writes files whose names DeepSpeed's loader does not look for",
        },
    )
    """How files are written: FAST bypasses the page cache, PYTHON writes an ordinary file, MOCK writes nothing and is
    for measurements."""

    decoupled: bool = param(False)
    """Write in another process while training continues."""

    io_buffer_size: Count = param(64 * 1024**2)
    """Size, in bytes, of the pinned buffer from which files are written."""

    io_buffer_double: bool = param(True)
    """Divide the buffer into two halves: one is filled while the other is written."""

    show_statistics: bool = param(False)
    """Print how fast each file was written."""

    data_parallel: Literal["REPLICA", "SOCKET", "MACHINE", "replica", "socket", "machine"] | None = param(None)
    """Divide the writing of each file among data parallel ranks: all of them (`REPLICA`), one per CPU socket (`SOCKET`)
    or one per machine (`MACHINE`). None does not divide it."""

    io_multiplier: Count = param(
        1,
        effect="not built",
        refused="each rank would write only a part of its share, and the checkpoints would be incomplete",
    )
    """Divides the share of each writing rank by this number; for measurements."""


class Nebula(Group, origin="DSC", effect="checkpoint", section="nebula"):
    """Background checkpoints on Azure, through the torch_nebula package."""

    enabled: bool = param(False)
    """Write checkpoints through Nebula."""

    persistent_storage_path: str | None = param(None)
    """Folder that checkpoints are copied to."""

    persistent_time_interval: Count = param(100)
    """Seconds between two copies to `persistent_storage_path`."""

    num_of_version_in_retention: Count = param(2)
    """Number of checkpoints to keep."""

    enable_nebula_load: bool = param(True)
    """Also read checkpoints through Nebula; false reads files that torch wrote."""

    nebula_load_path: str | None = param(None)
    """Folder to read checkpoints from. Default: `persistent_storage_path`."""


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
