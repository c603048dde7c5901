"""What a table of a family says: keys of config.json, parameters that it cannot express, names and forms of weights."""

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
    """A key of config.json that says what parameters of ours say."""

    key: str
    ours: tuple[str, ...]
    default: Any
    """What transformers takes where the key is missing."""
    out: Callable[[Config], Any]
    back: Callable[[Any], Values | None]
    """None where no values of ours say it."""
    also: tuple[str, ...] = ()
    """What the key was called before."""


class Demand(NamedTuple):
    """A parameter of ours for which the family has only some values."""

    ours: str
    fits: Callable[[Config], bool]
    supported: str
    """The values that the family supports, as the message about any other value names them."""


class Fixed(NamedTuple):
    """A key of config.json for which we have only some values; the first is what transformers takes without it."""

    key: str
    values: tuple[Any, ...]


class Weights(NamedTuple):
    """One of our modules and theirs; holds for its weight and, where there is one, its bias."""

    ours: str
    """`{}` is the layer's number."""
    theirs: tuple[str, ...]
    form: Form = SAME


class Piece(NamedTuple):
    """A weight of ours, and the tensors of theirs that are the same."""

    ours: str
    theirs: tuple[str, ...]
    form: Form


@dataclass(frozen=True)
class Family:
    """Models of one architecture."""

    architecture: str
    model_type: str
    prefix: str
    """Of every weight's name but the output layer's."""
    settings: tuple[Setting, ...]
    demands: tuple[Demand, ...]
    fixed: tuple[Fixed, ...]
    always: Values
    """What every model of it is here."""
    weights: tuple[Weights, ...]
    older: Callable[[Values], Values] = lambda told: {}
    """Keys that earlier versions of transformers read in place of those written."""
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias")
    """How names of tensors end that are no weights."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of modules, as some versions of transformers write them -> those in `weights`."""

    def obstacles(self, config: Config) -> Iterator[Problem]:
        """Every parameter that stands in the way of writing this model as one of the family."""
        for demand in self.demands:
            if not demand.fits(config):
                yield self._obstacle(config, demand.ours, f"which supports only {demand.supported}")
        known = {demand.ours for demand in self.demands} | {name for row in self.settings for name in row.ours}
        for parameter, value in config.items():
            group, name = parameter.group, parameter.name
            apart = name in known or name in ELSEWHERE or group in (Init, Fusion)
            read = parameter.effect in ("model", "not built") and group.__module__ in MODEL
            if read and not apart and value.value not in (parameter.default, ABSENT, None):
                yield self._obstacle(config, name, "which has no equivalent")

    def _obstacle(self, config: Config, name: str, why: str) -> Problem:
        value = config.get(name)
        text = listed(map(str, dict.fromkeys(value)), "and") if isinstance(value, list) else yaml_form(value)
        what = f"{name} ({text}) cannot be exported to {self.architecture}, {why}"
        return Problem(what, config.place(name), id="huggingface-not-expressible", about=(name,))

    def described(self, config: Config) -> dict[str, Any]:
        """The keys of config.json that describe the model."""
        found: dict[str, Any] = {}
        for row in self.settings:
            *path, key = row.key.split(".")
            (found.setdefault(path[0], {}) if path else found)[key] = row.out(config)
        return {**found, **self.older(found)}

    def modules(self, layers: int, tied: bool) -> Iterator[Weights]:
        """Every module of a model, in its order. tied: is the output layer the embedding?"""
        inner = [row for row in self.weights if "{}" in row.ours]
        first = [row for row in self.weights if row.ours.startswith(("embedding", "positions"))]
        last = [row for row in self.weights if row not in inner and row not in first]
        yield from first
        for layer in range(layers):
            for ours, theirs, form in inner:
                yield Weights(ours.format(layer), tuple(name.format(layer) for name in theirs), form)
        yield from (row for row in last if not (tied and row.ours == "output"))


#: Where the parameters of the model are declared.
MODEL = tuple(subject.__name__ for subject in (model, architectures, moe, mup, regularization))
#: Parameters that change the model and nothing that is written of it, or only what another one that each family
#: decides on lets them change.
ELSEWHERE = (
    "seq_length", "max_position_embeddings", "expansion_factor", "mlp_multiple_of", "num_unique_layers",
    "param_sharing_style", "gpt_j_tied", "rotary_pct", "rotary_emb_base", "rpe_num_buckets", "rpe_max_distance",
    "rpe_causal", "opt_pos_emb_offset", "make_vocab_size_divisible_by", "padded_vocab_size", "layernorm_epsilon",
    "rms_norm_epsilon", "scalenorm_epsilon", "use_bias_in_norms", "sparsity", "sparsity_config",
    "apply_query_key_layer_scaling", "attention_softmax_in_fp32", "attention_dropout", "hidden_dropout",
    "weight_decay",
)  # fmt: skip


def same(key: str, ours: str, default: Any, also: tuple[str, ...] = ()) -> Setting:
    """Of one meaning and one value."""
    return Setting(key, (ours,), default, lambda config: config.get(ours), lambda value: {ours: value}, also)


def rope(told: Values, **older: str) -> Values:
    """What is turned, and by how much, also as earlier versions of transformers call it."""
    inner = told["rope_parameters"]
    found = {"rope_parameters": {**inner, "rope_type": "default"}}
    return found | {name: inner[key] for key, name in older.items()}


def base(key: str, also: tuple[str, ...] = ()) -> Setting:
    """The base of rotary wavelengths, a float there and a whole number here."""

    def back(value: float) -> Values | None:
        return {"rotary_emb_base": int(value)} if value == int(value) else None

    return Setting(
        key, ("rotary_emb_base",), 10000.0, lambda config: float(config.embedding.rotary_emb_base), back, also
    )


def width(key: str, default: Any, gated: bool) -> Setting:
    """The feed-forward width; what a gated one counts here is all three matrices."""
    return Setting(
        key, ("intermediate_size",), default, lambda config: mlp_width(config.shape, config.mlp),
        lambda value: {"intermediate_size": value * 3 if gated else value} if value else {},
    )  # fmt: skip


def tied(default: bool) -> Setting:
    return Setting(
        "tie_word_embeddings", ("no_weight_tying",), default,
        lambda config: not config.embedding.no_weight_tying, lambda value: {"no_weight_tying": not value},
    )  # fmt: skip


#: Theirs -> ours. The first of several that mean the same is the one that is written.
GATES = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu", "sigmoid": "glu", "linear": "bilinear", "swish": "swiglu"}
PLAIN = {"gelu": "gelu", "relu": "relu", "silu": "silu", "mish": "mish", "swish": "swish"}
TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")


def activation(key: str, default: str, gated: bool) -> Setting:
    """What lies between the feed-forward matrices."""
    names = GATES if gated else PLAIN

    def out(config: Config) -> str:
        if config.mlp.activation == "gelu" and config.fusion.bias_gelu_fusion:
            return TANH[0]
        return next(theirs for theirs, ours in names.items() if ours == config.mlp.activation)

    def back(value: str) -> Values | None:
        if value in TANH and not gated:
            return {"activation": "gelu", "bias_gelu_fusion": True}
        return {"activation": names[value]} if value in names else None

    return Setting(key, ("activation",), default, out, back)


def only(ours: str, *values: Any) -> Demand:
    """A family that supports only these values of a parameter."""
    supported = f"{ours}: {listed([yaml_form(value) for value in values])}"
    return Demand(ours, lambda config: config.get(ours) in values, supported)


DENSE = Demand(
    "attention_config",
    lambda config: set(config.get("attention_config") or ()) <= {"global", "flash"},
    "full causal attention in every layer",
)
UNSHARED = Demand(
    "num_kv_heads",
    lambda config: config.shape.num_kv_heads == config.shape.num_attention_heads,
    "num_kv_heads equal to num_attention_heads",
)
UNGATED, ALWAYS_GATED = only("activation", *PLAIN), only("activation", *GATED)
#: What a file of any family may ask for and a GPT here cannot be.
EVERY = (
    Fixed("quantization_config", (None,)), Fixed("auto_map", (None,)), Fixed("rope_parameters.rope_type", ("default",)),
)  # fmt: skip
