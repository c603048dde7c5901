"""The options of `deepy data --chat` that determine what is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neoxargs.data.encode import Recipe

#: How the trained parts of a conversation are found: turn by turn, by the template's generation marks, or everything;
#: or only an appended end token, at which a reward model gives its reward.
Masking = Literal["turns", "marks", "none", "reward"]
#: What happens to conversations that are longer than `max_length`.
Overlong = Literal["keep", "drop", "cut"]


@dataclass(frozen=True)
class ChatRecipe:
    """The options by which conversations become tokens and labels; with the conversations, they determine the files."""

    tokenizer: Recipe
    chat_template: str | None = None
    """A Jinja file, a name from the tokenizer's folder, or a built-in name; None for the tokenizer's own template."""
    json_keys: tuple[str, ...] = ()
    """The key of a line's messages, or the two keys of its question and its answer; empty to detect them."""
    masking: Masking = "turns"
    train_on: tuple[str, ...] = ("assistant",)
    """The roles whose turns are trained."""
    only_last: bool = False
    """Train only on the last turn, and only if its role is one of those trained on."""
    tool_calls: bool = True
    """Train on the turns that call tools."""
    max_length: int | None = None
    overlong: Overlong = "keep"
    reward_key: str | None = None
    """The key of a line's reward, for KTO; None writes no rewards."""
    binary_reward: bool = False
    """The reward is true or false, which stands for 1 or -1."""
