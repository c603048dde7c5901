"""Small models of transformers with peft's adapters, and how far ours, imported from them, are from theirs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.convert.huggingface import importing
from neoxargs.convert.huggingface.adapters import PeftFolder
from neoxargs.convert.huggingface.exporting import choose_family, sizes_of
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process import mesh, setup
from tests.support.huggingface import SEQ, descent, imported, made, own_shard
from tests.support.loaded_engine import loaded_run
from tests.support.ranks import run_ranks

RANK, ALPHA, STEPS = 3, 5, 3


class Case(NamedTuple):
    """A model, and peft's names of the modules with adapters."""

    model: str
    modules: tuple[str, ...]
    options: dict[str, Any] = {}
    """Others of peft's LoraConfig."""


CASES = {
    "GPT-NeoX": Case("GPT-NeoX", ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")),
    "Llama": Case("Llama 3.1", ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
    "GPT-2": Case("GPT-2", ("c_attn", "attn.c_proj", "mlp.c_fc"), {"fan_in_fan_out": True}),
    "OLMo 2": Case("OLMo 2", ("k_proj", "up_proj", "down_proj"), {"use_rslora": True}),
}


def with_adapters(case: Case) -> Any:
    """Return peft's model with random adapters."""
    import peft

    options: Any = {"target_modules": list(case.modules), "task_type": "CAUSAL_LM"} | case.options
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, **options)
    with warnings.catch_warnings():  # peft 0.21 calls a function that transformers 5 has deprecated
        warnings.simplefilter("ignore", FutureWarning)
        model: Any = peft.get_peft_model(made(case.model), config)
    torch.manual_seed(4)
    with torch.no_grad():
        for weight in trained(model).values():
            weight.normal_(0, 0.1)
    return model.eval()


def trained(model: Any) -> dict[str, Any]:
    """Return the adapters' weights of peft's model, under the names that they have in its files."""
    return {
        name.replace(".default", ""): weight for name, weight in model.named_parameters() if weight.requires_grad
    }  # fmt: skip


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of four samples."""
    for seed in range(count):
        text = torch.randint(256, (4, SEQ + 1), generator=torch.Generator().manual_seed(seed))
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()


#: Of every layout: plain gradient descent, whose first step shows the gradients.
RATE = 0.1
TRAINING = descent(RATE, train_batch_size=4)


class Answer(NamedTuple):
    """Results of peft's model."""

    logits: Tensor
    """Of the first batch, (4, SEQ, vocabulary)."""
    losses: list[float]
    """Of STEPS steps of gradient descent."""
    gradients: dict[str, Tensor]
    """Of the first of them."""
    weights: dict[str, Tensor]
    """The adapters after the last of them."""


def answer(model: Any) -> Answer:
    [(ids, _)] = batches(1)
    logits = model(ids).logits.detach()
    weights, losses = trained(model), []
    gradients: dict[str, Tensor] = {}
    for ids, labels in batches(STEPS):
        loss: Any = F.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten())
        model.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))
        gradients = gradients or {name: weight.grad.clone() for name, weight in weights.items()}
        with torch.no_grad():
            for weight in weights.values():
                weight -= RATE * weight.grad
    return Answer(logits, losses, gradients, {name: weight.detach().clone() for name, weight in weights.items()})


def prepare(folder: Path, case: Case) -> Answer:
    """Import the model to `folder`/ours and its adapters to `folder`/lora; return peft's results."""
    model = with_adapters(case)
    model.save_pretrained(folder / "adapters")
    imported(folder, made(case.model))
    config = str(folder / "ours" / "model.yml")
    arguments = [str(folder / "adapters"), "--config", config, "--to", str(folder / "lora")]
    assert importing.main(arguments) == 0
    found = answer(model)
    torch.save(found._asdict(), folder / "answer.pt")
    return found


class Difference(NamedTuple):
    """The largest differences between peft's model and ours; None where a rank does not have the answer."""

    logits: float | None
    gradients: float
    """Of an element, relative to the largest element of its weight's gradient."""
    weights: float
    """After STEPS steps, relative to the largest element of the weight."""
    losses: float


def on_layout(folder: str, changes: dict[str, Any], process: setup.Process) -> Difference:
    """Compare the imported adapters on this rank of a layout. Runs in every rank, after `setup.start`."""
    theirs = Answer(**torch.load(f"{folder}/answer.pt"))
    run = loaded_run(Path(folder, "lora", "model.yml"), {**TRAINING, **changes}, process)
    built, config, here = run.built, run.config, run.mesh
    [(ids, _)] = batches(1)
    # Generation passes one token at a time, which cannot be sharded.
    logits = None if config.parallel.sequence_parallel else run.logits(ids)
    off = None if logits is None else float((logits - theirs.logits.flatten(0, 1)).abs().max())
    built.deepspeed.train()
    before, losses, gradients = held(built), [], 0.0
    wanted = in_our_form(folder, config, theirs.gradients)
    for number, batch in enumerate(batches(STEPS)):
        losses.append(built.train_step(_micro_batches(batch, here) if built.reads_data else None).loss)
        if not number:
            now = held(built)
            changed = {name: (before[name] - now[name]) / RATE for name in now}
            gradients = _worst(changed, wanted, built)
    weights = _worst(held(built), in_our_form(folder, config, theirs.weights), built)
    return Difference(off, gradients, weights, max(abs(a - b) for a, b in zip(losses, theirs.losses, strict=True)))


def in_our_form(folder: str, config: Config, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of the adapters' shapes under our names and in our form."""
    source = PeftFolder(Path(folder, "adapters"))
    source.tensors = theirs
    return source.weights(config, choose_family(config), sizes_of(config, 0))


def held(built: Any) -> dict[str, Tensor]:
    """Return this rank's shards of the trained weights, flat."""
    holdings = built.reporter.holdings
    return {name: value.clone() for name, value in holdings.values().items()}


def _worst(found: dict[str, Tensor], wanted: dict[str, Tensor], built: Any) -> float:
    """Return the largest relative difference."""
    worst = 0.0
    for name, shard in found.items():
        difference = shard - _own(name, wanted[name], built)
        worst = max(worst, float(difference.abs().max() / wanted[name].abs().max()))
    return worst


def _own(name: str, full: Tensor, built: Any) -> Tensor:
    """Return this rank's shard of a full tensor, flat."""
    weight = named_weights(built.deepspeed.module)[name]
    flat = own_shard(name, weight, full).flatten()
    begin, length = _piece(weight)
    return flat if begin is None else flat[begin : begin + length]


def _piece(weight: Any) -> tuple[int | None, int]:
    """Return where this rank's partition of a weight begins, and its length; None without ZeRO."""
    if hasattr(weight, "ds_id"):
        rank = weight._z3_optimizer._get_param_partition_rank(weight)
        size = weight._z3_optimizer.get_local_fp32_param(weight).numel()
        return rank * size, min(size, weight.ds_numel - rank * size)
    mapping = getattr(weight, "_hp_mapping", None)
    if mapping is None:
        return None, 0
    return mapping.lp_fragment_address.start, mapping.lp_fragment_address.numel


def _micro_batches(batch: tuple[Tensor, Tensor], here: mesh.Mesh) -> Iterator[MicroBatch]:
    ids, labels = batch
    for start in range(2 * here.data.rank, 4, 2 * here.data.size):
        yield MicroBatch(ids[start : start + 2], labels[start : start + 2])


LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"one process": {}},
    2: {"tp2": {"model_parallel_size": 2}, "tp2 sequence": {"model_parallel_size": 2, "sequence_parallel": True},
        "pp2": {"pipe_parallel_size": 2}, "pp2 recomputed": {"pipe_parallel_size": 2, "checkpoint_activations": True},
        "dp2": {}, "ZeRO-1": {"zero_optimization.stage": 1}, "ZeRO-2": {"zero_optimization.stage": 2},
        "ZeRO-3": {"zero_optimization.stage": 3},
        "ZeRO-3 recomputed": {"zero_optimization.stage": 3, "checkpoint_activations": True}},
    4: {"tp2 x pp2": {"model_parallel_size": 2, "pipe_parallel_size": 2}},
}  # fmt: skip


def on_ranks(folder: str, layouts: dict[str, dict[str, Any]]) -> dict[str, Difference]:
    """Return the differences of each layout on this rank."""
    process, found = setup.start("gloo", seed=1), {}
    for name, changes in layouts.items():
        found[name] = on_layout(folder, changes, process)
        mesh.destroy_groups()
    return found


def measured(folder: Path, case: Case) -> dict[str, Difference]:
    """Return the largest differences of all ranks, for each layout."""
    prepare(folder, case)
    largest: dict[str, Difference] = {}
    for world, layouts in LAYOUTS.items():
        ranks = run_ranks(on_ranks, world, str(folder), layouts, timeout=250)
        for layout in layouts:
            found = [rank[layout] for rank in ranks]
            logits = [one.logits for one in found if one.logits is not None]
            largest[layout] = Difference(max(logits, default=None), *map(max, list(zip(*found, strict=True))[1:]))
    return largest


def parity_rows(folder: Path) -> list[tuple[str, str, str]]:
    """Return what is compared, the reference and the largest differences, for each model. Takes about two minutes."""
    import peft

    rows = []
    for name, case in CASES.items():
        found = list(measured(folder / name.replace(" ", "-"), case).values())
        logits = max(one.logits for one in found if one.logits is not None)
        gradients, weights = max(one.gradients for one in found), max(one.weights for one in found)
        cell = f"logits {logits:.0e}, gradients {gradients:.0e}, weights {weights:.0e}"
        rows.append((f"LoRA of {name}: three steps", f"peft {peft.__version__}", cell))
    return rows
