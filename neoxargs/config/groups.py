"""The groups of a `Config`, for editors and type checkers: `config.shape.num_layers` is an int.

Generated from neoxargs/registry by `python deepy.py docs`, without the groups of plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neoxargs.registry.activations import Recompute
    from neoxargs.registry.architectures import Gmlp, Mamba, Rwkv, SoftPrompt, TransformerEngine
    from neoxargs.registry.batch import Batch
    from neoxargs.registry.checkpoint import Checkpoint
    from neoxargs.registry.data import Data, Tokenizer
    from neoxargs.registry.deepspeed_activations import ActivationCheckpointing
    from neoxargs.registry.deepspeed_checkpoint import Aio
    from neoxargs.registry.deepspeed_engine import Engine, Gradients
    from neoxargs.registry.deepspeed_logging import Reports
    from neoxargs.registry.deepspeed_optimizer import Optimizer, OptimizerParams, Scheduler
    from neoxargs.registry.deepspeed_parallel import Pipeline
    from neoxargs.registry.deepspeed_precision import Bf16, DataTypes, Fp16
    from neoxargs.registry.deepspeed_zero import OffloadOptimizer, OffloadParam, ZeroOptimization
    from neoxargs.registry.generation import Generation
    from neoxargs.registry.logging import Comet, Logging, Profiling, Wandb
    from neoxargs.registry.lora import Lora
    from neoxargs.registry.model import Attention, Embedding, Fusion, Init, Mlp, Norm, Shape
    from neoxargs.registry.moe import Moe
    from neoxargs.registry.mup import Mup
    from neoxargs.registry.optimizer import OptimizerOptions
    from neoxargs.registry.parallel import Parallel
    from neoxargs.registry.post_training import PostTraining
    from neoxargs.registry.precision import Precision
    from neoxargs.registry.regularization import Regularization
    from neoxargs.registry.retrieval import Retrieval
    from neoxargs.registry.rotary import RopeScaling
    from neoxargs.registry.runner import Runner, RunnerExtras
    from neoxargs.registry.schedule import Schedule
    from neoxargs.registry.training import Training
    from neoxargs.registry.zero import ZeroShortcuts


class Groups:
    """The parameter groups of a configuration, one attribute each."""

    runner: Runner
    runner_extras: RunnerExtras
    parallel: Parallel
    pipeline: Pipeline
    batch: Batch
    shape: Shape
    embedding: Embedding
    norm: Norm
    attention: Attention
    mlp: Mlp
    init: Init
    fusion: Fusion
    rope_scaling: RopeScaling
    mamba: Mamba
    rwkv: Rwkv
    gmlp: Gmlp
    transformer_engine: TransformerEngine
    soft_prompt: SoftPrompt
    lora: Lora
    moe: Moe
    mup: Mup
    regularization: Regularization
    precision: Precision
    fp16: Fp16
    bf16: Bf16
    data_types: DataTypes
    zero_shortcuts: ZeroShortcuts
    zero_optimization: ZeroOptimization
    offload_param: OffloadParam
    offload_optimizer: OffloadOptimizer
    optimizer_options: OptimizerOptions
    optimizer: Optimizer
    optimizer_params: OptimizerParams
    scheduler: Scheduler
    schedule: Schedule
    gradients: Gradients
    engine: Engine
    recompute: Recompute
    activation_checkpointing: ActivationCheckpointing
    data: Data
    tokenizer: Tokenizer
    training: Training
    checkpoint: Checkpoint
    aio: Aio
    logging: Logging
    wandb: Wandb
    comet: Comet
    profiling: Profiling
    reports: Reports
    generation: Generation
    post_training: PostTraining
    retrieval: Retrieval
