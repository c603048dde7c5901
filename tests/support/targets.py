"""Helpers for the tests of `targets`: a configuration, values to try, and DeepSpeed's reading of its JSON."""

from __future__ import annotations

import json
import logging
from typing import Any, get_args

import pytest
from deepspeed.runtime.config import DeepSpeedConfig

from neoxargs.config.config import Config
from neoxargs.registry import Parameter
from neoxargs.resolve import File, complete, draft
from neoxargs.targets.deepspeed import deepspeed_json

SHAPE = """
num_layers: 4
hidden_size: 64
num_attention_heads: 4
seq_length: 32
max_position_embeddings: 32
train_iters: 100
train_micro_batch_size_per_gpu: 2
data_path: my_text_document
"""


def configured(*texts: str, gpus: int = 8) -> Config:
    """Resolve SHAPE with more YAML."""
    given = [File("shape.yml", SHAPE), *(File(f"my{i}.yml", text) for i, text in enumerate(texts) if text)]
    return complete(draft(given), gpus)


def read_by_deepspeed(config: Config, monkeypatch: pytest.MonkeyPatch) -> DeepSpeedConfig:
    """Return the installed DeepSpeed's reading of the JSON, on the data parallel ranks of the configuration."""
    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    replicas = config.parallel.world_size // (
        config.parallel.model_parallel_size * max(config.parallel.pipe_parallel_size, 1)
    )
    monkeypatch.setattr("deepspeed.comm.get_world_size", lambda group=None: replicas)
    monkeypatch.setattr("deepspeed.comm.get_rank", lambda group=None: 0)
    return DeepSpeedConfig(json.loads(json.dumps(deepspeed_json(config))))


def other_value(parameter: Parameter) -> Any:
    """Return a value of the parameter's type that is not its default; None if there is no simple one."""
    kind = parameter.type
    choices = [a for part in (kind, *get_args(kind)) for a in get_args(part)]
    literal = [c for c in choices if isinstance(c, str | int | bool) and c not in ("auto", parameter.default)]
    if isinstance(parameter.default, bool) or kind in (bool, bool | None):
        return not parameter.default
    if literal:
        return literal[-1]
    if isinstance(parameter.default, int):
        return parameter.default + 1
    if isinstance(parameter.default, float):
        return parameter.default / 2 + 0.25
    return None


#: Beginning of a key's name -> other YAML that the key needs.
COMPANIONS = {
    "activation_checkpointing.contiguous_memory_optimization": "partition_activations: true",
    "bf16.bf16_optimizer_states": "{precision: bf16, zero_stage: 1, bf16: {bf16_master_weights_and_grads: true}}",
    "bf16.": "{precision: bf16, zero_stage: 1}",
    "compression_training.head_pruning.shared_parameters.": (
        "compression_training: {head_pruning: {shared_parameters: {num_heads: 2}}}"
    ),
    "curriculum_learning.enabled": "curriculum_learning: {schedule_type: custom}",
    "data_efficiency.data_sampling.curriculum_learning.enabled": (
        "data_efficiency: {data_sampling: {curriculum_learning: {curriculum_metrics: {seqlen: {}}}}}"
    ),
    "data_efficiency.data_sampling.dynamic_batching.enabled": (
        "data_efficiency: {data_sampling: {dynamic_batching: {max_tokens: 100}}}"
    ),
    "fp16.": "{precision: fp16, zero_stage: 1}",
    "zero_optimization.zenflow.select_strategy": "zero_optimization: {zenflow: {select_interval: 4}}",
    "zero_optimization.zenflow.select_interval": "zero_optimization: {zenflow: {select_strategy: epoch}}",
    "zero_optimization.offload_param.device": "zero_optimization: {stage: 3, offload_param: {nvme_path: /tmp}}",
    "zero_optimization.offload_optimizer.": "zero_optimization: {stage: 3, offload_optimizer: {nvme_path: /tmp}}",
}
