"""Keys of config.json, and demands, that several families share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.config.config import Config
from neoxargs.convert.huggingface.family import OMIT, Demand, Fixed, Setting, Values
from neoxargs.facts.attention import attention_width, head_dim
from neoxargs.facts.model import GATED, mlp_norm_options, mlp_width
from neoxargs.resolve.rules.synonyms import yaml_form


def same(key: str, ours: str, default: Any, old_keys: tuple[str, ...] = ()) -> Setting:
    """Return the setting of a key that has the same meaning and value as our parameter."""
    return Setting(key, (ours,), default, lambda config: config.get(ours), lambda value: {ours: value}, old_keys)


def optional(key: str, ours: str, default: Any, to_theirs: Callable[[Config], Any]) -> Setting:
    """Return the setting of a key that leaves our parameter to its default or its rule if it is null or 0."""
    return Setting(key, (ours,), default, to_theirs, lambda value: {ours: value} if value else {})


def rope_keys(keys: Values, **old_names: str) -> Values:
    """Return the entries of `rope_parameters` under their names before transformers 5.

    old_names: entry of `rope_parameters` -> its old key at the top level of config.json.
    """
    inner = keys["rope_parameters"]
    scaled = inner.get("rope_type", "default") != "default"
    scaling = {key: value for key, value in inner.items() if key not in old_names}
    old = {"rope_scaling": scaling} if scaled else {}
    with_type = {"rope_parameters": {"rope_type": "default", **inner}}
    return with_type | old | {name: inner[key] for key, name in old_names.items()}


#: `rope_type` -> the keys of its settings, which have the same names in `rope_scaling`.
ROPE_SETTINGS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    ),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
}  # fmt: skip


def rope_scaling(section: str, *types: str, old: str = "rope_scaling") -> tuple[Setting, ...]:
    """Return the settings of `rope_scaling` in this section of config.json. types: those that the family has."""

    def row(name: str) -> Setting:
        parameter = f"rope_scaling.{name}"

        def to_theirs(config: Config) -> Any:
            value = config.get(parameter)
            # transformers needs the key, where ours defaults to the model's own context.
            if name == "original_max_position_embeddings" and value is None:
                value = config.shape.max_position_embeddings
            is_read = name in ROPE_SETTINGS.get(config.rope_scaling.rope_type, ())
            return value if is_read and value is not None else OMIT

        return Setting(
            f"{section}.{name}", (parameter,), None, to_theirs,
            lambda value: {} if value is None else {parameter: value}, (f"{old}.{name}",),
        )  # fmt: skip

    kind = Setting(
        f"{section}.rope_type", ("rope_scaling.rope_type",), "default",
        lambda config: config.rope_scaling.rope_type,
        lambda value: {"rope_scaling.rope_type": value} if value in ("default", *types) else None,
        (f"{old}.rope_type",),
    )  # fmt: skip
    names = dict.fromkeys(name for kind in types for name in ROPE_SETTINGS[kind])
    return kind, *map(row, names)


def longest_positions(default: int) -> Setting:
    """Return the setting of `max_position_embeddings`, from which `dynamic` scales in transformers."""

    def to_theirs(config: Config) -> int:
        original = config.rope_scaling.original_max_position_embeddings
        is_dynamic = config.rope_scaling.rope_type == "dynamic"
        return original if is_dynamic and original else config.shape.max_position_embeddings

    name = "max_position_embeddings"
    return Setting(name, (name,), default, to_theirs, lambda value: {name: value})


def rotary_base(key: str, old_keys: tuple[str, ...] = ()) -> Setting:
    """Return the setting of the rotary base: a float in transformers, an integer in `rotary_emb_base`."""

    def to_ours(value: float) -> Values | None:
        return {"rotary_emb_base": int(value)} if value == int(value) else None

    return Setting(
        key, ("rotary_emb_base",), 10000.0, lambda config: float(config.embedding.rotary_emb_base), to_ours, old_keys
    )


def mlp_width_setting(key: str, default: Any, gated: bool) -> Setting:
    """Return the setting of the feed-forward width. Ours counts all three matrices of a gated layer, theirs one."""
    return Setting(
        key, ("intermediate_size",), default, lambda config: mlp_width(config.shape, config.mlp),
        lambda value: {"intermediate_size": value * 3 if gated else value} if value else {},
    )  # fmt: skip


def kv_heads(default: int | None) -> Setting:
    """Return the setting of the number of key and value heads; None: as many as query heads."""
    return optional("num_key_value_heads", "num_kv_heads", default, lambda config: config.shape.num_kv_heads)


def head_width(default: int | None) -> Setting:
    """Return the setting of the heads' width; None: hidden_size / num_attention_heads."""
    return optional("head_dim", "head_dim", default, lambda config: head_dim(config.shape))


def weight_tying(default: bool) -> Setting:
    """Return the setting of weight tying, the negation of `no_weight_tying`."""
    return Setting(
        "tie_word_embeddings", ("no_weight_tying",), default,
        lambda config: not config.embedding.no_weight_tying, lambda value: {"no_weight_tying": not value},
    )  # fmt: skip


#: Their activation -> ours, for feed-forward layers with and without a gate. If several are equivalent, the first is
#: exported.
GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "relu": "reglu",
    "sigmoid": "glu",
    "linear": "bilinear",
    "swish": "swiglu",
}
PLAIN_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "silu", "mish": "mish", "swish": "swish"}
#: Their names of the tanh approximation of GELU, which ours selects with `bias_gelu_fusion`.
TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")


def activation(key: str, default: str, gated: bool) -> Setting:
    """Return the setting of the feed-forward activation. gated: whether all models of the family have a gate."""
    names = GATED_ACTIVATIONS if gated else PLAIN_ACTIVATIONS

    def to_theirs(config: Config) -> str:
        te = config.transformer_engine.te_layernorm_mlp
        if config.mlp.activation == "gelu" and (config.fusion.bias_gelu_fusion or te):
            return TANH_GELUS[0]
        if config.mlp.activation == "geglu" and te:
            return "gelu_pytorch_tanh"
        return next(theirs for theirs, ours in names.items() if ours == config.mlp.activation)

    def to_ours(value: str) -> Values | None:
        if value in TANH_GELUS and not gated:
            return {"activation": "gelu", "bias_gelu_fusion": True}
        return {"activation": names[value]} if value in names else None

    return Setting(key, ("activation",), default, to_theirs, to_ours)


def only(ours: str, *values: Any) -> Demand:
    """Return the demand that a parameter has one of these values."""
    supported = f"{ours}: {listed([yaml_form(value) for value in values])}"
    return Demand(ours, lambda config: config.get(ours) in values, supported)


def requires(constants: Values) -> tuple[Demand, ...]:
    """Return the demands that parameters have the values which they have in every model of a family."""
    return tuple(only(name, value) for name, value in constants.items())


EPSILON_UNDER_ROOT = Demand(
    "rms_norm_epsilon_under_root",
    lambda config: config.get("rms_norm_epsilon_under_root") is not False,
    "rms_norm_epsilon_under_root: true",
)
FULL_ATTENTION = Demand(
    "attention_config",
    lambda config: set(config.get("attention_config") or ()) <= {"global", "flash"},
    "full causal attention in every layer",
)


def _has_one_epsilon(config: Config) -> bool:
    name = "rms_norm_epsilon" if config.norm.norm == "rmsnorm" else "layernorm_epsilon"
    return bool(getattr(mlp_norm_options(config), name) == getattr(config.norm, name))


#: No architecture has another epsilon before the feed-forward layer than elsewhere.
ONE_EPSILON = Demand(
    "te_layernorm_mlp", _has_one_epsilon, "the same epsilon in all norms; te_layernorm_mlp uses a fixed one"
)
NATURAL_HEADS = Demand(
    "head_dim",
    lambda config: attention_width(config.shape) == config.shape.hidden_size,
    "head_dim: hidden_size / num_attention_heads",
)
NO_GROUPED_QUERIES = Demand(
    "num_kv_heads",
    lambda config: config.shape.num_kv_heads == config.shape.num_attention_heads,
    "num_kv_heads equal to num_attention_heads",
)
ALWAYS_GATED = only("activation", *GATED)
#: What the families before LLaMA demand.
UNGATED_DECODER = (
    only("apply_residual_connection_post_layernorm", False), NATURAL_HEADS,
    NO_GROUPED_QUERIES, only("activation", *PLAIN_ACTIVATIONS), FULL_ATTENTION, ONE_EPSILON,
)  # fmt: skip
#: Keys that every family refuses unless they have these values.
COMMON_FIXED = (Fixed("quantization_config", (None,)), Fixed("auto_map", (None,)))
#: For families without scaled positions.
UNSCALED = Fixed("rope_parameters.rope_type", ("default",))
SCALED_POSITIONS = only("rope_scaling.rope_type", "default", *ROPE_SETTINGS)
