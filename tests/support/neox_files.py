"""Write checkpoints in GPT-NeoX's formats of several years, in the documented layout and with torch.save alone.

Nothing of `neoxargs/files/neox_checkpoint` is used, so that reading what this writes tests that package.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neoxargs.config.config import Config

#: Our modules in a layer -> theirs. The MLP's names are of September 2024 and later.
NAMES = {
    "input_layernorm": "input_layernorm", "attention.query_key_value": "attention.query_key_value",
    "attention.dense": "attention.dense", "post_attention_layernorm": "post_attention_layernorm",
    "mlp.dense_h_to_4h": "mlp.linear1", "mlp.dense_4h_to_h": "mlp.linear2",
}  # fmt: skip
#: The same of Transformer Engine's MultiheadAttention and LayerNormMLP.
TE_NAMES = {
    "attention.query_key_value": "attention.qkv.", "attention.dense": "attention.proj.",
    "post_attention_layernorm": "mlp.layer_norm_", "mlp.dense_h_to_4h": "mlp.fc1_", "mlp.dense_4h_to_h": "mlp.fc2_",
}  # fmt: skip
COLUMNS = (
    "attention.proj.weight", "mlp.fc2_weight",
    "attention.dense.weight", "mlp.linear2.weight", "mlp.dense_4h_to_h.weight", "mlp.w2.weight",
)  # fmt: skip
ROW_BIASES = ("attention.proj.bias", "mlp.fc2_bias", "attention.dense.bias", "mlp.linear2.bias",
              "mlp.dense_4h_to_h.bias")  # fmt: skip
ROWS = ("word_embeddings.weight", "final_linear.weight", "mlp.linear1", "mlp.dense_h_to_4h", "mlp.w1", "mlp.w3",
        "mlp.fc1_")  # fmt: skip
NORMS = ("layernorm", "norm.")


#: A run that continues a small Pythia.
YAML = """\
num_layers: 2
hidden_size: 32
num_attention_heads: 4
seq_length: 16
max_position_embeddings: 16
gpt_j_residual: true
pos_emb: rotary
no_weight_tying: true
tokenizer_type: ByteLevelTokenizer
make_vocab_size_divisible_by: 64
train_micro_batch_size_per_gpu: 8
train_iters: 30
lr_decay_iters: 30
warmup: 0.0
min_lr: 0.0
lr_decay_style: cosine
optimizer: {type: Adam, params: {lr: 0.01}}
dialect: neox-2026
load: theirs
"""


@dataclass
class Run:
    """A GPT-NeoX run to write a checkpoint of.

    weights, moments: full tensors by deepy's names, the moments for each state of the optimizer.
    order: of the rows of query_key_value; `names`: new, legacy (before September 2024), llama (w1, w2, w3) or te
    (Transformer Engine's modules and norms).
    optimizer: none, fp32, fp16, fp16-unfused (DeepSpeed's wrapper of other optimizers than Adam), zero1, zero1-2021 or
    bf16. counter: key of the number of steps; `k`, of madgrad_wd, is counted once for all weights.
    """

    weights: Mapping[str, Tensor]
    heads: int
    groups: int
    moments: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    tensor: int = 1
    pipe: int = 1
    data: int = 1
    sequential: bool = False
    order: str = "concatenated"
    names: str = "new"
    gated: bool = False
    rms: bool = False
    parallel_residual: bool = False
    row_output: bool = False
    optimizer: str = "none"
    counter: str = "step"
    iteration: int = 3
    state: dict[str, Any] = field(default_factory=dict)


def run_of(config: Config, weights: Mapping[str, Tensor], **changes: Any) -> Run:
    """Return the run of today's GPT-NeoX that has these weights, with random moments."""
    generator, shape = torch.Generator().manual_seed(1), config.shape
    moments = {
        state: {key: torch.rand(value.shape, generator=generator) for key, value in weights.items()}
        for state in ("exp_avg", "exp_avg_sq")
    }
    values: dict[str, Any] = {
        "moments": moments, "gated": config.mlp.activation == "swiglu", "rms": config.norm.norm == "rmsnorm",
        "order": "concatenated" if shape.num_kv_heads != shape.num_attention_heads else "per_head",
        "parallel_residual": config.attention.gpt_j_residual,
    }  # fmt: skip
    return Run(weights, shape.num_attention_heads, shape.num_kv_heads, **values | changes)


def write(run: Run, folder: Path) -> Path:
    """Write the checkpoint to a folder and return it."""
    folder.mkdir(parents=True)
    ranks = [_layers(run, rank, run.weights, "weights") for rank in range(run.tensor)]
    stages = _stages(sorted(ranks[0]), run.pipe)
    if not run.sequential:
        for rank, layers in enumerate(ranks):
            for number, tensors in layers.items():
                torch.save(OrderedDict(tensors), folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
    for stage, numbers in enumerate(stages):
        for rank, layers in enumerate(ranks):
            number = stage * run.tensor + rank
            here = {(layer, name): value for layer in numbers for name, value in layers[layer].items()}
            state = _state(run, here)
            if run.sequential:
                state["module"] = {f"sequential.{layer}.{name}": value for (layer, name), value in here.items()}
            state |= _optimizer(run, folder, number, here, rank)
            torch.save(state, folder / f"mp_rank_{number:02d}_model_states.pt")
    return folder


def _stages(numbers: list[int], pipe: int) -> list[list[int]]:
    share = math.ceil(len(numbers) / pipe)
    return [numbers[stage * share : (stage + 1) * share] for stage in range(pipe)]


def _state(run: Run, here: Mapping[tuple[int, str], Tensor]) -> dict[str, Any]:
    state: dict[str, Any] = {
        "module": None, "optimizer": None, "iteration": run.iteration, "global_steps": run.iteration,
        "global_samples": 8 * run.iteration, "skipped_steps": 0, "dp_world_size": run.data, "mp_world_size": run.tensor,
        "args": {"num_attention_heads": run.heads, "model_parallel_size": run.tensor},
        "lr_scheduler": {
            "start_lr": 0.01, "warmup_iter": 0.0, "num_iters": run.iteration, "decay_style": "cosine", "end_iter": 30,
            "min_lr": 0.0,
        },
        "torch_rng_state": torch.get_rng_state(),
    }  # fmt: skip
    if run.names == "new":
        state |= {"ds_version": "0.19.6"}
        state |= {"param_shapes": _shapes(run, here) if run.optimizer in ("zero1", "bf16") else None}
    return state | run.state


def _layers(run: Run, rank: int, tensors: Mapping[str, Tensor], kind: str) -> dict[int, dict[str, Tensor]]:
    """Return one rank's layers. kind: weights, or states, of which every rank has those of a row-parallel bias."""
    depth = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))
    layers: dict[int, dict[str, Tensor]] = {}
    for name, full in tensors.items():
        for number, theirs, value in _theirs(run, name, full, depth):
            layers.setdefault(number, {})[theirs] = _slice(run, theirs, value, rank, kind)
    return dict(sorted(layers.items()))


def _theirs(run: Run, name: str, full: Tensor, depth: int) -> Iterator[tuple[int, str, Tensor]]:
    kind = "scale" if run.rms and run.names != "te" else name.rpartition(".")[2]
    wrapped = "norm." if run.names == "te" else ""
    if name == "embedding.word_embeddings.weight":
        yield 0, "word_embeddings.weight", full
    elif name == "positions.table":
        yield 0, "position_embeddings.weight", full
    elif name.startswith("final_norm"):
        yield depth + 3, f"norm.{wrapped}{kind}", full
    elif name == "output.weight":
        yield depth + 4, "final_linear.weight", full
    else:
        _, layer, inner = name.split(".", 2)
        module, _, last = inner.rpartition(".")
        if run.names == "te":
            gate_first = run.gated and module == "mlp.dense_h_to_4h"
            theirs = TE_NAMES.get(module, f"{module}.norm.") + last
            yield int(layer) + 2, theirs, torch.cat(full.chunk(2)[::-1]) if gate_first else full
            return
        theirs = NAMES[module]
        if run.names != "new":
            theirs = module
        if run.names == "llama" and module == "mlp.dense_h_to_4h":
            value, gate = full.chunk(2)
            yield int(layer) + 2, "mlp.w1.weight", gate
            yield int(layer) + 2, "mlp.w3.weight", value
        else:
            theirs = "mlp.w2" if run.names == "llama" and module == "mlp.dense_4h_to_h" else theirs
            yield int(layer) + 2, f"{theirs}.{kind if 'layernorm' in module else last}", full


def _slice(run: Run, name: str, full: Tensor, rank: int, kind: str) -> Tensor:
    if "query_key_value" in name:
        return _heads(run, full, rank)
    if "attention.qkv" in name:  # by group of heads, as in deepy
        return full.chunk(run.tensor)[rank].clone()
    if name in ROW_BIASES:
        shared = run.parallel_residual and kind == "weights"
        return full / run.tensor if shared else full.clone()
    if name in COLUMNS or (name == "final_linear.weight" and run.row_output):
        return full.chunk(run.tensor, 1)[rank].clone()
    if name.startswith(ROWS):
        halves = 2 if run.gated and any(part in name for part in ("linear1", "dense_h_to_4h", "fc1_")) else 1
        return torch.cat([half.chunk(run.tensor)[rank] for half in full.chunk(halves)])
    return full.clone()


def _heads(run: Run, full: Tensor, rank: int) -> Tensor:
    """Reorder rows from deepy's order (by group: queries, key, value) to GPT-NeoX's."""
    queries, width = run.heads // run.groups, full.shape[0] // (run.heads + 2 * run.groups)
    own = full.view(run.groups, queries + 2, width, *full.shape[1:]).chunk(run.tensor)[rank]
    query, key, value = (part.flatten(0, 2) for part in torch.split(own, [queries, 1, 1], dim=1))
    if run.order == "concatenated":
        return torch.cat([query, key, value])
    heads = run.heads // run.tensor
    by_head = [part.view(heads, -1, *full.shape[1:]) for part in (query, key, value)]
    return torch.cat(by_head, dim=1).flatten(0, 1)


def _decays(name: str) -> bool:
    if name.startswith(("mlp.fc", "mlp.layer_norm_")):  # GPT-NeoX finds only `bias` and the parameters of norms
        return True
    return not name.endswith("bias") and not any(norm in name for norm in NORMS)


def _groups(here: Mapping[tuple[int, str], Any]) -> list[list[tuple[int, str]]]:
    return [[key for key in here if _decays(key[1]) == wanted] for wanted in (True, False)]


def _shapes(run: Run, here: Mapping[tuple[int, str], Tensor]) -> list[OrderedDict[str, torch.Size]]:
    prefix = "sequential." if run.sequential else ""
    return [
        OrderedDict((f"{prefix}{layer}.{name}", here[layer, name].shape) for layer, name in group)
        for group in _groups(here)
    ]


def _optimizer(
    run: Run, folder: Path, number: int, here: Mapping[tuple[int, str], Tensor], rank: int
) -> dict[str, Any]:
    if run.optimizer == "none":
        return {}
    states = {}
    for state, tensors in run.moments.items():
        layers = _layers(run, rank, tensors, "states")
        states[state] = {(layer, name): layers[layer][name] for layer, name in here}
    groups = _groups(here)
    if run.optimizer in ("fp32", "fp16-unfused"):
        keys = [key for group in groups for key in group]
        # DeepSpeed's fused Adam counts a group's steps in the state of its last weight only.
        last = {len(groups[0]) - 1, len(keys) - 1}
        per_weight: dict[Any, Any] = {
            i: {run.counter: run.iteration * (i in last), **{name: values[key] for name, values in states.items()}}
            for i, key in enumerate(keys)
        }
        if run.counter == "k":
            per_weight = {i: {n: v for n, v in state.items() if n != "k"} for i, state in per_weight.items()}
            per_weight["k"] = torch.tensor([run.iteration])
        cut = len(groups[0])
        inner = {"state": per_weight, "param_groups": [
            {"lr": 0.1, "params": list(range(cut))}, {"lr": 0.1, "params": list(range(cut, len(keys)))},
        ]}  # fmt: skip
        if run.optimizer == "fp32":
            return {"optimizer": inner}
        copies = [[here[key].float() for key in group] for group in groups]
        return {"optimizer": {"fp32_groups": copies, "optimizer_state_dict": inner, "cur_scale": 4096.0}}
    flat = [torch.cat([here[key].float().flatten() for key in group]) for group in groups]
    flat_states = [
        {name: torch.cat([values[key].flatten() for key in group]) for name, values in states.items()}
        for group in groups
    ]
    if run.optimizer == "fp16":
        inner = {
            "state": {i: {"step": run.iteration, **state} for i, state in enumerate(flat_states)},
            "param_groups": [{"params": [0]}, {"params": [1]}],
        }
        scale = {"cur_scale": 4096.0, "cur_iter": run.iteration, "last_overflow_iter": 1, "dynamic_loss_scale": True}
        return {"optimizer": {"fp32_groups_flat": flat, "optimizer_state_dict": inner, **scale}}
    for part in range(run.data):
        outer = (_partition_2021 if run.optimizer == "zero1-2021" else _partition)(run, flat, flat_states, part)
        prefix = "bf16_" if run.optimizer == "bf16" else ""
        separator = "" if run.optimizer == "zero1-2021" else "_"
        file = f"{prefix}zero_pp_rank_{part}_mp_rank_{number:02d}{separator}optim_states.pt"
        torch.save({"optimizer_state_dict": outer}, folder / file)
    return {}


def _partition(run: Run, flat: list[Tensor], states: list[dict[str, Tensor]], part: int) -> dict[str, Any]:
    """Return the format of DeepSpeed 0.8 and later: each rank has one contiguous part, padded in the states."""
    masters, base = [], {}
    for group, vector in enumerate(flat):
        size = math.ceil(len(vector) / (2 * run.data)) * 2
        cut = slice(part * size, (part + 1) * size)
        padded = {
            name: torch.nn.functional.pad(v, (0, size * run.data - len(v)))[cut] for name, v in states[group].items()
        }
        padding = run.optimizer == "bf16"
        masters.append(
            torch.nn.functional.pad(vector, (0, size * run.data - len(vector)))[cut] if padding else vector[cut]
        )
        base[group] = {"step": run.iteration, **{name: value.clone() for name, value in padded.items()}}
    return {
        "single_partition_of_fp32_groups": [master.clone() for master in masters],
        "base_optimizer_state": {"state": base, "param_groups": [{"params": [0]}, {"params": [1]}]},
        "partition_count": [run.data] * 2,
    }


def _partition_2021(run: Run, flat: list[Tensor], states: list[dict[str, Tensor]], part: int) -> dict[str, Any]:
    """Return the format of DeepSpeed 0.3: intervals of sub-partitions, of which every rank has one."""
    masters: list[list[Tensor]] = []
    base: list[list[dict[str, Any]]] = []
    for group, vector in enumerate(flat):
        size = math.ceil(len(vector) / (2 * run.data))
        masters.append([])
        base.append([])
        for interval in range(2):
            cut = slice((interval * run.data + part) * size, (interval * run.data + part + 1) * size)
            masters[-1].append(vector[cut].clone())
            base[-1].append({"step": run.iteration, **{name: v[cut].clone() for name, v in states[group].items()}})
    return {"zero_stage": 1, "local_sub_partitions_of_fp32_groups": masters, "base_optimizer_state": base}


def weights() -> dict[str, Any]:
    """Return weights of ones for the model of `YAML`, by deepy's names."""
    shapes = {"embedding.word_embeddings.weight": (320, 32), "final_norm.weight": (32,), "final_norm.bias": (32,)}
    shapes["output.weight"] = (320, 32)
    for layer in range(2):
        modules = {"attention.query_key_value": (96, 32), "attention.dense": (32, 32), "mlp.dense_h_to_4h": (128, 32)}
        modules["mlp.dense_4h_to_h"] = (32, 128)
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in modules.items()}
        shapes |= {f"layers.{layer}.{name}.bias": shape[:1] for name, shape in modules.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {f"layers.{layer}.{norm}.{kind}": (32,) for kind in ("weight", "bias")}
    return {name: torch.ones(shape) for name, shape in shapes.items()}
