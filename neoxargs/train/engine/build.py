"""Build DeepSpeed's engine from a configuration.

With `pipe_parallel_size` >= 1 it is the pipeline engine (ZeRO 0 and 1), with 0 the engine without a pipeline (ZeRO 0 to
3). steps.py runs training steps on both.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import PipelineModule
from deepspeed.utils import z3_leaf_module
from torch import nn

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.facts.gradient_sum import bucket_elements
from neoxargs.facts.model import rows_for
from neoxargs.facts.optimizers import accumulates_in_fp32, is_onebit, own_rates
from neoxargs.facts.vocab import too_few_rows
from neoxargs.train.deepspeed import buckets, expert_groups, half_precision, interface, patches, skip_steps, swap
from neoxargs.train.deepspeed.optimizer_view import before_step
from neoxargs.train.deepspeed.pipeline_module import send_within
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.engine import recompute, timing
from neoxargs.train.engine.compiled import check_gradients, compile_layers
from neoxargs.train.engine.frozen import freeze
from neoxargs.train.engine.non_finite import NonFinite
from neoxargs.train.engine.partial_gradients import sum_once_per_step
from neoxargs.train.engine.pipeline import pipeline
from neoxargs.train.engine.recurrent_kernels import use_kernels
from neoxargs.train.engine.reports import StepReporter
from neoxargs.train.engine.spikes import Spikes
from neoxargs.train.engine.steps import Pipelined, Plain, Trainer
from neoxargs.train.losses import objective
from neoxargs.train.losses.added_losses import AddedLosses
from neoxargs.train.losses.cross_entropy import Loss, Vocabulary
from neoxargs.train.losses.means import Means
from neoxargs.train.model import mup
from neoxargs.train.model.experts import layer as experts
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.lora import adapters
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.selective import Selective
from neoxargs.train.optim import build as optimizer
from neoxargs.train.optim import muon
from neoxargs.train.optim.lamb import Lamb
from neoxargs.train.optim.schedule import build_schedule
from neoxargs.train.parallel.layers import Ranks, VocabEmbedding, Weights
from neoxargs.train.parallel.widths import Widths
from neoxargs.train.process.mesh import Mesh, Mpu
from neoxargs.train.process.setup import suppress_output

#: DeepSpeed's names of the type.
FP32 = ("fp32", "float32", "float", "torch.float32", "torch.float")


def build(config: Config, json: dict[str, Any], vocabulary: Vocabulary, mesh: Mesh, trains: bool = True) -> Trainer:
    """Build this rank's part of the model with its optimizer and schedule. json: DeepSpeed's configuration.

    trains: False builds neither optimizer nor schedule. (ZeRO-3 needs both, because its optimizer holds the weights.)
    Raises Problems if the optimizer cannot be built.
    """
    patches.reduce_in_lists_on_cpu()
    patches.keep_adagrad()
    patches.restore_linear()
    json = interface.with_samples_of_all_ranks(swap.with_own_folders(json), mesh.context.size)
    weights, shared = _weights_and_shared(config, mesh)
    pipelined = config.parallel.pipe_parallel_size >= 1
    if pipelined and mesh.pipe.group is not None:  # before the engine is built, which sends too
        send_within(mesh.pipe.group)
    with suppress_output():
        module = (
            pipeline(config, vocabulary, weights, shared, mesh)
            if pipelined
            else _gpt(config, json, vocabulary, weights, shared, mesh)
        )
        freeze(module, config)  # before the engine is built, whose optimizer takes the trained weights
        device = torch.device(get_accelerator().current_device_name())
        compiles = trains and config.fusion.compile_layers  # text has all lengths, for each of which it would compile
        if compiles:
            compile_layers(module, device)
        settings = timing.settings(json, config)
        engine = (
            _training_engine(config, settings, module, mesh, weights.widths)
            if trains
            else _engine(settings, module, mesh)
        )
    interface.count_samples_once(engine, mesh.context.size)
    kernels = use_kernels(module, config, device) if trains else []
    if compiles:
        loss, samples = Loss.of(config, vocabulary, weights.ranks), engine.train_micro_batch_size_per_gpu()
        check_gradients(module, config, samples, loss, weights.ranks, device)
    timing.install(engine, json)
    if trains and not engine.zero_optimization():
        _patch_engine_without_zero(engine, mesh)
    reporter = StepReporter(config.logging, engine, mesh, shared)
    # The hook that is installed last runs first.
    spikes = None
    if trains and config.training.on_spike != "ignore":
        spikes = Spikes(config.training, engine, mesh, lambda: trainer.losses())
        if spikes.decides:
            skip_steps.skip_unless(engine, spikes.is_usual)
        else:
            before_step(engine, spikes.measure)
    if trains:  # after the reporter, which reads the sums
        sum_once_per_step(engine)
    by_token = config.training.loss_average == "tokens"
    watch = NonFinite(engine, mesh) if trains else None
    trainer = (Pipelined if pipelined else Plain)(engine, reporter, mesh, watch, shared.losses, by_token)
    trainer.kernels, trainer.spikes = kernels, spikes
    trainer.own_rates = own_rates(config) if trains else {}
    if trains and config.training.on_divergence == "skip":
        skip_steps.skip_diverged(engine, mesh, trainer.losses)
    return trainer


def alone(config: Config, vocabulary: Vocabulary, mesh: Mesh) -> GPT:
    """Return the model of one rank without an engine."""
    weights, shared = _weights_and_shared(config, mesh)
    model = _gpt(config, {}, vocabulary, weights, shared, mesh)
    freeze(model, config)
    return model


def _weights_and_shared(config: Config, mesh: Mesh) -> tuple[Weights, Shared]:
    ranks = Ranks.of(mesh, config.parallel.sequence_parallel)
    weights = Weights(config.training.seed, ranks, _init_device(config), widths=mup.widths(config))
    shared = Shared(
        recompute=Selective(config.recompute.checkpoint_activations == "selective"),
        losses=AddedLosses(experts.terms(config)),
        measures=Means(objective.measures(config)),
    )
    return weights, shared


def vocabulary(config: Config, tokens: int, eod: int | None = None) -> Vocabulary:
    """Return the vocabulary: number of tokens, rows after padding, end-of-document token.

    Raises Problems if `padded_vocab_size` is smaller than the tokenizer's vocabulary.
    """
    if problems := list(too_few_rows(config, tokens)):
        raise Problems(problems)
    return Vocabulary(tokens, rows_for(tokens, config), eod)


def _init_device(config: Config) -> torch.device:
    """Return the device that draws the initial weights."""
    name = "cpu" if config.init.use_cpu_initialization else get_accelerator().current_device_name()
    return torch.device(name)


def _gpt(
    config: Config, json: dict[str, Any], vocabulary: Vocabulary, weights: Weights, shared: Shared, mesh: Mesh
) -> GPT:
    if config.zero_optimization.stage < 3 and not config.init.use_cpu_initialization:
        # Not in fp32 and in host memory first, where the ranks of a host together may have no room for it.
        weights = replace(weights, place=weights.device, dtype=_weight_type(json))
    with zero3_partitioning(config, json, mesh):
        model = GPT(config, vocabulary, weights, shared)
        adapters.attach({"": model}, config, weights)
    model.checkpoint_layers = recompute.checkpoint_interval(config.recompute)
    model.reduces_gradients_once = config.zero_optimization.stage >= 2
    model.checkpoint = recompute.checkpoint_function(config, mesh, reentrant=config.zero_optimization.stage == 3)
    return model


def _weight_type(json: dict[str, Any]) -> torch.dtype:
    """Return the type to which DeepSpeed casts the weights."""
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return next((types[section] for section in types if json.get(section, {}).get("enabled")), torch.float32)


def zero3_partitioning(config: Config, json: dict[str, Any], mesh: Mesh) -> AbstractContextManager[Any]:
    """Return the context that partitions parameters while ZeRO-3 builds the model.

    No rank then ever holds more than one unpartitioned module.
    """
    if config.zero_optimization.stage < 3:
        return nullcontext()
    if torch.distributed.get_backend() == "gloo":
        patches.await_every_gather()
    partitioning: AbstractContextManager[Any] = deepspeed.zero.Init(
        data_parallel_group=mesh.data.group, config_dict_or_path=json, mpu=Mpu(mesh)
    )
    return partitioning


def _training_engine(config: Config, json: dict[str, Any], module: nn.Module, mesh: Mesh, widths: Widths | None) -> Any:
    """Return DeepSpeed's engine with optimizer and schedule; raise Problems if the optimizer cannot be built."""
    onebit = is_onebit(config.optimizer.type or "")
    # Not for 1-bit optimizers: they average the momentum of all ranks, so none may hold only a partition.
    if not onebit and _needs_zero1(json):
        json = {**json, "zero_optimization": {**json.get("zero_optimization", {}), "stage": 1}}
    json = _with_fp32_sums(config, json)
    in_buckets = not onebit and _reduces_in_buckets(json, mesh)
    # Weights of several pipeline stages, whose gradients these sum after the backward pass.
    tied = [weight for weight, _ in module.get_tied_weights_and_groups()] if isinstance(module, PipelineModule) else []
    groups = _parameter_groups(config, module, mesh, widths)
    if in_buckets:
        size = bucket_elements(config.zero_optimization.reduce_bucket_size, mesh.data.size)
        groups = buckets.divide_groups(groups, size, apart=tied)
    own_optimizer: Any = optimizer.build(config, groups, mesh.data)
    schedule = None if config.scheduler.type else lambda base: build_schedule(config, base)
    try:
        with own_optimizer.unpartitioned() if onebit else nullcontext():
            engine = _engine(
                json, module, mesh, optimizer=own_optimizer, model_parameters=groups, lr_scheduler=schedule
            )
    # What DeepSpeed and torch raise where an optimizer's C++ or CUDA code cannot be compiled or loaded.
    except (ValueError, ImportError, IndexError, RuntimeError) as error:
        if own_optimizer is None:  # DeepSpeed's own optimizer, whose compiled code does not exist for every device
            what = f"optimizer.type ({config.optimizer.type}) cannot be built on this machine: {error}"
            raise Problems(Problem(what, id="optimizer-not-available", about=("optimizer.type",))) from error
        raise
    if z3_leaf_module(module):
        name, most = "zero_optimization.stage3_module_granularity_threshold", module.ds_model_granularity
        what = f"{name} ({config.get(name):,}) is not below the whole model's weights per module ({most:,}): "
        what += "DeepSpeed would fetch it as one module, and its backward pass fails"
        hint = f"set a number below {most:,}, or 0"
        raise Problems(Problem(what, hint=hint, id="one-module-of-all-weights", about=(name,)))
    patches.sum_in_accumulation_type(engine.optimizer)
    patches.link_reordered(engine.optimizer)
    half_precision.grow_scale_after_step(engine.optimizer)
    half_precision.step_without_waiting(engine, mesh)
    if in_buckets:
        overlaps = json.get("zero_optimization", {}).get("overlap_comm") is not False
        buckets.BucketReduction(engine, mesh.data.size, overlaps, late=tied)
    if onebit:  # 1-bit optimizers average over the data parallel ranks themselves
        own_optimizer.attach(engine)
    if isinstance(own_optimizer, Lamb | muon.Orthogonal):
        own_optimizer.attach(engine, mesh)
    return engine


def _parameter_groups(
    config: Config, module: nn.Module, mesh: Mesh, widths: Widths | None
) -> optimizer.ParameterGroups:
    groups = optimizer.parameter_groups(module, config.regularization.weight_decay)
    if widths is not None:
        groups = mup.divide_groups(groups, named_weights(module), widths, mup.normalizes_gradients(config))
    if (config.optimizer.type or "").lower() == "muon":
        groups = muon.divide_groups(groups, named_weights(module))
    return optimizer.with_expert_groups(groups, expert_groups.group_name(mesh))


def _engine(json: dict[str, Any], module: nn.Module, mesh: Mesh, **training: Any) -> Any:
    """Return DeepSpeed's engine. training: optimizer and schedule, as `deepspeed.initialize` takes them."""
    # Without these two settings DeepSpeed refuses optimizers that it does not know under ZeRO, and any but its own
    # CPU Adam with an offloaded optimizer.
    settings = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, **json}
    # `deepspeed.initialize` refuses an mpu with a pipeline, and takes the groups from its topology.
    mpu = None if isinstance(module, PipelineModule) else Mpu(mesh)
    with expert_groups.known_to_deepspeed(module, mesh) as reduce_experts:
        engine = deepspeed.initialize(model=module, mpu=mpu, config=settings, **training)[0]
    interface.require(engine)
    reduce_experts(engine)
    return engine


def _patch_engine_without_zero(engine: interface.PlainEngine | interface.PipelineEngine, mesh: Mesh) -> None:
    """Apply patches and optimizations that are valid without ZeRO only."""
    patches.install(engine, mesh)
    for layer in engine.module.modules():
        if isinstance(layer, VocabEmbedding):  # not on a GPU: unique() there synchronizes with the host
            # Only without a wrapper, where the optimizer reads weight.grad itself.
            layer.adds_rows = engine.optimizer is engine.basic_optimizer and not layer.weight.is_cuda
    if mesh.data.size == 1:  # DeepSpeed would copy every gradient into a buffer and back without communicating
        interface.set_gradient_averaging(engine, False)


def _with_fp32_sums(config: Config, json: dict[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's configuration such that sums of gradients in fp32 are also reduced over the ranks in fp32.

    Otherwise DeepSpeed rounds them to bf16 first, and once more at each rank of a ring.
    """
    chosen, zero = json.get("data_types", {}).get("grad_accum_dtype"), json.get("zero_optimization", {})
    in_fp32 = accumulates_in_fp32(
        bf16=bool(json.get("bf16", {}).get("enabled")),
        micro_batches=json.get("gradient_accumulation_steps") or config.batch.gradient_accumulation_steps or 1,
        chosen=chosen,
        offloaded=_offloads(json),
        optimizer=config.optimizer.type or "",
    )
    if not in_fp32 or not zero.get("stage", 0):  # without ZeRO, DeepSpeed has one type for everything
        return json
    json = {**json, "data_types": {**json.get("data_types", {}), "grad_accum_dtype": chosen or "fp32"}}
    return {**json, "communication_data_type": json.get("communication_data_type") or "fp32"}


def _reduces_in_buckets(json: dict[str, Any], mesh: Mesh) -> bool:
    """Whether DeepSpeed builds its optimizer for bf16 with sums in fp32, and these are also reduced in fp32.

    Like `gradient_sum` of a configuration. json: with the types of `_with_fp32_sums`.
    """
    in_bf16, stage = json.get("bf16", {}).get("enabled"), json.get("zero_optimization", {}).get("stage", 0)
    types = json.get("data_types", {}).get("grad_accum_dtype"), json.get("communication_data_type")
    in_fp32 = all(name in FP32 for name in types)
    return bool(in_bf16 and stage == 1 and in_fp32 and not _offloads(json) and mesh.data.size > 1)


def _offloads(json: dict[str, Any]) -> bool:
    offload = json.get("zero_optimization", {}).get("offload_optimizer") or {}
    return bool(offload.get("device", "none") != "none")


def _needs_zero1(json: dict[str, Any]) -> bool:
    """Whether half precision with `stage: 0` must run as ZeRO-1, because DeepSpeed's other optimizers do not work.

    In the plain engine, DeepSpeed's optimizer without ZeRO unscales and checks every weight by itself and waits for the
    GPU each time; in a pipeline, it ignores the loss scale of fp16. For bf16 in a pipeline DeepSpeed partitions the
    optimizer state anyway. As stage 1 it can also be resumed, and gradients can be accumulated in fp32.
    """
    half = any(json.get(section, {}).get("enabled") for section in ("bf16", "fp16"))
    return half and not json.get("zero_optimization", {}).get("stage", 0)
