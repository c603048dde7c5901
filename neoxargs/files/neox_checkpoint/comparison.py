"""Compare the model in a GPT-NeoX checkpoint with a configuration: by its tensors, and by the saved configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.config.config import Config
from neoxargs.facts.model import GATED, mlp_width
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.files.neox_checkpoint.weights import NORM_PARAMETERS, Found, Located, plain_norm
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve import complete
from neoxargs.resolve.compare.apart import SHOWN_BY_SHAPES, names
from neoxargs.resolve.compare.continuing import level_of
from neoxargs.resolve.compare.differences import differences, same_function
from neoxargs.resolve.rules.synonyms import yaml_form


def mismatches(config: Config, contents: Contents, located: Located) -> Iterator[Problem]:
    """Yield a problem for every parameter whose value in the checkpoint differs from that in the configuration."""
    for name, theirs, ours in _differences(config, contents, located):
        if theirs != ours:
            what = f"load ({contents.folder}): the checkpoint has {name} {yaml_form(theirs)}"
            what += f", but this configuration has {yaml_form(ours)}"
            hint = f"set {name}: {yaml_form(theirs)}, or load a different checkpoint"
            place = config.place(name) or config.place("load")
            yield Problem(what, place, hint, id="checkpoint-other-model", about=("load", name))


def _differences(config: Config, contents: Contents, located: Located) -> Iterator[tuple[str, Any, Any]]:
    """Yield each parameter that the files show, with its values in the checkpoint and in the configuration."""
    weights, shape, embedding = located.weights, config.shape, config.embedding
    words = weights.get("embedding.word_embeddings.weight")
    if words is None or not located.depth:
        return  # the message about missing weights says more
    hidden = words.shape()[1]
    yield "num_layers", located.depth, shape.num_layers
    yield "hidden_size", hidden, shape.hidden_size
    heads = contents.arguments.get("num_attention_heads", shape.num_attention_heads)
    yield "num_attention_heads", heads, shape.num_attention_heads
    if shape.head_dim is not None:
        yield "head_dim", hidden // heads, shape.head_dim
    yield "no_weight_tying", "output.weight" in weights, embedding.no_weight_tying
    if ("positions.table" in weights) != (embedding.pos_emb == "learned"):
        # Other kinds of positions store no table; rotary is named as the most likely one.
        yield "pos_emb", "learned" if "positions.table" in weights else "rotary", embedding.pos_emb
    elif "positions.table" in weights:
        rows = weights["positions.table"].shape()[0] - embedding.opt_pos_emb_offset
        yield "max_position_embeddings", rows, shape.max_position_embeddings
    if hidden == shape.hidden_size and heads == shape.num_attention_heads:
        rows = weights["layers.0.attention.query_key_value.weight"].shape()[0]
        # rows = hidden + 2 x kv_heads x (hidden / heads)
        kv_heads = (rows - hidden) * heads // (2 * hidden)
        yield "num_kv_heads", kv_heads, shape.num_kv_heads
    yield from _of_norms(config, weights)
    yield from _of_mlp(config, weights)
    for name, module in (("use_bias_in_attn_linear", "attention.query_key_value"), ("use_bias_in_mlp", MLP)):
        yield name, f"layers.0.{module}.bias" in weights, config.get(name)


MLP = "mlp.dense_h_to_4h"


def _of_norms(config: Config, weights: dict[str, Found]) -> Iterator[tuple[str, Any, Any]]:
    found = [item for name, item in weights.items() if name.startswith("final_norm.")]
    kinds = {item.names[0].rpartition(".")[2] for item in found}
    norm = next((norm for norm, names in NORM_PARAMETERS.items() if kinds & set(names)), "non_parametric_layernorm")
    if kinds == {"weight"} and any(plain_norm(name) != name for item in found for name in item.names):
        norm = "rmsnorm"  # Transformer Engine's, of which layernorm has a bias
    yield "norm", norm, config.norm.norm
    if config.norm.norm == "layernorm" == norm:
        yield "use_bias_in_norms", "bias" in kinds, config.norm.use_bias_in_norms


def _of_mlp(config: Config, weights: dict[str, Found]) -> Iterator[tuple[str, Any, Any]]:
    first, second = weights.get(f"layers.0.{MLP}.weight"), weights.get("layers.0.mlp.dense_4h_to_h.weight")
    if first is None or second is None:
        return
    yield "te_layernorm_mlp", first.cut == "gate first", config.transformer_engine.te_layernorm_mlp
    width, gated = second.shape()[1], first.shape()[0] == 2 * second.shape()[1]
    if gated != (config.mlp.activation in GATED):
        yield "activation", "swiglu" if gated else "gelu", config.mlp.activation
    elif width != mlp_width(config.shape, config.mlp):
        # GPT-NeoX's intermediate_size of a gated MLP is the width of its three matrices together.
        together = gated and not config.shape.exact_mlp_width
        yield "intermediate_size", width * 3 if together else width, config.shape.intermediate_size


def other_model(config: Config, contents: Contents) -> Iterator[Problem]:
    """Yield a warning that lists the model's parameters whose values in the saved configuration differ.

    The shapes of tensors do not show a rotary base, an activation or an epsilon; GPT-NeoX's files do. Whether attention
    and MLP are parallel decides how the biases of several ranks are joined, so that is an error.
    """
    saved = _saved_configuration(contents, config.dialect.name if config.dialect else None)
    if saved is None:
        return
    function = {p.name for p in REGISTRY.parameters.values() if level_of(p) in ("weights", "adapted")}
    apart = (REGISTRY.parameters.keys() - function) | names(SHOWN_BY_SHAPES)
    found = {
        each.name: [yaml_form(value) for value in each.values]
        for each in differences(saved, config, apart, same_function)
        if any(each.is_read) and config.get(each.name) is not ABSENT
    }
    if "gpt_j_residual" in found and contents.files.tensor_ranks > 1:
        value, ours = found["gpt_j_residual"]
        what = f"load ({contents.folder}): the checkpoint was written with gpt_j_residual {value}"
        what += f", but this configuration has {ours}"
        hint, about = f"set gpt_j_residual: {value}", ("load", "gpt_j_residual")
        yield Problem(what, config.place(about[1]), hint, id="checkpoint-other-model", about=about)
        return
    if found:
        pairs = [f"{name} (saved {theirs}, here {ours})" for name, (theirs, ours) in found.items()]
        what = f"load ({contents.folder}): the model differs from the configuration saved with the checkpoint: "
        hint = f"compare with {listed(map(str, contents.configurations), 'and')}"
        places = [place for name in found if (place := config.place(name))]
        first, *others = [*places, config.place("load")]
        yield Problem(
            what + listed(pairs, "and"), first, hint, also=tuple(place for place in others if place),
            severity="warning", id="checkpoint-other-model", about=("load", *found),
        )  # fmt: skip


def _saved_configuration(contents: Contents, dialect: str | None) -> Config | None:
    """Return the resolved configuration of the run that wrote the checkpoint; None if it is missing or invalid."""
    if not contents.configurations:
        return None
    try:
        # GPT-NeoX's files name no dialect, and this run's is the best guess: different defaults would look like
        # differences.
        return complete(contents.draft.with_values({"dialect": dialect} if dialect else {}), contents.files.ranks)
    except Problems:
        return None
