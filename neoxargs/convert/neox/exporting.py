"""`deepy export --format neox`: write a checkpoint in GPT-NeoX's format of 2024-11-13 and later.

One file per layer and tensor parallel rank, or one file per rank with `pipe_parallel_size: 0`. The optimizer state is
written only for fp32 without ZeRO and at most one pipeline stage, because GPT-NeoX then stores one tensor per weight,
and only of optimizers that GPT-NeoX has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.convert.folder import require_finite
from neoxargs.facts.model import vocabulary_rows, weights_of_layers
from neoxargs.facts.optimizers import state_type
from neoxargs.files.neox_checkpoint.contents import SCHEDULE
from neoxargs.files.neox_checkpoint.files import layer_file, state_file
from neoxargs.files.neox_checkpoint.optimizer import STATES
from neoxargs.files.neox_checkpoint.weights import (
    EMBEDDINGS,
    FINAL_NORM,
    MODULES,
    NORM_PARAMETERS,
    OUTPUT,
    RELATIVE,
    TRANSFORMER_ENGINE,
    Cut,
    cut_of,
    decays,
)
from neoxargs.registry.lora import Lora
from neoxargs.resolve.rules.synonyms import yaml_form
from neoxargs.targets.nesting import nested
from neoxargs.train.checkpoint.neox.head_order import split_heads
from neoxargs.train.checkpoint.neox.weights import halves_of, swapped_halves
from neoxargs.train.checkpoint.relayout import VOCABULARY_WEIGHTS
from neoxargs.train.checkpoint.slices import with_rows
from neoxargs.train.checkpoint.weights_by_name import CheckpointWeights
from neoxargs.train.parallel.layers import TensorShard, rank_slice

#: Kinds of optimizer state with a step count for each weight and group.
ADAMS = ("adam", "onebitadam")
#: Parameters of the model that only this package has, and that say how GPT-NeoX computes it, or change no result.
SAME_MODEL = (
    "softmax_over_padding",
    "rms_norm_epsilon_under_root",
    "compile_layers",
    "mamba_inner_size",
    "rwkv_wkv_fusion",
)


class Target(NamedTuple):
    """A GPT-NeoX tensor, and the deepy weight from which it is made."""

    layer: int
    name: str
    ours: str
    """If there is no such weight, the tensor gets its initial values: 1 for the weight of a norm, 0 for a bias."""
    cut: Cut


def write(config: Config, saved: CheckpointWeights, folder: Path) -> bool:
    """Write the checkpoint below `folder`; return whether it has optimizer state.

    Raises Problems if GPT-NeoX has no tensor for a weight, or cannot compute what the model computes.
    """
    if problems := list(_beyond_gpt_neox(config)):
        raise Problems(problems)
    common = saved.common
    final = folder / f"global_step{common['iteration']}"
    final.mkdir(parents=True)
    writer = _Writer(config, saved)
    for rank in range(writer.ranks):
        layers = writer.layers(rank, "")
        state = _state(config, common, writer.ranks, writer.rows)
        if config.parallel.pipe_parallel_size:
            for number, tensors in layers:
                torch.save(OrderedDict(tensors), final / layer_file(number, rank))
        else:
            # Without a pipeline, GPT-NeoX wraps the layers in a module of this name.
            named = ((f"sequential.{number}.{name}", x) for number, tensors in layers for name, x in tensors.items())
            state["module"] = OrderedDict(named)
        if writer.has_optimizer:
            state["optimizer"] = writer.optimizer(rank)
        # GPT-NeoX reads one state file for each rank of the model; in a pipeline, the weights are in the files of the
        # layers.
        for stage in range(max(config.parallel.pipe_parallel_size, 1)):
            torch.save(state, final / state_file(stage * writer.ranks + rank))
    (final / "configs").mkdir()
    (final / "configs" / "deepy.yml").write_text(_yaml(config), encoding="utf-8")
    (folder / "latest").write_text(final.name, encoding="utf-8")
    return writer.has_optimizer


def _beyond_gpt_neox(config: Config) -> Iterator[Problem]:
    """Yield every parameter of the model that GPT-NeoX does not have, if it is set; adapters are merged."""
    for parameter, setting in config.items():
        name, value = parameter.name, setting.value
        is_of_model = parameter.ours and parameter.effect == "model" and parameter.group is not Lora
        implied = name == "exact_mlp_width" and config.transformer_engine.te_layernorm_mlp
        if is_of_model and not implied and name not in SAME_MODEL and value != parameter.default:
            what = f"{name} ({yaml_form(value)}) cannot be exported to GPT-NeoX, which has no such parameter"
            yield Problem(what, config.place(name), id="huggingface-not-expressible", about=(name,))
    if "rwkv" in (config.get("attention_config") or ()):
        name, what = "attention_config", "RWKV layers cannot be exported to GPT-NeoX, which passes their state between "
        what += "the samples of a batch instead of between tokens"
        yield Problem(what, config.place(name), id="huggingface-not-expressible", about=(name,))


class _Writer:
    """Cuts weights and optimizer states into those of GPT-NeoX's ranks."""

    def __init__(self, config: Config, saved: CheckpointWeights) -> None:
        self.config, self.saved = config, saved
        self.ranks = config.parallel.model_parallel_size
        self.rows = vocabulary_rows(config) or saved.shape("embedding.word_embeddings.weight")[0]
        self.targets = list(_targets(config, saved))
        one_stage = config.parallel.pipe_parallel_size <= 1 and not config.zero_optimization.stage
        whole = one_stage and config.get("precision") in (None, "fp32")
        self.kind = state_type(config.optimizer.type or "Adam")
        known = self.kind in STATES and not config.optimizer_params.amsgrad and not config.mup.use_mup
        self.has_optimizer = whole and known and saved.complete

    def layers(self, rank: int, state: str) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield the tensors of each layer, also of one that has none. state: of the optimizer; "" for the weights."""
        # GPT-NeoX reads a file for the final norm even if it has no parameters.
        final_norm = len(weights_of_layers(self.config.shape)) + 1 + FINAL_NORM
        for number in sorted({final_norm, *(target.layer for target in self.targets)}):
            here = [target for target in self.targets if target.layer == number]
            yield number, {target.name: self._tensor(target, rank, state) for target in here}

    def optimizer(self, rank: int) -> dict[str, Any]:
        """Return the state of GPT-NeoX's optimizer, as torch's optimizers save it.

        Norms and biases are in a separate group without decay. If nothing decays, there is one group.
        """
        by_state = {theirs: list(self._tensors(rank, ours)) for theirs, ours in STATES[self.kind].items()}
        # The highest one: weights that were never updated have none.
        step = max(int(self.saved.states(name).get("step", 0)) for name in self.saved.slices)
        weight_decay = self.config.regularization.weight_decay
        decaying = [weight_decay != 0 and decays(name, tensor.dim()) for name, tensor in next(iter(by_state.values()))]
        # Those with decay first; the sort is stable, so the layers keep their order.
        order = sorted(range(len(decaying)), key=lambda index: not decaying[index])
        counted = {"step": step} if self.kind in ADAMS else {}
        states: dict[Any, Any] = {
            number: {**counted, **{state: tensors[index][1] for state, tensors in by_state.items()}}
            for number, index in enumerate(order)
        }
        if self.kind == "madgrad_wd":
            states["k"] = torch.tensor([step])  # counted once for all weights
        cut, common = sum(decaying), {"lr": self.config.get("lr"), **self._options(), **counted}
        groups: list[dict[str, Any]] = [
            {"name": "weight_decay_params", "weight_decay": weight_decay, **common, "params": list(range(cut))},
            {"name": "no_weight_decay_params", "weight_decay": 0.0, **common, "params": list(range(cut, len(order)))},
        ]
        return {"state": states, "param_groups": groups if weight_decay else groups[1:]}

    def _options(self) -> dict[str, Any]:
        """Return the options of a parameter group besides rate and decay."""
        params = self.config.optimizer_params
        if self.kind == "madgrad_wd":
            momentum = 0.9 if params.momentum is None else params.momentum
            return {"momentum": momentum, "eps": 1e-6 if params.eps is None else params.eps}
        if self.kind == "lion":
            return {"betas": tuple(params.betas or (0.9, 0.99))}
        eps = 1e-8 if params.eps is None else params.eps
        return {"bias_correction": params.bias_correction, "betas": tuple(params.betas or (0.9, 0.999)), "eps": eps}

    def _tensors(self, rank: int, state: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of all layers with their names in the layer."""
        for _, tensors in self.layers(rank, state):
            yield from tensors.items()

    def _tensor(self, target: Target, rank: int, state: str) -> Tensor:
        if target.ours not in self.saved.slices:
            # ScaleNorm has one number.
            width = 1 if target.name.endswith(".g") else self.config.shape.hidden_size
            return torch.zeros(width) if state or target.name.endswith("bias") else torch.ones(width)
        # master: with optimizer state, the fp32 weights that belong to it.
        full = self.saved.full_tensor(target.ours, state, master=self.has_optimizer and not state)
        name = f"the optimizer state {state} of {target.ours}" if state else f"the weight {target.ours}"
        require_finite(full, name, f"load ({self.saved.folder})")
        # A copy: a slice would be saved with the whole tensor.
        return self._slice(target, full, rank, state).clone(memory_format=torch.contiguous_format)

    def _slice(self, target: Target, full: Tensor, rank: int, state: str) -> Tensor:
        if target.ours in VOCABULARY_WEIGHTS:
            full = with_rows(full, self.rows)
        if target.cut == "heads":
            return self._heads(full.chunk(self.ranks)[rank])
        if target.cut in ("rows", "columns", "gate first"):
            dimension, halves = 1 if target.cut == "columns" else 0, halves_of(self.config, target.ours)
            own = rank_slice(full, TensorShard(dimension, halves, rank, self.ranks))
            return swapped_halves(own) if target.cut == "gate first" and halves == 2 else own
        if target.cut == "row bias" and self.config.attention.gpt_j_residual and not state:
            return full / self.ranks  # every rank adds its own
        return full

    def _heads(self, rows: Tensor) -> Tensor:
        """Return a rank's rows in GPT-NeoX's order: with grouped queries all queries, all keys, all values."""
        shape = self.config.shape
        if shape.num_kv_heads == shape.num_attention_heads:
            return rows
        groups = shape.num_kv_heads // self.ranks
        return torch.cat(split_heads(rows, groups, shape.num_attention_heads // shape.num_kv_heads))


def _targets(config: Config, saved: CheckpointWeights) -> Iterator[Target]:
    """Yield GPT-NeoX's tensors in the order of its modules; raise Problems about weights that it does not have."""
    order, names = weights_of_layers(config.shape), set(saved.slices)
    used = [Target(0, theirs, ours, cut) for theirs, (ours, cut) in EMBEDDINGS.items() if ours in names]
    for number, index in enumerate(order, start=2):
        used += _of_layer(config, names, number, f"layers.{index}.")
    last = len(order) + 1
    used += _of_norm(config, last + FINAL_NORM, "norm", "final_norm")
    if "output.weight" in names:
        used.append(Target(last + OUTPUT, "final_linear.weight", "output.weight", "rows"))
    surplus = sorted(names - {target.ours for target in used})
    if surplus:
        what = f"GPT-NeoX's format has no tensor for {surplus[0]}"
        raise Problems(Problem(what, id="checkpoint-other-weights", about=("load",)))
    yield from used


def _of_layer(config: Config, names: set[str], number: int, prefix: str) -> Iterator[Target]:
    options = config.transformer_engine
    switches = {"attention": options.te_mha, "mlp": options.te_layernorm_mlp}
    # The weights that are in Transformer Engine's modules: our name -> theirs, and the cut.
    of_te = {
        ours: (theirs, cut) for theirs, (ours, cut) in TRANSFORMER_ENGINE.items() if switches[theirs.partition(".")[0]]
    }
    for theirs, (ours, cut) in MODULES.items():
        if cut == "copies" and f"{ours}.weight" not in of_te:
            # With gpt_j_tied, deepy has one norm; GPT-NeoX has a second one, which is not used.
            yield from _of_norm(config, number, theirs, prefix + ours)
            continue
        for kind in ("weight", "bias"):
            name, plain = f"{ours}.{kind}", (f"{theirs}.{kind}", cut_of(cut, kind))
            if prefix + name in names:
                their_name, their_cut = of_te.get(name, plain)
                yield Target(number, their_name, prefix + name, their_cut)
        if ours == "attention.query_key_value" and "relative.table" in names:
            yield Target(number, RELATIVE, "relative.table", "columns")


def _of_norm(config: Config, number: int, theirs: str, ours: str) -> Iterator[Target]:
    for name, kind in NORM_PARAMETERS.get(config.norm.norm, {}).items():
        yield Target(number, f"{theirs}.{name}", f"{ours}.{kind}", "copies")


def _state(config: Config, common: Mapping[str, Any], ranks: int, rows: int) -> dict[str, Any]:
    """Return a rank's state without weights, as DeepSpeed and GPT-NeoX store it."""
    names = (
        "num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "make_vocab_size_divisible_by",
        "tokenizer_type", "model_parallel_size",
    )  # fmt: skip
    iteration = common["iteration"]
    schedule = common.get("lr_scheduler") or {}
    theirs = {key: schedule.get(field, schedule.get(key)) for field, (key, _) in SCHEDULE.items()}
    return {
        "module": None, "buffer_names": [], "optimizer": None, "param_shapes": None, "frozen_param_shapes": None,
        "shared_params": None, "frozen_param_fragments": None,
        "lr_scheduler": {**theirs, "num_iters": schedule.get("iteration", iteration)} if schedule else None,
        "data_sampler": None, "random_ltd": None, "sparse_tensor_module_names": set(), "skipped_steps": 0,
        "global_steps": common.get("global_steps", iteration), "global_samples": common.get("consumed_samples", 0),
        "dp_world_size": 1, "mp_world_size": ranks, "ds_config": {}, "ds_version": metadata.version("deepspeed"),
        "iteration": iteration, "args": {**{name: config.get(name) for name in names}, "padded_vocab_size": rows},
    }  # fmt: skip


def _yaml(config: Config) -> str:
    """Return the settings of the configuration that GPT-NeoX knows."""
    values = {
        parameter.name: value.value
        for parameter, value in config.items()
        if value.source.set_by_user and not parameter.ours and parameter.name not in ("load", "save")
    }
    return yaml.safe_dump(nested(values), sort_keys=False)
