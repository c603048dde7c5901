"""From a configuration to an engine of DeepSpeed's: with `pipe_parallel_size` >= 1 its pipeline engine, its plain one
(ZeRO 0-3) with 0. What they do in a step: steps.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.optimizer import is_onebit
from neoxargs.sizes.vocab import padded_vocab_size
from neoxargs.train.deepspeed import patches, swap
from neoxargs.train.engine import recompute, timing
from neoxargs.train.engine.reports import StepReporter
from neoxargs.train.engine.steps import Pipelined, Plain
from neoxargs.train.kernels.cross_entropy import Loss, Vocabulary
from neoxargs.train.model import mup
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.widths import Widths
from neoxargs.train.optim import build as optimizer
from neoxargs.train.optim.lamb import Lamb
from neoxargs.train.optim.schedule import build_schedule
from neoxargs.train.parallel.make import Make, VocabEmbedding
from neoxargs.train.parallel.pipeline import count_weights, layers, named_weights, tie_relative_bias
from neoxargs.train.process.mesh import Mesh, Mpu
from neoxargs.train.process.setup import suppress_output


def build(
    config: Config, json: dict[str, Any], vocabulary: Vocabulary, mesh: Mesh, trains: bool = True
) -> Pipelined | Plain:
    """The model of `config` on this rank, with its optimizer and schedule. json: DeepSpeed's configuration.

    trains: False for a model that only computes and needs neither. (Under ZeRO-3 the optimizer has the weights.)
    """
    json = swap.with_own_folders(json)
    make = Make(
        config.training.seed,
        mesh.tensor,
        _draws_weights(config),
        sequence_parallel=config.parallel.sequence_parallel,
        widths=mup.widths(config),
    )
    pipelined = config.parallel.pipe_parallel_size >= 1
    with suppress_output():
        module = (
            _pipeline(config, vocabulary, make, mesh) if pipelined else _plain(config, json, vocabulary, make, mesh)
        )
        settings = timing.settings(json, config)
        engine = _trained(config, settings, module, mesh, make.widths) if trains else _engine(settings, module, mesh)
    timing.install(engine, json, pipelined)
    if trains and not engine.zero_optimization():
        _correct(engine, mesh)
    reporter = StepReporter(config.logging, config.batch.train_batch_size, engine, mesh)
    return Pipelined(engine, reporter) if pipelined else Plain(engine, reporter, mesh)


def vocabulary(config: Config, tokens: int, eod: int | None = None) -> Vocabulary:
    """The tokenizer's tokens, the rows that hold them, and the token that ends a document."""
    padded: int | None = config.embedding.__dict__.get("padded_vocab_size")
    if padded is None:
        padded = padded_vocab_size(
            tokens, config.embedding.make_vocab_size_divisible_by, config.parallel.model_parallel_size
        )
    if padded < tokens:
        what = f"padded_vocab_size ({padded}) is smaller than the tokenizer's vocabulary ({tokens})"
        hint = "remove padded_vocab_size; it is computed from the tokenizer"
        raise Problems(Problem(what, hint=hint, id="padded-vocab-too-small", about=("padded_vocab_size",)))
    return Vocabulary(tokens, padded, eod)


def _draws_weights(config: Config) -> torch.device:
    """Which device draws the initial weights."""
    name = "cpu" if config.init.use_cpu_initialization else get_accelerator().current_device_name()
    return torch.device(name)


def _pipeline(config: Config, vocabulary: Vocabulary, make: Make, mesh: Mesh) -> PipelineModule:
    topology = PipeModelDataParallelTopology(num_pp=mesh.pipe.size, num_mp=mesh.tensor.size, num_dp=mesh.data.size)
    module = _PipelineModule(
        layers=layers(config, vocabulary, make),
        topology=topology,
        loss_fn=Loss.of(config, vocabulary, make),
        partition_method=config.parallel.pipe_partition_method,
        activation_checkpoint_interval=recompute.checkpoint_interval(config.recompute),
        activation_checkpoint_func=recompute.checkpoint_function(config, mesh, reentrant=False),
        # Not the embedding: no gradient reaches its integers, and DeepSpeed's own function then has none for weights.
        checkpointable_layers=["PositionEmbedding", "TransformerBlock", "FinalNorm"],
    )
    tie_relative_bias(module)
    return module


class _PipelineModule(PipelineModule):  # type: ignore[misc]
    """For `pipe_partition_method: parameters` it would draw the weights of all layers first, to count them."""

    def _count_layer_params(self) -> list[int]:
        return count_weights(self._layer_specs)


def _plain(config: Config, json: dict[str, Any], vocabulary: Vocabulary, make: Make, mesh: Mesh) -> GPT:
    with _partitioned_from_the_start(config, json, mesh):
        model = GPT(config, vocabulary, make)
    model.checkpoint_layers = recompute.checkpoint_interval(config.recompute)
    model.reduces_gradients_once = config.zero_optimization.stage >= 2
    model.checkpoint = recompute.checkpoint_function(config, mesh, reentrant=config.zero_optimization.stage == 3)
    return model


def _partitioned_from_the_start(config: Config, json: dict[str, Any], mesh: Mesh) -> AbstractContextManager[Any]:
    """ZeRO-3: no rank ever holds more than one layer whole, not even while the model is built."""
    if config.zero_optimization.stage < 3:
        return nullcontext()
    return deepspeed.zero.Init(  # type: ignore[no-any-return]
        data_parallel_group=mesh.data.group, config_dict_or_path=json, mpu=Mpu(mesh)
    )


def _trained(config: Config, json: dict[str, Any], module: nn.Module, mesh: Mesh, widths: Widths | None) -> Any:
    """DeepSpeed's engine with optimizer and schedule; raises Problems where there is no such optimizer."""
    groups = optimizer.parameter_groups(module, config.regularization.weight_decay)
    if widths is not None:
        groups = mup.divide_groups(groups, named_weights(module), widths, mup.normalizes_gradients(config))
    ours = optimizer.build(config, groups, mesh.data)
    onebit = is_onebit(config.optimizer.type or "")
    if ours is not None and not onebit and _shares_out_anyway(json, isinstance(module, PipelineModule)):
        json = {**json, "zero_optimization": {**json.get("zero_optimization", {}), "stage": 1}}
    schedule = None if config.scheduler.type else lambda base: build_schedule(config, base)
    try:
        with ours.unpartitioned() if onebit else nullcontext():  # type: ignore[union-attr]
            engine = _engine(json, module, mesh, optimizer=ours, model_parameters=groups, lr_scheduler=schedule)
    except (ValueError, ImportError, IndexError, RuntimeError) as error:
        if ours is None:  # DeepSpeed builds it from compiled code that is not there for every device
            what = f"optimizer.type ({config.optimizer.type}) cannot be built on this machine: {error}"
            raise Problems(Problem(what, id="optimizer-not-available", about=("optimizer.type",))) from error
        raise
    if onebit:  # it averages over the data parallel ranks itself
        ours.attach(engine)  # type: ignore[union-attr]
    if isinstance(ours, Lamb):
        ours.attach(engine, mesh)
    return engine


def _engine(json: dict[str, Any], module: nn.Module, mesh: Mesh, **training: Any) -> Any:
    """DeepSpeed's; training: optimizer and schedule. Our optimizers may be used with ZeRO."""
    settings = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, **json}
    mpu = None if isinstance(module, PipelineModule) else Mpu(mesh)
    return deepspeed.initialize(model=module, mpu=mpu, config=settings, **training)[0]


def _correct(engine: Any, mesh: Mesh) -> None:
    """Without ZeRO."""
    patches.install(engine, mesh)
    for layer in engine.module.modules():
        if isinstance(layer, VocabEmbedding):  # finding the rows would make a GPU wait
            layer.adds_rows = engine.optimizer is engine.basic_optimizer and not layer.weight.is_cuda
    if mesh.data.size == 1:  # DeepSpeed would copy every gradient into a buffer and back to send it nowhere
        engine.pipeline_enable_backward_allreduce = engine.enable_backward_allreduce = False


def _shares_out_anyway(json: dict[str, Any], pipelined: bool) -> bool:
    """Half precision without ZeRO, where DeepSpeed has nothing that works but what divides its state as ZeRO-1 does.

    For bf16 in a pipeline it takes such an optimizer anyway; called stage 1, that one can also be resumed, and accept
    gradients summed in fp32. In fp16 the pipeline engine forgets the loss scale without ZeRO.
    """
    half = any(json.get(section, {}).get("enabled") for section in ("bf16", "fp16"))
    if not half or json.get("zero_optimization", {}).get("stage", 0):
        return False
    return pipelined or json.get("data_types", {}).get("grad_accum_dtype") == "fp32"
