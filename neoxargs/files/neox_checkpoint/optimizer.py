"""The places of each weight's optimizer state in GPT-NeoX's files, in every DeepSpeed format since 2021.

Without ZeRO, the state is in the state files: one tensor per weight in fp32, or one flat tensor per parameter group in
fp16. With ZeRO-1 and ZeRO-2, a group is one long vector, which is divided at any element into one part per data
parallel rank. Newer files name the weights of a group in their order. In older files, the order follows from the model:
modules one after the other, with the weights without decay (norms and biases) in a separate group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any, NamedTuple

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.facts.optimizers import state_type
from neoxargs.files.neox_checkpoint.contents import SEQUENTIAL, Contents
from neoxargs.files.neox_checkpoint.pickles import Inert, TensorRef, read
from neoxargs.files.neox_checkpoint.weights import decays

#: Tensor parallel rank, number of the layer, name of the tensor.
Key = tuple[int, int, str]
#: Keys under which DeepSpeed stores the fp32 weights of each group.
PARTITIONS, SUB_PARTITIONS = "single_partition_of_fp32_groups", "local_sub_partitions_of_fp32_groups"
#: `state_type` of an optimizer that GPT-NeoX has -> the name of each of its states there -> ours. All have one element
#: per element of the weight. 1-bit Adam's error feedback is left out: GPT-NeoX itself sets it to 0 when it loads.
STATES = {
    "adam": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
    "onebitadam": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
    "lion": {"exp_avg": "momentum"},
    "madgrad_wd": {"grad_sum_sq": "squares", "s": "total", "x0": "start"},
}
#: Those that count their steps.
COUNTS_STEPS = ("adam", "onebitadam", "madgrad_wd")
_KNOWN = {name for names in STATES.values() for name in names}
#: Name of a state that only one optimizer has -> why it cannot be restored.
NOT_RESTORED = {
    "accumulator_0": "SM3 has an accumulator for each row and column of a rank's slice of a weight, which other slices "
    "do not have",
    "qmap1": "bitsandbytes' optimizers store it in 8 bits",
    "momentum_buffer": "GPT-NeoX's SGD (MuSGD) is muP's, which orders the weights by their growth; the files do not "
    "record that order",
}
#: Keys of the number of steps; `k` is madgrad_wd's.
STEP_COUNTS = ("step", "k")
#: Type of a tensor with one number -> its format for `struct`.
NUMBERS = {"float32": "<f", "int64": "<q", "int32": "<i"}
#: Start of the names of weights that have no gradient in some models: with `gpt_j_tied`, this norm is not used.
UNUSED = "post_attention_layernorm."
#: Prefix of the names of tied weights, which belong to layer 0.
TIED = "tied_modules.embed."


class Part(NamedTuple):
    """Elements that follow one another in a stored tensor."""

    tensor: TensorRef
    start: int
    length: int


class NotUsable(Exception):
    """Why the optimizer state cannot be restored, as the end of a sentence."""


def not_restorable(contents: Contents, why: str) -> Problem:
    """Return the problem of a run that continues a checkpoint whose optimizer state cannot be restored."""
    what = f"load ({contents.folder}): the GPT-NeoX checkpoint's optimizer state cannot be restored: {why}"
    hint = "set finetune: true to load only the weights and start at iteration 0, or no_load_optim: true to continue at"
    hint += f" iteration {contents.iteration} with a fresh optimizer state"
    return Problem(what, hint=hint, id="checkpoint-without-optimizer", about=("load", "finetune", "no_load_optim"))


@dataclass
class OptimizerState:
    """The optimizer state of a checkpoint.

    masters: fp32 weights; empty if the model's weights are fp32 themselves. states: by the optimizer's names.
    """

    masters: dict[Key, list[Part]] = field(default_factory=dict)
    states: dict[str, dict[Key, list[Part]]] = field(default_factory=dict)
    step: int = 0
    loss_scale: dict[str, Any] = field(default_factory=dict)


class _Weight(NamedTuple):
    layer: int
    name: str
    shape: tuple[int, ...]


Groups = list[list[_Weight]]


class _Vector(NamedTuple):
    """One parameter group of one rank: tensors that, one after the other, have the elements of its weights."""

    masters: list[TensorRef]
    states: list[dict[str, TensorRef]]
    """For each tensor in `masters`, its optimizer states by name."""


def locate_state(contents: Contents) -> OptimizerState:
    """Return where the optimizer state is; raise NotUsable if there is none or its format is unknown."""
    found, orders = OptimizerState(), _Orders(contents)
    for number in sorted(contents.files.states):
        _add(found, contents, number, orders)
    if not found.states:
        raise NotUsable("the checkpoint has none")
    for layer, names in contents.layers.items():
        for name, refs in names.items():
            keys = {(rank, layer, name) for rank in range(len(refs))}
            if not all(keys <= parts.keys() for parts in found.states.values()) and not name.startswith(UNUSED):
                raise NotUsable(f"it does not contain the state of {name} in layer {layer}")
    return found


def restorable_state(contents: Contents, config: Config) -> OptimizerState:
    """Return where the state of the run's optimizer is, by deepy's names; raise NotUsable if it cannot be restored."""
    if config.mup.use_mup:
        raise NotUsable(
            "with use_mup, GPT-NeoX's optimizers (MuAdam, MuSGD) order the weights by their growth relative to the "
            "base model, and the files do not record that order"
        )
    found, kind = locate_state(contents), config.optimizer.type or "Adam"
    names = STATES.get(state_type(kind), {})
    theirs = next((kind for kind, names in STATES.items() if set(names) == set(found.states)), None)
    if set(names) != set(found.states):
        lacks = f"it lacks {', '.join(sorted(set(names) - set(found.states)))}"
        why = f"it is that of {theirs}" if theirs else lacks
        raise NotUsable(f"{why}, but this run uses optimizer.type {kind}")
    if config.optimizer_params.amsgrad:
        raise NotUsable("it lacks the largest second moments, which optimizer.params.amsgrad needs")
    return replace(found, states={ours: found.states[theirs] for theirs, ours in names.items()})


def state_kinds(state: OptimizerState) -> list[str]:
    """Return the kinds of tensors that a state has for each weight, by deepy's names."""
    return ["fp32 copy"] * bool(state.masters) + list(state.states)


def _add(found: OptimizerState, contents: Contents, number: int, orders: _Orders) -> None:
    """Add the state of one pipeline stage and tensor parallel rank."""
    rank = number % contents.files.tensor_ranks
    if contents.files.optimizer:
        outers = [_partition(contents, number, part) for part in range(contents.files.data_ranks)]
        _keep_counters(found, outers[0])
        vectors = _joined(outers)
    else:
        outer = contents.state(number).get("optimizer")
        if not isinstance(outer, dict) or not outer:
            raise NotUsable("the checkpoint has none")
        _keep_counters(found, outer)
        if "fp32_groups_flat" not in outer:
            # DeepSpeed's FP16_UnfusedOptimizer, for example of Lion, has an fp32 copy of each weight.
            inner = outer.get("optimizer_state_dict", outer)
            groups = orders.of_tensors(number, _shapes(inner))
            _add_whole(found, inner, rank, groups, list(chain.from_iterable(outer.get("fp32_groups", ()))))
            return
        states = _by_group(outer["optimizer_state_dict"])
        vectors = [_Vector([flat], [state]) for flat, state in zip(outer["fp32_groups_flat"], states, strict=True)]
    sizes = [sum(tensor.numel for tensor in vector.masters) for vector in vectors]
    for group, vector in zip(orders.of_vectors(number, sizes), vectors, strict=True):
        _add_vector(found, group, vector, rank)


def partition_steps(contents: Contents) -> dict[int, list[str]]:
    """Return the numbers of optimizer steps that the files of ZeRO's partitions record, with the names of the files."""
    found: dict[int, list[str]] = {}
    for (number, part), file in contents.files.optimizer.items():
        # Without a step count, the optimizer has none, or has not taken any.
        if steps := [*_steps(_partition(contents, number, part))]:
            found.setdefault(max(steps), []).append(file.name)
    return found


def _partition(contents: Contents, number: int, part: int) -> dict[str, Any]:
    outer = read(contents.files.optimizer[number, part]).get("optimizer_state_dict")
    if not isinstance(outer, dict) or not {PARTITIONS, SUB_PARTITIONS} & set(outer):
        raise NotUsable("its DeepSpeed format is not supported (ZeRO-3, for example)")
    return outer


def _keep_counters(found: OptimizerState, outer: Mapping[str, Any]) -> None:
    """Keep the step count and the loss scale of one file.

    DeepSpeed's fused Adam counts the steps of a group in the state of its last weight only, hence the maximum.
    """
    found.step = max([found.step, *_steps(outer)])
    scaler = outer.get("loss_scaler")
    found.loss_scale = scaler.attributes if isinstance(scaler, Inert) else {} if scaler else dict(outer)


def _steps(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in STEP_COUNTS and isinstance(inner, int | float):
                yield int(inner)
            elif key in STEP_COUNTS and isinstance(inner, TensorRef) and inner.dtype in NUMBERS:
                yield int(struct.unpack(NUMBERS[inner.dtype], inner.elements(0, 1))[0])
            elif isinstance(inner, Mapping | list):
                yield from _steps(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _steps(inner)


def _joined(outers: Sequence[Mapping[str, Any]]) -> list[_Vector]:
    """Return the vector of each group, from the parts of all data parallel ranks."""
    if SUB_PARTITIONS in outers[0]:
        return _interleaved(outers)
    vectors = [_Vector([], []) for _ in outers[0][PARTITIONS]]
    for outer in outers:
        states = _by_group(outer["base_optimizer_state"])
        for vector, master, state in zip(vectors, outer[PARTITIONS], states, strict=True):
            vector.masters.append(master)
            vector.states.append(state)
    return vectors


def _interleaved(outers: Sequence[Mapping[str, Any]]) -> list[_Vector]:
    """Return the vectors of DeepSpeed 0.3: each rank has every n-th part of a group, one per interval."""
    vectors = []
    states = [_by_interval(outer) for outer in outers]
    for group, intervals in enumerate(outers[0][SUB_PARTITIONS]):
        vector = _Vector([], [])
        for interval in range(len(intervals)):
            for outer, state in zip(outers, states, strict=True):
                vector.masters.append(outer[SUB_PARTITIONS][group][interval])
                vector.states.append(state[group][interval])
        vectors.append(vector)
    return vectors


def _by_interval(outer: Mapping[str, Any]) -> list[list[dict[str, TensorRef]]]:
    base = outer["base_optimizer_state"]
    if isinstance(base, list):
        return [[_tensors(state) for state in intervals] for intervals in base]
    numbered = iter(_by_number(base))
    return [[next(numbered) for _ in intervals] for intervals in outer[SUB_PARTITIONS]]


def _by_group(base: Any) -> list[dict[str, TensorRef]]:
    """Return the states of a rank's groups. `elastic_checkpoint` stores a list of them."""
    return [_tensors(state) for state in base] if isinstance(base, list) else _by_number(base)


def _by_number(base: Mapping[str, Any]) -> list[dict[str, TensorRef]]:
    numbers = [number for group in base["param_groups"] for number in group["params"]]
    return [_tensors(base["state"].get(number, {})) for number in numbers]


def _tensors(state: Mapping[str, Any]) -> dict[str, TensorRef]:
    found = {name: value for name, value in state.items() if isinstance(value, TensorRef) and value.shape}
    if why := next((why for name, why in NOT_RESTORED.items() if name in found), ""):
        raise NotUsable(why)
    return {name: value for name, value in found.items() if name in _KNOWN}


def _shapes(outer: Mapping[str, Any]) -> list[list[tuple[int, ...] | None]]:
    """Return the shape of every tensor of an fp32 optimizer; None if it has no state, because it had no gradient."""

    def shape(number: Any) -> tuple[int, ...] | None:
        tensors = _tensors(outer["state"].get(number, {}))
        return next((tensor.shape for tensor in tensors.values()), None)

    try:
        return [[shape(number) for number in group["params"]] for group in outer["param_groups"]]
    except (KeyError, TypeError):
        raise NotUsable("its DeepSpeed format is not supported") from None


def _add_whole(
    found: OptimizerState, outer: Mapping[str, Any], rank: int, groups: Groups, masters: Sequence[TensorRef]
) -> None:
    weights = [weight for group in groups for weight in group]
    for weight, state in zip(weights, _by_number(outer), strict=True):
        for name, tensor in state.items():
            key = (rank, weight.layer, weight.name)
            found.states.setdefault(name, {}).setdefault(key, [Part(tensor, 0, tensor.numel)])
    for weight, master in zip(weights, masters, strict=bool(masters)):
        found.masters.setdefault((rank, weight.layer, weight.name), [Part(master, 0, master.numel)])


def _add_vector(found: OptimizerState, group: Sequence[_Weight], vector: _Vector, rank: int) -> None:
    start = 0
    for weight in group:
        key, length = (rank, weight.layer, weight.name), prod(weight.shape)
        found.masters.setdefault(key, _cut(vector, "", start, length))
        for name in vector.states[0]:
            found.states.setdefault(name, {}).setdefault(key, _cut(vector, name, start, length))
        start += length


def _cut(vector: _Vector, state: str, start: int, length: int) -> list[Part]:
    """Return the parts of a vector, or of one of its states, with the elements from `start` on."""
    tensors: list[Any] = [states.get(state) for states in vector.states] if state else vector.masters
    whole = [Part(tensor, 0, master.numel) for tensor, master in zip(tensors, vector.masters, strict=True)]
    found = within(whole, start, start + length)
    for tensor, first, count in found:
        if tensor is None or tensor.numel < first + count:  # it may be longer, by the padding at a vector's end
            raise NotUsable(f"the state {state} is missing or has fewer elements than the weights")
    return found


def within(parts: Iterable[Part], start: int, end: int) -> list[Part]:
    """Return what parts that follow one another have of the elements from `start` to `end`."""
    found, before = [], 0
    for part in parts:
        first, last = max(start, before), min(end, before + part.length)
        if first < last:
            found.append(Part(part.tensor, part.start + first - before, last - first))
        before += part.length
    return found


class _Orders:
    """The weights of every parameter group of every state file, in their order."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.tensor_ranks = contents.files.tensor_ranks
        #: First layer that the stages before the next one do not have, for each tensor parallel rank.
        self.next_layer = dict.fromkeys(range(self.tensor_ranks), 0)

    def of_tensors(self, number: int, shapes: Sequence[Sequence[tuple[int, ...] | None]]) -> Groups:
        def fits(groups: Groups) -> bool:
            pairs = zip(groups, shapes, strict=True)
            return all(
                len(group) == len(theirs)
                and all(shape in (None, weight.shape) for weight, shape in zip(group, theirs, strict=True))
                for group, theirs in pairs
            )

        return self._rebuilt(number, len(shapes), fits)

    def of_vectors(self, number: int, sizes: Sequence[int]) -> Groups:
        """sizes: number of elements of each group, which may include padding."""
        named = self._named(number)
        if named is None:
            return self._rebuilt(number, len(sizes), lambda groups: [_elements(group) for group in groups] == sizes)
        if len(named) != len(sizes) or any(_elements(group) > size for group, size in zip(named, sizes, strict=True)):
            raise NotUsable("its tensor sizes do not match the model weights")
        return named

    def _named(self, number: int) -> Groups | None:
        """Return the groups that the state file itself describes; None if it does not."""
        shapes = self.contents.state(number).get("param_shapes")
        if not shapes:
            return None
        groups = shapes if isinstance(shapes, list | tuple) else [shapes]
        return [[_Weight(*_layer_and_name(name), tuple(shape)) for name, shape in group.items()] for group in groups]

    def _rebuilt(self, number: int, count: int, fits: Any) -> Groups:
        """Return the groups of the layers of one stage: as many of the remaining layers as fit."""
        rank = number % self.tensor_ranks
        first = self.next_layer[rank]
        layers = [layer for layer in sorted(self.contents.layers) if layer >= first]
        for copies in ((), self._weights(0, rank)) if first else ((),):  # a tied embedding is also on the last stage
            for end in range(1, len(layers) + 1):
                weights = [*copies, *(weight for layer in layers[:end] for weight in self._weights(layer, rank))]
                if len(groups := _groups(weights, count)) == count and fits(groups):
                    self.next_layer[rank] = layers[end - 1] + 1
                    return groups
        raise NotUsable("its tensor sizes do not match the model weights")

    def _weights(self, layer: int, rank: int) -> list[_Weight]:
        return [_Weight(layer, name, refs[rank].shape) for name, refs in self.contents.layers[layer].items()]


def _groups(weights: list[_Weight], count: int) -> Groups:
    """Return GPT-NeoX's parameter groups: with and without weight decay, or one group if there is no decay."""
    if count == 1:
        return [weights]
    return [
        [weight for weight in weights if decays(weight.name, len(weight.shape)) == wanted] for wanted in (True, False)
    ]


def _elements(group: Sequence[_Weight]) -> int:
    return sum(prod(weight.shape) for weight in group)


def _layer_and_name(name: str) -> tuple[int, str]:
    if name.startswith(TIED):
        return 0, name.removeprefix(TIED)
    match = SEQUENTIAL.fullmatch(f"sequential.{name.removeprefix('module.').removeprefix('sequential.')}")
    if match is None:
        raise NotUsable(f"it contains an unknown weight, {name}")
    return int(match[1]), match[2]
