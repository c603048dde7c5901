"""The groups that every `Config` holds, for editors and type checkers: `config.shape.num_layers` is an int.

Written by `UPDATE=1 pytest tests/resolve/test_config.py` from the registry. A group of a plugin is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neoxargs.registry.activations import Recompute
    from neoxargs.registry.architectures import Gmlp, Mamba, Moe, Mup, Rwkv, SoftPrompt, TransformerEngine
    from neoxargs.registry.batch import Batch
    from neoxargs.registry.checkpoint import Checkpoint
    from neoxargs.registry.data import Data, Tokenizer
    from neoxargs.registry.deepspeed_activations import ActivationCheckpointing
    from neoxargs.registry.deepspeed_compression import (
        ChannelPruning,
        ChannelPruningShared,
        HeadPruning,
        HeadPruningShared,
        LayerReduction,
        MixedQuantize,
        QuantizedActivations,
        QuantizedActivationsShared,
        QuantizedWeights,
        QuantizedWeightsShared,
        RowPruning,
        RowPruningShared,
        SparsePruning,
        SparsePruningShared,
    )
    from neoxargs.registry.deepspeed_data import (
        CurriculumLearning,
        DataEfficiency,
        DataRouting,
        DataSampling,
        DynamicBatching,
        LayerTokenLr,
        RandomLtd,
        RandomLtdSchedule,
        SamplingCurriculum,
    )
    from neoxargs.registry.deepspeed_monitors import (
        CometMonitor,
        CommsLogger,
        CsvMonitor,
        FlopsProfiler,
        TensorboardMonitor,
        WandbMonitor,
    )
    from neoxargs.registry.deepspeed_more import (
        Aio,
        CheckpointWriter,
        Compile,
        DeepspeedCheckpoint,
        Eigenvalue,
        Engine,
        Gradients,
        HybridEngine,
        Nebula,
        ParallelWrite,
        Pipeline,
        ProgressiveLayerDrop,
        Reports,
        SparseAttention,
        ThroughputTimer,
        WeightQuantization,
    )
    from neoxargs.registry.deepspeed_optimizer import Optimizer, OptimizerParams, Scheduler, SchedulerParams
    from neoxargs.registry.deepspeed_parallel import ExpertParallel, TensorParallel, TensorParallelGroup
    from neoxargs.registry.deepspeed_precision import Amp, Bf16, DataTypes, Fp16, TorchAutocast
    from neoxargs.registry.deepspeed_tuning import Autotuning, Elasticity, ModelInfo
    from neoxargs.registry.deepspeed_zero import (
        LeafModule,
        LocoParam,
        OffloadOptimizer,
        OffloadParam,
        Zenflow,
        ZeroOptimization,
    )
    from neoxargs.registry.generation import Generation
    from neoxargs.registry.logging import Comet, Logging, Profiling, Wandb
    from neoxargs.registry.model import Attention, Embedding, Fusion, Init, Mlp, Norm, Shape
    from neoxargs.registry.optimizer import OptimizerOptions
    from neoxargs.registry.parallel import Parallel
    from neoxargs.registry.post_training import PostTraining
    from neoxargs.registry.precision import Precision
    from neoxargs.registry.regularization import Regularization
    from neoxargs.registry.retrieval import Retrieval
    from neoxargs.registry.runner import Runner, RunnerExtras
    from neoxargs.registry.schedule import Schedule
    from neoxargs.registry.training import Training
    from neoxargs.registry.zero import ZeroShortcuts


class Groups:
    """One attribute for each group of parameters."""

    recompute: Recompute
    mamba: Mamba
    rwkv: Rwkv
    gmlp: Gmlp
    moe: Moe
    transformer_engine: TransformerEngine
    soft_prompt: SoftPrompt
    mup: Mup
    batch: Batch
    checkpoint: Checkpoint
    data: Data
    tokenizer: Tokenizer
    activation_checkpointing: ActivationCheckpointing
    layer_reduction: LayerReduction
    quantized_weights: QuantizedWeights
    quantized_weights_shared: QuantizedWeightsShared
    mixed_quantize: MixedQuantize
    quantized_activations: QuantizedActivations
    quantized_activations_shared: QuantizedActivationsShared
    sparse_pruning: SparsePruning
    sparse_pruning_shared: SparsePruningShared
    row_pruning: RowPruning
    row_pruning_shared: RowPruningShared
    head_pruning: HeadPruning
    head_pruning_shared: HeadPruningShared
    channel_pruning: ChannelPruning
    channel_pruning_shared: ChannelPruningShared
    curriculum_learning: CurriculumLearning
    data_efficiency: DataEfficiency
    data_sampling: DataSampling
    sampling_curriculum: SamplingCurriculum
    dynamic_batching: DynamicBatching
    data_routing: DataRouting
    random_ltd: RandomLtd
    random_ltd_schedule: RandomLtdSchedule
    layer_token_lr: LayerTokenLr
    tensorboard_monitor: TensorboardMonitor
    wandb_monitor: WandbMonitor
    csv_monitor: CsvMonitor
    comet_monitor: CometMonitor
    comms_logger: CommsLogger
    flops_profiler: FlopsProfiler
    gradients: Gradients
    reports: Reports
    engine: Engine
    deepspeed_checkpoint: DeepspeedCheckpoint
    parallel_write: ParallelWrite
    checkpoint_writer: CheckpointWriter
    aio: Aio
    pipeline: Pipeline
    nebula: Nebula
    hybrid_engine: HybridEngine
    progressive_layer_drop: ProgressiveLayerDrop
    eigenvalue: Eigenvalue
    throughput_timer: ThroughputTimer
    weight_quantization: WeightQuantization
    sparse_attention: SparseAttention
    compile: Compile
    optimizer: Optimizer
    optimizer_params: OptimizerParams
    scheduler: Scheduler
    scheduler_params: SchedulerParams
    tensor_parallel: TensorParallel
    tensor_parallel_group: TensorParallelGroup
    expert_parallel: ExpertParallel
    fp16: Fp16
    bf16: Bf16
    amp: Amp
    torch_autocast: TorchAutocast
    data_types: DataTypes
    autotuning: Autotuning
    model_info: ModelInfo
    elasticity: Elasticity
    zero_optimization: ZeroOptimization
    offload_param: OffloadParam
    offload_optimizer: OffloadOptimizer
    zenflow: Zenflow
    loco_param: LocoParam
    leaf_module: LeafModule
    generation: Generation
    logging: Logging
    wandb: Wandb
    comet: Comet
    profiling: Profiling
    shape: Shape
    embedding: Embedding
    norm: Norm
    attention: Attention
    mlp: Mlp
    init: Init
    fusion: Fusion
    optimizer_options: OptimizerOptions
    parallel: Parallel
    post_training: PostTraining
    precision: Precision
    regularization: Regularization
    retrieval: Retrieval
    runner: Runner
    runner_extras: RunnerExtras
    schedule: Schedule
    training: Training
    zero_shortcuts: ZeroShortcuts
