"""The configuration that GPT-NeoX stored with a checkpoint, compared with that of a run that continues it.

The shapes of tensors do not show a rotary base, an activation or an epsilon; these files do.
"""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.config.config import Config
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.registry import ABSENT, model, regularization
from neoxargs.registry.model import Fusion, Init
from neoxargs.resolve import resolve
from neoxargs.resolve.rules.synonyms import yaml_form

#: Modules of the registry whose parameters determine the function that the weights compute.
MODULES = tuple(subject.__name__ for subject in (model, regularization))
#: Parameters that may differ: they do not change that function, or the shapes of the weights show them.
FREE = (
    "seq_length", "make_vocab_size_divisible_by", "padded_vocab_size", "max_position_embeddings", "hidden_dropout",
    "attention_dropout", "weight_decay", "num_layers", "hidden_size", "num_attention_heads", "num_kv_heads",
    "intermediate_size", "no_weight_tying", "attention_config", "sparsity_config", "softmax_over_padding",
)  # fmt: skip


def differences(config: Config, contents: Contents) -> Iterator[Problem]:
    """Yield a warning that lists the model's parameters whose values in the saved configuration differ.

    Whether attention and MLP are parallel decides how the biases of several ranks are joined, so that is an error.
    """
    saved = _saved_configuration(contents, config.dialect.name if config.dialect else None)
    if saved is None:
        return
    names = [name for name in _comparable(config) if saved.get(name) != config.get(name)]
    if "gpt_j_residual" in names and contents.files.tensor_ranks > 1:
        value = yaml_form(saved.get("gpt_j_residual"))
        what = f"load ({contents.folder}): the checkpoint was written with gpt_j_residual {value}"
        what += f", but this configuration has {yaml_form(config.get('gpt_j_residual'))}"
        place = config.place("gpt_j_residual") or config.place("load")
        yield Problem(
            what, place, f"set gpt_j_residual: {value}", id="checkpoint-other-model", about=("load", "gpt_j_residual")
        )
        return
    if names:
        pairs = [f"{name} (saved {yaml_form(saved.get(name))}, here {yaml_form(config.get(name))})" for name in names]
        what = f"load ({contents.folder}): the model differs from the configuration saved with the checkpoint: "
        hint = f"compare with {listed(map(str, contents.configurations), 'and')}"
        places = [place for name in names if (place := config.place(name))]
        first, *others = [*places, config.place("load")]
        yield Problem(
            what + listed(pairs, "and"), first, hint, also=tuple(place for place in others if place),
            severity="warning", id="checkpoint-other-model", about=("load", *names),
        )  # fmt: skip


def _saved_configuration(contents: Contents, dialect: str | None) -> Config | None:
    """Return the resolved configuration of the run that wrote the checkpoint; None if it is missing or invalid."""
    if not contents.configurations:
        return None
    try:
        # GPT-NeoX's files name no dialect, and this run's is the best guess: different defaults would look like
        # differences.
        return resolve(contents.configurations, [f"dialect={dialect}"] if dialect else [], gpus=contents.files.ranks)
    except Problems:
        return None


def _comparable(config: Config) -> Iterator[str]:
    for parameter, value in config.items():
        group = parameter.group
        of_model = parameter.effect == "model" and group.__module__ in MODULES and group not in (Init, Fusion)
        if of_model and parameter.name not in FREE and value.value is not ABSENT:
            yield parameter.name
