"""The model inside DeepSpeed: its pipeline engine when `pipe_parallel_size` >= 1, its plain one (ZeRO 0-3) when 0.

Both train on the same micro batches `(tokens, labels)`, each (batch, seq), and mean the same by a loss: the mean
over micro batches and data parallel ranks, known to every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import deepspeed
import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from neoxargs.launch.vocabulary import padded_vocab_size
from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.optimizer import is_onebit
from neoxargs.train import breakdown, corrections, optimizer, recompute
from neoxargs.train.mesh import Mesh, Mpu
from neoxargs.train.model import bias, mup
from neoxargs.train.model.gpt import GPT, layers, sizes
from neoxargs.train.model.layers import Make, VocabEmbedding
from neoxargs.train.model.loss import Loss, Vocabulary
from neoxargs.train.names import named
from neoxargs.train.schedule import Curve, Schedule
from neoxargs.train.setup import quiet
from neoxargs.train.watch import Watch

#: (tokens, labels), each (batch, seq).
MicroBatch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Result:
    """What one step gives; equal on every rank."""

    loss: float
    grad_norm: float | None
    skipped: bool
    """fp16 found an overflow; the weights did not change."""
    reports: dict[str, float] = field(default_factory=dict)
    """What was asked for besides: series name -> value (see watch.py)."""


def build(config: Config, json: dict[str, Any], vocabulary: Vocabulary, mesh: Mesh) -> Pipelined | Plain:
    """The model of `config` on this rank, with its optimizer and schedule. json: DeepSpeed's configuration."""
    make = Make(
        config.training.seed,
        mesh.tensor,
        _draws_weights(config),
        sequence_parallel=config.parallel.sequence_parallel,
        widths=mup.widths(config),
    )
    pipelined = config.parallel.pipe_parallel_size >= 1
    with quiet():
        module = (
            _pipeline(config, vocabulary, make, mesh) if pipelined else _plain(config, json, vocabulary, make, mesh)
        )
        engine = _initialize(config, json, module, mesh, make.widths)
    breakdown.install(engine, json, pipelined)
    if not engine.zero_optimization():
        corrections.install(engine, mesh)
        for layer in module.modules():
            if isinstance(layer, VocabEmbedding):  # finding the rows would make a GPU wait
                layer.adds_rows = engine.optimizer is engine.basic_optimizer and not layer.weight.is_cuda
        if mesh.data.size == 1:  # DeepSpeed would copy every gradient into a buffer and back to send it nowhere
            engine.pipeline_enable_backward_allreduce = engine.enable_backward_allreduce = False
    watch = Watch(config.logging, config.batch.train_batch_size, engine, mesh)
    return Pipelined(engine, watch) if pipelined else Plain(engine, watch, mesh)


def vocabulary(config: Config, tokens: int, eod: int | None = None) -> Vocabulary:
    """The tokenizer's tokens, the rows that hold them, and the token that ends a document."""
    padded: int | None = config.embedding.__dict__.get("padded_vocab_size")
    if padded is None:
        padded = padded_vocab_size(
            tokens, config.embedding.make_vocab_size_divisible_by, config.parallel.model_parallel_size
        )
    if padded < tokens:
        what = f"padded_vocab_size ({padded}) is smaller than the tokenizer's vocabulary ({tokens})"
        raise Problems([Problem(what, hint="leave padded_vocab_size out; it is computed")])
    return Vocabulary(tokens, padded, eod)


class Pipelined:
    """The model cut into stages, one micro batch behind the other through all of them (1F1B)."""

    def __init__(self, engine: Any, watch: Watch) -> None:
        self.deepspeed, self.watch = engine, watch

    @property
    def reads_data(self) -> bool:
        return bool(self.deepspeed.is_first_stage() or self.deepspeed.is_last_stage())

    def learning_rate(self) -> float:
        return _learning_rate(self.deepspeed)

    def train_step(self, batches: Iterator[MicroBatch] | None) -> Result:
        return _result(self.deepspeed, self.deepspeed.train_batch(batches), self.watch)

    def evaluate(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        """Mean loss over `count` batches of `train_batch_size` samples."""
        micro_batches = count * self.deepspeed.gradient_accumulation_steps()
        loss = self.deepspeed.eval_batch(batches, num_micro_batches=micro_batches)
        return float(loss)


class Plain:
    """The whole model on every tensor parallel group."""

    reads_data = True

    def __init__(self, engine: Any, watch: Watch, mesh: Mesh) -> None:
        self.deepspeed, self.watch, self.mesh = engine, watch, mesh

    def learning_rate(self) -> float:
        return _learning_rate(self.deepspeed)

    def train_step(self, batches: Iterator[MicroBatch] | None) -> Result:
        assert batches is not None
        self.deepspeed.train()
        losses = []
        for _ in range(self.deepspeed.gradient_accumulation_steps()):
            loss = self._loss(next(batches))
            self.deepspeed.backward(loss)
            self.deepspeed.step()
            losses.append(loss.detach())
        result = _result(self.deepspeed, self._mean(losses), self.watch)
        breakdown.record(self.deepspeed, result.loss)
        return result

    @torch.no_grad()
    def evaluate(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        """Mean loss over `count` batches of `train_batch_size` samples."""
        assert batches is not None
        self.deepspeed.eval()
        micro_batches = count * self.deepspeed.gradient_accumulation_steps()
        return float(self._mean([self._loss(next(batches)) for _ in range(micro_batches)]))

    def _loss(self, batch: MicroBatch) -> Tensor:
        tokens, labels = (tensor.to(self.deepspeed.device, non_blocking=True) for tensor in batch)
        return self.deepspeed(tokens, labels)  # type: ignore[no-any-return]

    def _mean(self, losses: list[Tensor]) -> Tensor:
        mean = torch.stack(losses).mean()
        if self.mesh.data.size > 1:
            torch.distributed.all_reduce(mean, group=self.mesh.data.group)
            mean /= self.mesh.data.size
        return mean


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
        activation_checkpoint_interval=recompute.interval(config.recompute),
        activation_checkpoint_func=recompute.function(config, mesh, reentrant=False),
        # Not the embedding: no gradient reaches its integers, and DeepSpeed's own function then has none for weights.
        checkpointable_layers=["PositionEmbedding", "TransformerBlock", "FinalNorm"],
    )
    bias.tie(module)
    return module


class _PipelineModule(PipelineModule):  # type: ignore[misc]
    """For `pipe_partition_method: parameters` it would draw the weights of all layers first, to count them."""

    def _count_layer_params(self) -> list[int]:
        return sizes(self._layer_specs)


def _plain(config: Config, json: dict[str, Any], vocabulary: Vocabulary, make: Make, mesh: Mesh) -> GPT:
    with _partitioned_from_the_start(config, json, mesh):
        model = GPT(config, vocabulary, make)
    model.checkpoint_layers = recompute.interval(config.recompute)
    model.gradients_come_once = config.zero_optimization.stage >= 2
    model.checkpoint = recompute.function(config, mesh, reentrant=config.zero_optimization.stage == 3)
    return model


def _partitioned_from_the_start(config: Config, json: dict[str, Any], mesh: Mesh) -> AbstractContextManager[Any]:
    """ZeRO-3: no rank ever holds more than one layer whole, not even while the model is built."""
    if config.zero_optimization.stage < 3:
        return nullcontext()
    return deepspeed.zero.Init(  # type: ignore[no-any-return]
        data_parallel_group=mesh.data.group, config_dict_or_path=json, mpu=Mpu(mesh)
    )


def _initialize(config: Config, json: dict[str, Any], module: nn.Module, mesh: Mesh, widths: mup.Widths | None) -> Any:
    groups = optimizer.parameter_groups(module, config.regularization.weight_decay)
    if widths is not None:
        groups = mup.groups(groups, named(module), widths, mup.normalises(config))
    ours = optimizer.build(config, groups, mesh.data)
    pipelined = isinstance(module, PipelineModule)
    onebit = is_onebit(config.optimizer.type or "")
    try:
        with ours.undivided() if onebit else nullcontext():  # type: ignore[union-attr]
            engine, *_ = deepspeed.initialize(
                model=module,
                optimizer=ours,
                model_parameters=groups,
                lr_scheduler=None if config.scheduler.type else lambda base: _schedule(config, base),
                mpu=None if pipelined else Mpu(mesh),
                config=_settings(breakdown.settings(json, config), pipelined, ours is not None and not onebit),
            )
    except (ValueError, ImportError, IndexError, RuntimeError) as error:
        if ours is None:  # DeepSpeed builds it from compiled code that is not there for every device
            raise Problems(
                [Problem(f"optimizer.type ({config.optimizer.type}) cannot be used here: {error}")]
            ) from error
        raise
    if onebit:  # it averages over the data parallel ranks itself
        ours.attach(engine)  # type: ignore[union-attr]
    return engine


def _settings(json: dict[str, Any], pipelined: bool, ours: bool) -> dict[str, Any]:
    """DeepSpeed's configuration: our optimizers may be used with ZeRO."""
    settings = dict(json)
    if ours and _shares_out_anyway(json, pipelined):
        settings["zero_optimization"] = {**json.get("zero_optimization", {}), "stage": 1}
    return {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, **settings}


def _shares_out_anyway(json: dict[str, Any], pipelined: bool) -> bool:
    """Half precision without ZeRO, where DeepSpeed has nothing that works but what divides its state as ZeRO-1 does.

    For bf16 in a pipeline it takes such an optimizer anyway; called stage 1, that one can also be resumed, and accept
    gradients summed in fp32. In fp16 the pipeline engine forgets the loss scale without ZeRO.
    """
    half = any(json.get(section, {}).get("enabled") for section in ("bf16", "fp16"))
    if not half or json.get("zero_optimization", {}).get("stage", 0):
        return False
    return pipelined or json.get("data_types", {}).get("grad_accum_dtype") == "fp32"


def _schedule(config: Config, base: torch.optim.Optimizer) -> Schedule:
    options = config.schedule
    reload = "ours" if options.override_lr_scheduler else "theirs" if options.use_checkpoint_lr_scheduler else "neither"
    curve = Curve(
        style=options.lr_decay_style,
        lr=config.optimizer_options.lr,
        min_lr=options.min_lr,
        warmup_iters=options.warmup * options.lr_decay_iters,
        decay_iters=options.lr_decay_iters,
    )
    return Schedule(base, curve, reload)


def _learning_rate(engine: Any) -> float:
    return float(engine.get_lr()[0]) * engine.optimizer.param_groups[0].get("width_mult", 1.0)  # type: ignore[no-any-return]


def _result(engine: Any, loss: Tensor, watch: Watch) -> Result:
    norm, skipped = engine.get_global_grad_norm(), not engine.was_step_applied()
    return Result(float(loss), None if norm is None else float(norm), skipped, watch.after_step(skipped))
