"""A plugin as a fork would write it: some of its keys, a position embedding and a way to start ranks."""

from __future__ import annotations

from typing import Literal

from neoxargs.plugin import Count, Group, Launcher, Start, add_launcher, choices, param


class Hyena(Group, origin="NeoX", effect="model"):
    """Long convolutions in place of attention."""

    hyena_filter_order: Count = param(64, aliases="hyena_filter_width")
    """Width of the network that makes the filters."""

    hyena_mr_len: Count | None = param(None)
    """Length of the medium filter; none means that of the sequence."""

    hyena_filter_cls: Literal["implicit_modal", "explicit"] = param("implicit_modal")
    """How a filter is parametrised."""


class HyenaEngine(Group, origin="DSC", effect="engine", section="hyena_cache"):
    """A section that the fork's own DeepSpeed reads."""

    enabled: bool = param(False)
    """Keep the transformed filters between steps."""


choices("pos_emb", "xpos")


def here(start: Start) -> list[str]:
    """One rank, without any launcher between."""
    names = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": start.ranks, "MASTER_ADDR": start.master_addr,
             "MASTER_PORT": start.master_port}  # fmt: skip
    return ["env", *(f"{name}={value}" for name, value in names.items()), *start.arguments, *start.words]


add_launcher(Launcher("here", command=here))
