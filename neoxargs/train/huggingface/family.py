"""The table of a model family: its keys of config.json, the parameters it supports, names and forms of its weights.

"Ours" is this package's name or value, "theirs" is that of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neoxargs.problems import Problem, listed
from neoxargs.registry import ABSENT, architectures, model, moe, mup, regularization
from neoxargs.registry.model import Fusion, Init
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.synonyms import yaml_form
from neoxargs.sizes.model import GATED, mlp_width
from neoxargs.train.huggingface.forms import SAME, Form

Values = Mapping[str, Any]


class Setting(NamedTuple):
    """A key of config.json and the parameters it corresponds to."""

    key: str
    """A dot separates a section from its key."""
    ours: tuple[str, ...]
    default: Any
    """The value that transformers assumes if the key is missing."""
    to_theirs: Callable[[Config], Any]
    to_ours: Callable[[Any], Values | None]
    """Maps the key's value to parameters; None if it has no equivalent."""
    old_keys: tuple[str, ...] = ()
    """Names of the key in earlier versions of transformers."""


class Demand(NamedTuple):
    """A parameter of ours of which the family supports only some values."""

    ours: str
    fits: Callable[[Config], bool]
    supported: str
    """The values that the family supports, as the message about any other value names them."""


class Fixed(NamedTuple):
    """A key of config.json of which this trainer supports only some values. The first is transformers' default."""

    key: str
    values: tuple[Any, ...]


class Weights(NamedTuple):
    """A module of ours and the corresponding modules of theirs; applies to the weight and, if it exists, the bias."""

    ours: str
    """`{}` stands for the number of the layer."""
    theirs: tuple[str, ...]
    form: Form = SAME


class Piece(NamedTuple):
    """A weight of ours and the tensors of theirs with the same content."""

    ours: str
    theirs: tuple[str, ...]
    form: Form


@dataclass(frozen=True)
class Family:
    """The models of one architecture."""

    architecture: str
    """The class in transformers, as `architectures` in config.json names it."""
    model_type: str
    prefix: str
    """Prefix of the names of all weights but the output layer's."""
    settings: tuple[Setting, ...]
    demands: tuple[Demand, ...]
    fixed: tuple[Fixed, ...]
    constants: Values
    """Parameters that have the same value in every model of the family."""
    weights: tuple[Weights, ...]
    compatibility_keys: Callable[[Values], Values] = lambda keys: {}
    """Returns additional keys for earlier versions of transformers, given those of `config_keys`."""
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias")
    """Endings of the names of tensors that are buffers, not weights."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of modules in some versions of transformers -> those in `weights`."""

    def obstacles(self, config: Config) -> Iterator[Problem]:
        """Yield a problem for every parameter that prevents exporting this model as one of the family."""
        for demand in self.demands:
            if not demand.fits(config):
                yield self._obstacle(config, demand.ours, f"which requires {demand.supported}")
        known = {demand.ours for demand in self.demands} | {name for row in self.settings for name in row.ours}
        for parameter, value in config.items():
            group, name = parameter.group, parameter.name
            handled = name in known or name in HARMLESS or group in (Init, Fusion)
            changes_model = parameter.effect in ("model", "not built") and group.__module__ in MODEL_MODULES
            if changes_model and not handled and value.value not in (parameter.default, ABSENT, None):
                yield self._obstacle(config, name, "which has no equivalent parameter")

    def _obstacle(self, config: Config, name: str, why: str) -> Problem:
        value = config.get(name)
        text = listed(map(str, dict.fromkeys(value)), "and") if isinstance(value, list) else yaml_form(value)
        what = f"{name} ({text}) cannot be exported to {self.architecture}, {why}"
        return Problem(what, config.place(name), id="huggingface-not-expressible", about=(name,))

    def config_keys(self, config: Config) -> dict[str, Any]:
        """Return the keys of config.json that describe the model."""
        keys: dict[str, Any] = {}
        for row in self.settings:
            *path, key = row.key.split(".")
            (keys.setdefault(path[0], {}) if path else keys)[key] = row.to_theirs(config)
        return {**keys, **self.compatibility_keys(keys)}

    def modules(self, layers: int, tied: bool) -> Iterator[Weights]:
        """Yield every module of a model, in the model's order. tied: whether the embedding is the output layer."""
        inner = [row for row in self.weights if "{}" in row.ours]
        first = [row for row in self.weights if row.ours.startswith(("embedding", "positions"))]
        last = [row for row in self.weights if row not in inner and row not in first]
        yield from first
        for layer in range(layers):
            for ours, theirs, form in inner:
                yield Weights(ours.format(layer), tuple(name.format(layer) for name in theirs), form)
        yield from (row for row in last if not (tied and row.ours == "output"))


#: Modules of the registry that declare the model's parameters.
MODEL_MODULES = tuple(subject.__name__ for subject in (model, architectures, moe, mup, regularization))
#: Parameters that need no row in a family: they do not change the exported model, or only together with another
#: parameter, for which every family has a row.
HARMLESS = (
    "seq_length", "max_position_embeddings", "expansion_factor", "mlp_multiple_of", "num_unique_layers",
    "param_sharing_style", "gpt_j_tied", "rotary_pct", "rotary_emb_base", "rpe_num_buckets", "rpe_max_distance",
    "rpe_causal", "opt_pos_emb_offset", "make_vocab_size_divisible_by", "padded_vocab_size", "softmax_over_padding",
    "layernorm_epsilon", "rms_norm_epsilon", "rms_norm_epsilon_under_root", "scalenorm_epsilon", "use_bias_in_norms",
    "sparsity", "sparsity_config", "apply_query_key_layer_scaling", "attention_softmax_in_fp32", "attention_dropout",
    "hidden_dropout", "weight_decay",
)  # fmt: skip


def same(key: str, ours: str, default: Any, old_keys: tuple[str, ...] = ()) -> Setting:
    """Return the setting of a key that has the same meaning and value as our parameter."""
    return Setting(key, (ours,), default, lambda config: config.get(ours), lambda value: {ours: value}, old_keys)


def rope_keys(keys: Values, **old_names: str) -> Values:
    """Return `rope_parameters` with its type, and its entries under their names before transformers 5.

    old_names: entry of `rope_parameters` -> its old key at the top level of config.json.
    """
    inner = keys["rope_parameters"]
    with_type = {"rope_parameters": {**inner, "rope_type": "default"}}
    return with_type | {name: inner[key] for key, name in old_names.items()}


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
        if config.mlp.activation == "gelu" and config.fusion.bias_gelu_fusion:
            return TANH_GELUS[0]
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
NO_GROUPED_QUERIES = Demand(
    "num_kv_heads",
    lambda config: config.shape.num_kv_heads == config.shape.num_attention_heads,
    "num_kv_heads equal to num_attention_heads",
)
UNGATED, ALWAYS_GATED = only("activation", *PLAIN_ACTIVATIONS), only("activation", *GATED)
#: Keys that every family refuses unless they have these values.
COMMON_FIXED = (
    Fixed("quantization_config", (None,)), Fixed("auto_map", (None,)), Fixed("rope_parameters.rope_type", ("default",)),
)  # fmt: skip
