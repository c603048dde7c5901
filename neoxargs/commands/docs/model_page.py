"""Update docs/model.md: a table of the mechanisms of each family of models in configs/models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from neoxargs.config.config import Config
from neoxargs.facts.attention import has_qkv_bias, mechanisms
from neoxargs.facts.layer_kinds import block_name
from neoxargs.facts.model import head_norms, layers_with_experts
from neoxargs.resolve import resolve

TABLE = re.compile(r"(?<=<!-- families -->\n).*?(?=<!-- end of families -->)", re.S)
#: The end of a configuration's name that says how large the model is: -1.4b, -8x7b, -xl.
SIZE = re.compile(r"(-nemo)?(-\d[\dx.]*[bm]|-small|-medium|-large|-xl|-mini)+$")


def page(root: Path) -> str:
    """Return the up-to-date text of the page. root: the repository."""
    current = (root / "docs" / "model.md").read_text(encoding="utf-8")
    return TABLE.sub(lambda _: _table(root / "configs" / "models"), current)


def _table(folder: Path) -> str:
    families: dict[str, list[Config]] = {}
    for file in sorted(folder.glob("*.yml")):
        families.setdefault(SIZE.sub("", file.stem), []).append(resolve([file], gpus=1))
    lines = [f"| family | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for family, configs in families.items():
        # Sizes of a family may differ in a mechanism.
        cells = ("; or ".join(dict.fromkeys(cell(config) for config in configs)) for cell in COLUMNS.values())
        lines.append(f"| `{family}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _positions(config: Config) -> str:
    embedding, scaling = config.embedding, config.rope_scaling.rope_type
    if embedding.pos_emb != "rotary":
        return embedding.pos_emb
    part = f" in {embedding.rotary_pct:.0%} of the head" if embedding.rotary_pct < 1 else ""
    return "rotary" + part + (f", {scaling}" if scaling != "default" else "")


def _norms(config: Config) -> str:
    weight = ", 1 + weight" if config.norm.apply_layernorm_1p else ""
    return f"{config.norm.norm} {config.norm.norm_placement}{weight}"


def _attention(config: Config) -> str:
    shape, attention, normed = config.shape, config.attention, head_norms(config.norm)
    scope = "all heads" if normed == "all_heads" else "each head"
    biases = "biases" if attention.use_bias_in_attn_linear else "query, key and value biases"
    grouped = shape.num_kv_heads < shape.num_attention_heads
    named = {
        "grouped-query" if grouped else "multi-head": True,
        biases: has_qkv_bias(attention),
        f"query and key norms of {scope}": bool(normed),
    }
    return ", ".join([*(name for name, is_there in named.items() if is_there), *mechanisms(config)])


def _feed_forward(config: Config) -> str:
    experts = f"{config.moe.moe_num_experts} experts, " if layers_with_experts(config) else ""
    return experts + config.mlp.activation + (", biases" if config.mlp.use_bias_in_mlp and not experts else "")


def _output(config: Config) -> str:
    bound = ", bounded logits" if config.embedding.final_logit_softcapping else ""
    return ("own" if config.embedding.no_weight_tying else "tied") + bound


#: Column -> its cell for a configuration.
COLUMNS: Mapping[str, Callable[[Config], str]] = {
    "block": lambda config: f"`{block_name(config, 0)}`",
    "norms": _norms,
    "positions": _positions,
    "attention": _attention,
    "feed-forward": _feed_forward,
    "output weight": _output,
}
