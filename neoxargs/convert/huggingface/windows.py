"""Sliding windows of some or all layers: `sliding_window` and `layer_types` of config.json.

transformers counts the token itself as part of the window, `sliding_window_width` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neoxargs.config.config import Config
from neoxargs.convert.huggingface.family import OMIT, Demand, Setting, Values
from neoxargs.convert.huggingface.settings import only
from neoxargs.facts.attention import layer_window

#: The names of layers with and without a window in `layer_types`.
SLIDING, FULL = "sliding_attention", "full_attention"


def sliding_window(default: int | None) -> Setting:
    """Return the setting of a window that all layers have."""
    return Setting(
        "sliding_window", ("sliding_window_width",), default,
        lambda config: config.attention.sliding_window_width and config.attention.sliding_window_width + 1,
        # None: ours counts the tokens before, of which there must be one, so a window of one token has no equivalent.
        lambda value: {"sliding_window_width": value - 1} if value and value > 1 else None if value else {},
    )  # fmt: skip


def exported(key: str, to_theirs: Callable[[Config], Any], *ours: str) -> Setting:
    """Return the setting of a key that is only written; when it is read, `from_keys` looks at it."""
    return Setting(key, ours or WINDOW, None, to_theirs, lambda value: {})


WINDOW = ("sliding_window_width", "window_attn_skip_freq")
NO_WINDOW = only("sliding_window_width", None)
EVERY_WINDOW = Demand(
    "window_attn_skip_freq",
    lambda config: config.attention.window_attn_skip_freq is None or config.attention.sliding_window_width is None,
    "the same window in every layer",
)
#: The keys of a window that some layers have. `windows` reads them.
LAYER_WINDOWS = (
    exported(
        "layer_types",
        lambda config: [
            SLIDING if layer_window(config.attention, layer) else FULL for layer in range(config.shape.num_layers)
        ],
    ),
    exported(
        "sliding_window",
        lambda config: OMIT if (width := config.attention.sliding_window_width) is None else width + 1,
    ),
)
#: The key of families that ignore these keys unless it is true.
USES_WINDOW = exported("use_sliding_window", lambda config: config.attention.sliding_window_width is not None)


def windows(width: int | None, types: Sequence[str]) -> Values:
    """Return the parameters of a window of `width` tokens in the layers whose type is SLIDING."""
    has_window = [kind == SLIDING for kind in types]
    if not width or not any(has_window):
        return {}
    if width < 2 or not set(types) <= {SLIDING, FULL}:
        raise ValueError(f"sliding_window ({width}) with layer_types {sorted(set(types))}")
    return {"sliding_window_width": width - 1} | (
        {} if all(has_window) else {"window_attn_skip_freq": _window_skips(has_window)}
    )


def _window_skips(has_window: Sequence[bool]) -> int | list[int]:
    """Return N if each N-th layer has no window and all others have one, else a list with a number for each layer."""
    # The first layer without a window decides what N can be.
    first = has_window.index(False) + 1
    regular = [bool((layer + 1) % first) for layer in range(len(has_window))] == list(has_window)
    return first if regular and first > 1 else [int(one) for one in has_window]
