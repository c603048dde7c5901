"""The places of deepy's weights in a GPT-NeoX checkpoint, and how tensor parallel ranks share them.

Names have changed over the years. Shapes decide what a name leaves open; `evidence.py` decides what both leave open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.files.neox_checkpoint.pickles import TensorRef

#: How the ranks' tensors become one. rows, columns: one after the other. heads: rows of queries, keys and values. gate
#: first: rows; with a gated activation, the rows of the gate come before those of the value. copies: every rank has all
#: of it. row bias: every rank has one of the full length, and the model adds either one of them or all.
Cut = Literal["rows", "columns", "heads", "gate first", "copies", "row bias"]

#: Name of a module in a layer -> ours, and the cut of its weight, in the order in which GPT-NeoX's model has them.
MODULES: dict[str, tuple[str, Cut]] = {
    "input_layernorm": ("input_layernorm", "copies"),
    "attention.query_key_value": ("attention.query_key_value", "heads"),
    "attention.dense": ("attention.dense", "columns"),
    "post_attention_layernorm": ("post_attention_layernorm", "copies"),
    "mlp.linear1": ("mlp.dense_h_to_4h", "rows"),
    "mlp.linear2": ("mlp.dense_4h_to_h", "columns"),
}
#: The same for the names that the MLP had until September 2024.
LEGACY_MODULES: dict[str, tuple[str, Cut]] = {
    "mlp.dense_h_to_4h": ("mlp.dense_h_to_4h", "rows"),
    "mlp.dense_4h_to_h": ("mlp.dense_4h_to_h", "columns"),
    "mlp.w2": ("mlp.dense_4h_to_h", "columns"),
}
#: Name of a tensor of Transformer Engine's modules in a layer -> ours, and its cut. The rows of queries, keys and
#: values are in deepy's order, by group of heads.
TRANSFORMER_ENGINE: dict[str, tuple[str, Cut]] = {
    "attention.qkv.weight": ("attention.query_key_value.weight", "rows"),
    "attention.qkv.bias": ("attention.query_key_value.bias", "rows"),
    "attention.proj.weight": ("attention.dense.weight", "columns"),
    "attention.proj.bias": ("attention.dense.bias", "row bias"),
    "mlp.layer_norm_weight": ("post_attention_layernorm.weight", "copies"),
    "mlp.layer_norm_bias": ("post_attention_layernorm.bias", "copies"),
    "mlp.fc1_weight": ("mlp.dense_h_to_4h.weight", "gate first"),
    "mlp.fc1_bias": ("mlp.dense_h_to_4h.bias", "gate first"),
    "mlp.fc2_weight": ("mlp.dense_4h_to_h.weight", "columns"),
    "mlp.fc2_bias": ("mlp.dense_4h_to_h.bias", "row bias"),
}
#: The tensors that every transformer layer has one of.
OF_ATTENTION = ("attention.query_key_value.weight", "attention.qkv.weight")
#: Name of a tensor in layer 0 -> ours, and its cut.
EMBEDDINGS: dict[str, tuple[str, Cut]] = {
    "word_embeddings.weight": ("embedding.word_embeddings.weight", "rows"),
    "position_embeddings.weight": ("positions.table", "copies"),
}
#: The position biases: one tensor for all layers, which is stored in every layer.
RELATIVE = "attention.rpe.weight"
#: Numbers of the final norm and of the output layer, counted from the last transformer layer.
FINAL_NORM, OUTPUT = 2, 3
#: The gated MLP of 2023: value and gate in two tensors.
VALUE, GATE = "mlp.w3", "mlp.w1"
#: Value of `norm` -> name of each of its parameters -> ours.
NORM_PARAMETERS = {
    "layernorm": {"weight": "weight", "bias": "bias"}, "rmsnorm": {"scale": "weight"}, "scalenorm": {"g": "scale"},
}  # fmt: skip
_ANY_NORM = {theirs: ours for names in NORM_PARAMETERS.values() for theirs, ours in names.items()}
#: Parts of tensor names that occur only in models that `train.py` cannot load from a GPT-NeoX checkpoint.
OTHER_MODELS = {
    "mixer.": "Mamba, whose layers in GPT-NeoX depend on the number of tensor parallel ranks",
    "att.": "RWKV, which in GPT-NeoX passes its state between samples instead of tokens",
    "router": "mixture of experts", "moe": "mixture of experts",
    "experts": "mixture of experts", "soft_embedding": "soft prompt tuning", "rm_linear": "reward model",
    "qk_layernorm": "use_qk_layernorm, whose norm in GPT-NeoX spans all heads of a rank", "sgu": "gMLP",
}  # fmt: skip


class Found(NamedTuple):
    """One of deepy's weights, as it is stored in the files."""

    layer: int
    names: tuple[str, ...]
    """Names of the tensors whose rows are concatenated to form the weight."""
    tensors: tuple[tuple[TensorRef, ...], ...]
    """For each name, the tensors of all tensor parallel ranks."""
    cut: Cut

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the full weight."""
        first = list(self.tensors[0][0].shape)
        if self.cut in ("rows", "heads", "gate first"):
            first[0] = sum(ref.shape[0] for refs in self.tensors for ref in refs)
        elif self.cut == "columns":
            first[1] = sum(ref.shape[1] for ref in self.tensors[0])
        return tuple(first)


class Located(NamedTuple):
    """All weights of a checkpoint."""

    weights: dict[str, Found]
    depth: int
    """Number of transformer layers."""
    legacy: bool
    """Whether the MLP's weights have the names that GPT-NeoX used until September 2024."""


def locate(contents: Contents) -> Located:
    """Return where each weight is; raise Problems about tensors for which this package has no weight."""
    layers, found = contents.layers, dict[str, Found]()
    blocks = [number for number, names in layers.items() if any(name in names for name in OF_ATTENTION)]
    unknown: list[str] = []
    last = max(blocks, default=1)
    hidden = next((refs[0].shape[-1] for name, refs in layers.get(0, {}).items() if name.startswith("word")), 0)
    for number, names in layers.items():
        if number in blocks:
            prefix = f"layers.{blocks.index(number)}."
            pairs = {prefix + ours: item for ours, item in _of_block(number, names, unknown)}
        elif number < 2:
            pairs = dict(_of_embedding(number, names, unknown))
        else:
            of_end = _of_end(number - last, names, hidden, unknown)
            pairs = {name: item._replace(layer=number) for name, item in of_end}
        found |= pairs
    if blocks and RELATIVE in layers[blocks[0]]:
        refs = layers[blocks[0]][RELATIVE]
        found["relative.table"] = Found(blocks[0], (RELATIVE,), (tuple(refs),), "columns")
    problems = list(_problems(contents, blocks, unknown))
    if problems:
        raise Problems(problems)
    legacy = any(name.rpartition(".")[0] in LEGACY_MODULES for number in blocks for name in layers[number])
    return Located(found, len(blocks), legacy)


def used_weights(located: Located, config: Config) -> dict[str, Found]:
    """Return the weights that a run restores: all except norms that GPT-NeoX creates and does not use."""
    unused = "post_attention_layernorm" if config.attention.gpt_j_residual and config.attention.gpt_j_tied else None
    return {name: item for name, item in located.weights.items() if not unused or unused not in name}


def weight_kinds(weights: Iterable[str]) -> list[str]:
    """Return the modules of weights without the numbers of layers, such as `attention.dense (weight, bias)`."""
    kinds: dict[str, dict[str, None]] = {}
    for name in weights:
        module, _, kind = re.sub(r"^layers\.\d+\.", "", name).rpartition(".")
        kinds.setdefault(module, {})[kind] = None
    return [f"{module} ({', '.join(names)})" for module, names in kinds.items()]


def _problems(contents: Contents, blocks: list[int], unknown: list[str]) -> Iterator[Problem]:
    # Those that tell the kind of model come first.
    for name in sorted(unknown, key=lambda name: not _kind(name))[:3]:
        kind = _kind(name)
        unsupported = f" ({kind}), which train.py cannot load from GPT-NeoX"
        why = unsupported if kind else ", for which deepy's model has no weight"
        what = f"load ({contents.folder}): the checkpoint has a tensor {name}{why}"
        yield Problem(what, id="checkpoint-other-weights", about=("load",))
    if not unknown and blocks != list(range(2, 2 + len(blocks))):
        what = f"load ({contents.folder}): the transformer layers are not numbered consecutively: {blocks[:8]}"
        yield Problem(what, id="checkpoint-incomplete", about=("load",))


def _kind(name: str) -> str:
    """Return the kind of model that a tensor belongs to, if only that kind has such a tensor."""
    return next((kind for part, kind in OTHER_MODELS.items() if part in name), "")


def _of_embedding(number: int, names: Mapping[str, list[TensorRef]], unknown: list[str]) -> Iterator[tuple[str, Found]]:
    for name, refs in names.items():
        if name in EMBEDDINGS and number == 0:
            ours, cut = EMBEDDINGS[name]
            yield ours, Found(number, (name,), (tuple(refs),), cut)
        else:
            unknown.append(f"{number}.{name}")


def _of_end(
    number: int, names: Mapping[str, list[TensorRef]], hidden: int, unknown: list[str]
) -> Iterator[tuple[str, Found]]:
    """Yield the weights of the final norm, which comes 2 after the last transformer layer, and of the output layer."""
    for name, refs in names.items():
        kind, tensors = plain_norm(name).removeprefix("norm."), (tuple(refs),)
        if number == FINAL_NORM and kind in _ANY_NORM:
            yield f"final_norm.{_ANY_NORM[kind]}", Found(number, (name,), tensors, "copies")
        elif number == OUTPUT and name in ("final_linear.weight", "weight") and len(refs[0].shape) == 2:
            # By shape: until May 2023 each rank had hidden_size / ranks columns, unless set otherwise.
            in_columns = len(refs) > 1 and refs[0].shape[1] * len(refs) == hidden
            yield "output.weight", Found(number, (name,), tensors, "columns" if in_columns else "rows")
        else:
            unknown.append(name)


def _of_block(number: int, names: Mapping[str, list[TensorRef]], unknown: list[str]) -> Iterator[tuple[str, Found]]:
    modules = MODULES | LEGACY_MODULES
    for name, refs in names.items():
        module, _, kind = plain_norm(name).rpartition(".")
        tensors = (tuple(refs),)
        if name in TRANSFORMER_ENGINE:
            ours, cut = TRANSFORMER_ENGINE[name]
            yield ours, Found(number, (name,), tensors, cut)
        elif name in (f"{VALUE}.weight", RELATIVE):
            continue  # with the gate; one for all layers
        elif name == f"{GATE}.weight" and f"{VALUE}.weight" in names:
            value = tuple(names[f"{VALUE}.weight"])
            yield "mlp.dense_h_to_4h.weight", Found(number, (f"{VALUE}.weight", name), (value, *tensors), "rows")
        elif module in modules and (cut := modules[module][1]) == "copies" and kind in _ANY_NORM:
            yield f"{module}.{_ANY_NORM[kind]}", Found(number, (name,), tensors, cut)
        elif module in modules and kind in ("weight", "bias"):
            ours, cut = modules[module]
            yield f"{ours}.{kind}", Found(number, (name,), tensors, cut_of(cut, kind))
        else:
            unknown.append(f"{number}.{name}")


def plain_norm(name: str) -> str:
    """Return the name of a norm's tensor without the module that Transformer Engine's norms are wrapped in."""
    return re.sub(r"\.norm(?=\.(weight|bias)$)", "", name)


def cut_of(cut: Cut, kind: str) -> Cut:
    """Return the cut of a module's weight or bias from that of its weight. kind: `weight` or `bias`."""
    return "row bias" if kind == "bias" and cut == "columns" else cut


def decays(name: str, dimensions: int) -> bool:
    """Return whether GPT-NeoX applies weight decay to a tensor. Norms and biases have none and are in a separate group.

    The biases and the norm of Transformer Engine's LayerNormMLP are in its module, where GPT-NeoX does not find them.

    dimensions: number of the tensor's dimensions; in early 2021, the final norm did not have its own name.
    """
    module, _, kind = plain_norm(name).rpartition(".")
    is_norm = "layernorm" in module or module == "norm" or (not module and dimensions == 1)
    return kind != "bias" and not is_norm
