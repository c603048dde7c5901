"""Runs one rank of a pipeline stage, or of the plain engine, on fake tensors under a `Recorder`.

Model and engine come from `neoxargs.train.engine.build`. The engine has no optimizer: what an optimizer allocates is
not traced. A pipeline stage executes DeepSpeed's schedule with DeepSpeed's functions, without reducing gradients
and the optimizer step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.utils import PartitionedTensor
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.targets.deepspeed import deepspeed_json
from neoxargs.train.engine import build as engine
from neoxargs.train.generation.loading import without_training
from neoxargs.train.losses.cross_entropy import Loss, Vocabulary
from neoxargs.train.micro_batch import MicroBatch, to_pipeline
from neoxargs.train.parallel.communicate import PARTIAL
from neoxargs.train.process.mesh import Mesh
from traced.recorder import ACTIVATIONS, GRADIENTS, LOGITS, PIPELINE, Recorder, Roof


def build(config: Config, rows: int, mesh: Mesh) -> Any:
    """Build DeepSpeed's engine of this rank. rows: of the padded vocabulary."""
    json = without_training(deepspeed_json(config))
    return engine.build(config, json, Vocabulary(rows, rows), mesh, trains=False).deepspeed


def trace(deepspeed: Any, config: Config, roof: Roof) -> Recorder:
    """Record the forward and backward passes of all micro batches of one step."""
    recorder = Recorder(roof)
    weights = list(deepspeed.module.parameters())
    recorder.ignore(weights)
    for weight in weights:
        weight.register_hook(lambda gradient: recorder.recount(gradient, GRADIENTS))
        if hasattr(weight, PARTIAL):  # with an optimizer, train/deepspeed/partial_gradients.py sums it once per step
            getattr(weight, PARTIAL).hook.remove()
    run = _run_stage if isinstance(deepspeed, PipelineEngine) else _run_model
    with patch.object(Loss, "__call__", _allocates(LOGITS, Loss.__call__, recorder)):
        run(deepspeed, config, recorder)
    return recorder


def _run_model(deepspeed: Any, config: Config, recorder: Recorder) -> None:
    """Run the engine without a pipeline."""
    model = deepspeed.module.train()
    # Drawn before the recorder starts, so that the tokens do not count as activations.
    batches = list(itertools.islice(_batches(config), config.batch.gradient_accumulation_steps))
    with recorder:
        for batch in batches:
            model(**vars(batch)).backward()


def _run_stage(deepspeed: Any, config: Config, recorder: Recorder) -> None:
    """Run a pipeline stage by DeepSpeed's 1F1B schedule."""
    stage = Stage(deepspeed, config, recorder)
    deepspeed.optimizer, deepspeed.using_bf16_optimizer = NoOptimizer(), False
    with ExitStack() as stack:
        for method in ("full", "_partition_tensor"):
            wrapped = _allocates(PIPELINE, getattr(PartitionedTensor, method), recorder)
            stack.enter_context(patch.object(PartitionedTensor, method, wrapped))
        stack.enter_context(patch.object(schedule, "TrainSchedule", ForwardAndBackward))
        stack.enter_context(patch.object(PipelineEngine, "_recv_tensor_meta", stage.receive_shape))
        stack.enter_context(patch.object(PartitionedTensor, "from_meta", stage.partitioned))
        stack.enter_context(patch.object(PipelineEngine, "_INSTRUCTION_MAP", stage.instructions()))
        stack.enter_context(recorder)
        stack.enter_context(recorder.allocating(PIPELINE))
        deepspeed.train_batch(map(to_pipeline, _batches(config)))


class ForwardAndBackward(schedule.TrainSchedule):  # type: ignore[misc]
    """DeepSpeed's schedule without the optimizer step and what comes right before it."""

    def steps(self) -> Iterator[list[Any]]:
        after = (schedule.ReduceGrads, schedule.ReduceTiedGrads, schedule.OptimizerStep)
        for commands in super().steps():
            yield [command for command in commands if not isinstance(command, after)]


class NoOptimizer:
    """What DeepSpeed asks for before a backward pass."""


class Stage:
    """Tells apart, in what DeepSpeed's functions of a pipeline stage allocate, activations and buffers of the pipeline.

    A stage's input is an activation, because its first layer keeps it. Its output, what it received, and the gradients
    at both ends are buffers.
    """

    def __init__(self, deepspeed: Any, config: Config, recorder: Recorder) -> None:
        self.deepspeed, self.config, self.recorder = deepspeed, config, recorder
        deepspeed.module.register_forward_pre_hook(self._enter)
        deepspeed.module.register_forward_hook(self._leave)

    def instructions(self) -> dict[Any, Callable[..., None]]:
        """Return DeepSpeed's functions for the commands of a schedule."""
        functions: dict[Any, Callable[..., None]] = dict(PipelineEngine._INSTRUCTION_MAP)
        backward, send = functions[schedule.BackwardPass], functions[schedule.SendGrad]

        def send_gradient(engine: Any, buffer_id: int) -> None:
            inputs = engine.pipe_buffers["inputs"][buffer_id]
            for tensor in inputs if isinstance(inputs, tuple) else (inputs,):
                self.recorder.recount(tensor.grad, PIPELINE)
            send(engine, buffer_id)

        functions[schedule.BackwardPass] = _allocates(ACTIVATIONS, backward, self.recorder)
        functions[schedule.SendGrad] = send_gradient
        return functions

    def receive_shape(self, send_stage: int) -> Any:
        """Return the buffers for this stage's input, which DeepSpeed allocates when it has received their shape."""
        allocate, tensor = self.deepspeed._allocate_or_extend_buffers, self.config.parallel.model_parallel_size
        if not self.deepspeed.is_pipe_partitioned:
            return allocate(0, list(self.shape), self.dtype)
        description, elements = [3 + len(self.shape) + tensor], [torch.Size(self.shape).numel() // tensor]
        return allocate(0, description, torch.int64), allocate(1, elements, self.dtype)

    def partitioned(self, meta: Tensor, local_part: Tensor, group: Any) -> Any:
        """Return the tensor of which `local_part` is this rank's share. meta: its shape, without values here."""
        whole = PartitionedTensor(torch.empty(self.shape, dtype=self.dtype, device="meta"), group)
        whole.local_data, whole.orig_device = local_part.detach(), local_part.device
        return whole

    @property
    def shape(self) -> tuple[int, int, int]:
        """The hidden states between stages."""
        shape, parallel = self.config.shape, self.config.parallel
        shards = parallel.model_parallel_size if parallel.sequence_parallel else 1
        shards *= parallel.context_parallel_size
        return self.config.batch.train_micro_batch_size_per_gpu, shape.seq_length // shards, shape.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        return next(weight.dtype for weight in self.deepspeed.module.parameters())

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        for tensor in inputs:
            self.recorder.recount(tensor, ACTIVATIONS)
        self.recorder.kind = ACTIVATIONS

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self.recorder.kind = PIPELINE
        if not self.deepspeed.is_last_stage():
            self.recorder.recount(outputs, PIPELINE)


def _allocates(kind: str, function: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Return the function with all that it allocates counted as memory of this kind."""

    def counted(*arguments: Any, **named: Any) -> Any:
        with recorder.allocating(kind):
            return function(*arguments, **named)

    return counted


def _batches(config: Config) -> Iterator[MicroBatch]:
    size = (config.batch.train_micro_batch_size_per_gpu, config.shape.seq_length)
    while True:
        yield MicroBatch(torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64))
