"""How far an estimate may be from what will be measured, and what no published measurement covers.

An error is a factor: the 80 % interval of a value is from value / error to value * error. bench/plan_intervals.py
estimates the factors from published runs; docs/plan.md shows how often the intervals hold on sources left out.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import has_attention
from neoxargs.facts.layout import Layout
from neoxargs.hosts.device_table import UNKNOWN_NAME, Device

#: Starts of the names of devices, sequence lengths and number of devices of the runs that the errors are estimated
#: from. V100s are not among them: of the four sources that used them, each differs from the others.
DEVICES, LENGTHS, MOST_DEVICES = ("A100", "H100", "H200"), (512, 65_536), 1024
#: What only makes the time less certain.
UNNAMED = "the unnamed device"
#: The share of an interval is 80 %: a tenth lies below it, and a tenth above.
TENTH = NormalDist().inv_cdf(0.9)


class Interval(NamedTuple):
    """What holds a measured value in 80 % of all cases."""

    low: float
    high: float

    @classmethod
    def of(cls, value: float, error: float) -> Interval:
        return cls(value / error, value * error)


def beyond(config: Config, device: Device, tensor_together: int, learned: bool = False) -> list[str]:
    """Return what of a run no source covers, as the ends of `because of`; the errors are larger then.

    tensor_together: the fewest ranks of a tensor parallel group on a host.
    learned: whether the rates of the device were learned from runs on it.
    """
    layout, (shortest, longest) = Layout.of(config), LENGTHS
    found = {
        UNNAMED: device.name == UNKNOWN_NAME,
        f"the {device.name}": not learned and not device.name.startswith((*DEVICES, UNKNOWN_NAME)),
        f"a sequence length of {config.shape.seq_length:,}": not learned
        and not shortest <= config.shape.seq_length <= longest,
        f"{layout.ranks:,} devices": not learned and layout.ranks > MOST_DEVICES,
        "tensor parallelism between hosts": layout.tensor > tensor_together,
        "offloading": {config.offload_optimizer.device, config.offload_param.device} != {"none"},
        "experts": config.moe.moe_num_experts > 1,
        "layers without attention": not all(has_attention(config, layer) for layer in range(config.shape.num_layers)),
    }
    return [phrase for phrase, applies in found.items() if applies]


def odds(value: float, limit: float, error: float) -> float:
    """Return the probability that a quantity estimated as `value` is at most `limit`."""
    if error == 1:
        return float(value <= limit)
    return NormalDist().cdf(TENTH * math.log(limit / value) / math.log(error))
