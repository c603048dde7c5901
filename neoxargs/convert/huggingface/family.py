"""The table of a model family: its keys of config.json, the parameters it supports, names and forms of its weights.

"Ours" is this package's name or value, "theirs" is that of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neoxargs.base.problems import Problem, listed
from neoxargs.config.config import Config
from neoxargs.convert.huggingface.forms import SAME, Form
from neoxargs.registry import ABSENT, REGISTRY, architectures, model, moe, mup, regularization, rotary
from neoxargs.registry.model import Fusion, Init
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.rules.synonyms import yaml_form
from neoxargs.targets.nesting import nested

Values = Mapping[str, Any]


#: Stands for the number of an expert in the name of their module; ours has all experts.
EXPERT = "{expert}"
#: Value of a key that is not written to config.json.
OMIT: Any = object()


class Setting(NamedTuple):
    """A key of config.json and the parameters it corresponds to."""

    key: str
    """A dot separates a section from its key."""
    ours: tuple[str, ...]
    default: Any
    """The value that transformers assumes if the key is missing."""
    to_theirs: Callable[[Config], Any]
    """Returns the key's value, or OMIT."""
    to_ours: Callable[[Any], Values | None]
    """Maps the key's value to parameters; None if it has no equivalent."""
    old_keys: tuple[str, ...] = ()
    """Names of the key in earlier versions of transformers."""


class Demand(NamedTuple):
    """A parameter of ours of which the family supports only some values."""

    ours: str
    fits: Callable[[Config], bool]
    supported: str
    """The supported values, as worded in the error message about any other value."""


class Fixed(NamedTuple):
    """A key of config.json of which this trainer supports only some values. The first is transformers' default."""

    key: str
    values: tuple[Any, ...]


class Weights(NamedTuple):
    """A module of ours and the corresponding modules of theirs."""

    ours: str
    """`{}` stands for the number of the layer."""
    theirs: tuple[str, ...]
    form: Form = SAME
    kinds: tuple[str, ...] = ("weight", "bias")
    """The tensors of the module. All but the first may be missing."""


def same_names(*modules: str) -> tuple[Weights, ...]:
    """Return modules of a layer that have the same names on both sides."""
    return tuple(Weights(f"layers.{{}}.{name}", (f"layers.{{}}.{name}",)) for name in modules)


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
    """Prefix of the names of all weights except those of the output layer."""
    settings: tuple[Setting, ...]
    demands: tuple[Demand, ...]
    fixed: tuple[Fixed, ...]
    constants: Values
    """Parameters that have the same value in every model of the family."""
    weights: tuple[Weights, ...]
    from_keys: Callable[[Values], Values] = lambda keys: {}
    """Returns parameters that follow from several keys of config.json together."""
    compatibility_keys: Callable[[Values], Values] = lambda keys: {}
    """Returns additional keys for earlier versions of transformers, given those of `config_keys`."""
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias")
    """Suffixes of the names of tensors that are buffers, not weights."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of modules in some versions of transformers -> those in `weights`."""

    def obstacles(self, config: Config) -> Iterator[Problem]:
        """Yield a problem for every parameter that prevents exporting this model as one of the family."""
        for demand in self.demands:
            if not demand.fits(config):
                yield self._obstacle(config, demand.ours, f"which requires {demand.supported}")
        unread = unread_by_run(config)
        known = {demand.ours for demand in self.demands} | {name for row in self.settings for name in row.ours}
        for parameter, value in config.items():
            group, name = parameter.group, parameter.name
            handled = name in known or name in HARMLESS or group in (Init, Fusion)
            # Of the model's parameters only: data, optimizer and layout are not exported.
            changes_model = parameter.effect in ("model", "not built") and group.__module__ in MODEL_MODULES
            is_set = value.value not in (parameter.default, ABSENT, None)
            if changes_model and is_set and not handled and not unread(name):
                yield self._obstacle(config, name, "which has no equivalent parameter")

    def _obstacle(self, config: Config, name: str, why: str) -> Problem:
        value = config.get(name)
        text = listed(map(str, dict.fromkeys(value)), "and") if isinstance(value, list) else yaml_form(value)
        what = f"{name} ({text}) cannot be exported to {self.architecture}, {why}"
        return Problem(what, config.place(name), id="huggingface-not-expressible", about=(name,))

    def config_keys(self, config: Config) -> dict[str, Any]:
        """Return the keys of config.json that describe the model."""
        values = {row.key: row.to_theirs(config) for row in self.settings}
        keys = nested({key: value for key, value in values.items() if value is not OMIT})
        return {**keys, **self.compatibility_keys(keys)}

    def modules(self, layers: int, tied: bool, experts: int = 1) -> Iterator[Weights]:
        """Yield every module of a model, in the model's order. tied: whether the embedding is the output layer."""
        inner = [row for row in self.weights if "{}" in row.ours]
        first = [row for row in self.weights if row.ours.startswith(("embedding", "positions"))]
        last = [row for row in self.weights if row not in inner and row not in first]
        yield from first
        for layer in range(layers):
            for ours, theirs, form, kinds in inner:
                numbers = range(experts if EXPERT in theirs[0] else 1)
                names = tuple(name.format(layer, expert=number) for number in numbers for name in theirs)
                yield Weights(ours.format(layer), names, form, kinds)
        # A tied output layer has no weight of its own in their files.
        yield from (row for row in last if not (tied and row.ours == "output"))


#: Modules of the registry that declare the model's parameters.
MODEL_MODULES = tuple(subject.__name__ for subject in (model, rotary, architectures, moe, mup, regularization))
#: Parameters that need no row in a family: they do not change the exported model, or only together with another
#: parameter, for which every family has a row.
HARMLESS = (
    "seq_length", "max_position_embeddings", "intermediate_size", "expansion_factor", "mlp_multiple_of",
    "exact_mlp_width", "te_mha", "num_unique_layers", "param_sharing_style", "gpt_j_tied", "rotary_pct",
    "rotary_emb_base", "rpe_num_buckets", "rpe_max_distance", "rpe_causal", "opt_pos_emb_offset",
    "make_vocab_size_divisible_by", "padded_vocab_size", "softmax_over_padding",
    "layernorm_epsilon", "rms_norm_epsilon", "rms_norm_epsilon_under_root", "scalenorm_epsilon", "use_bias_in_norms",
    "sparsity", "sparsity_config", "apply_query_key_layer_scaling", "attention_softmax_in_fp32", "attention_dropout",
    "hidden_dropout", "weight_decay", "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_loss_coeff", "moe_use_residual",
    "moe_train_capacity_factor", "moe_eval_capacity_factor", "moe_min_capacity",
    "qk_layernorm_scope", "window_attn_skip_freq", "rope_local_base_freq",
    "mamba_inner_size", "mamba_use_bias_in_conv", "mamba_use_bias_in_linears",
    "mamba_use_bias_in_x_proj", "dim_att", "head_size", "ffn_dim",
    *(name for name in REGISTRY.parameters if name.startswith("rope_scaling.") and name != "rope_scaling.rope_type"),
)  # fmt: skip
