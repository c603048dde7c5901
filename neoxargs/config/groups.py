"""The groups of a `Config`, for editors and type checkers: `config.shape.num_layers` is an int.

Generated from neoxargs/registry by `python deepy.py docs`, without the groups of plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    from neoxargs.registry.activations import Recompute
    from neoxargs.registry.architectures import Gmlp, Mamba, Rwkv, SoftPrompt, TransformerEngine
    from neoxargs.registry.batch import Batch
    from neoxargs.registry.checkpoint import Checkpoint
    from neoxargs.registry.data import Data, Tokenizer
    from neoxargs.registry.deepspeed_engine import Engine, Gradients
    from neoxargs.registry.deepspeed_logging import Reports
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
    from neoxargs.registry.types import BelowOne, Count, Device, Dtype, Fraction, Natural, NonNegative, Positive, Stage
    from neoxargs.registry.zero import ZeroShortcuts

    class Pipeline:
        stages: Count | Literal["auto"]
        partition: str
        seed_layers: bool
        activation_checkpoint_interval: Natural
        pipe_partitioned: bool
        grad_partitioned: bool
        use_reentrant: bool

    class Fp16:
        enabled: bool
        auto_cast: bool
        loss_scale: NonNegative
        initial_scale_power: Natural
        loss_scale_window: Count
        hysteresis: Natural
        consecutive_hysteresis: bool
        min_loss_scale: Natural
        fp16_master_weights_and_grads: bool
        fp16: bool | None
        type: Literal["fp16", "float16", "bf16", "bfloat16", "fp32"] | None

    class Bf16:
        enabled: bool
        immediate_grad_update: bool
        check_grad_overflow: bool
        bf16_master_weights_and_grads: bool
        bf16_optimizer_states: bool
        bf16: bool | None
        loss_scale: NonNegative | None
        initial_scale_power: Natural | None
        loss_scale_window: Natural | None
        hysteresis: Natural | None
        min_loss_scale: NonNegative | None

    class DataTypes:
        grad_accum_dtype: Dtype | None
        param_dtype: Dtype | None
        buffer_dtype: Dtype | None

    class ZeroOptimization:
        stage: Stage
        contiguous_gradients: bool
        reduce_scatter: bool
        reduce_bucket_size: Count
        use_multi_rank_bucket_allreduce: bool
        allgather_partitions: bool
        allgather_bucket_size: Natural
        overlap_comm: bool | None
        load_from_fp32_weights: bool
        elastic_checkpoint: bool
        sub_group_size: Natural
        stage3_prefetch_bucket_size: Natural
        stage3_param_persistence_threshold: Natural
        stage3_model_persistence_threshold: Natural
        stage3_max_live_parameters: Natural
        stage3_max_reuse_distance: Natural
        stage3_gather_16bit_weights_on_model_save: bool
        stage3_module_granularity_threshold: int
        stage3_use_all_reduce_for_fetch_params: bool
        stage3_allgather_sequential: bool
        ignore_unused_parameters: bool
        legacy_stage1: bool
        round_robin_gradients: bool
        zero_hpz_partition_size: Natural
        zero_quantized_weights: bool
        zero_quantized_nontrainable_weights: bool
        zero_quantized_gradients: bool
        mics_shard_size: int
        mics_hierarchical_params_gather: bool
        memory_efficient_linear: bool
        pipeline_loading_checkpoint: bool
        override_module_apply: bool
        log_trace_cache_warnings: bool
        enable_sanity_checks: bool
        save_muon_momentum_buffer_in_memory: bool
        cpu_offload: bool | None
        cpu_offload_param: bool | None
        cpu_offload_use_pin_memory: bool | None

    class OffloadParam:
        device: Device
        nvme_path: str | None
        buffer_count: Natural
        buffer_size: Natural
        max_in_cpu: Natural
        pin_memory: bool

    class OffloadOptimizer:
        device: Device
        nvme_path: str | None
        buffer_count: Natural
        pin_memory: bool
        pipeline_read: bool
        pipeline_write: bool
        fast_init: bool
        ratio: Fraction
        super_offload: bool
        cpuadam_cores_perc: Fraction

    class Optimizer:
        type: str | None
        legacy_fusion: bool
        scheduler: dict[str, object] | None

    class OptimizerParams:
        lr: NonNegative | None
        betas: list[float] | None
        eps: NonNegative | None
        weight_decay: NonNegative | None
        max_grad_norm: NonNegative | None
        bias_correction: bool
        amsgrad: bool
        adam_w_mode: bool
        torch_adam: bool
        set_grad_none: bool
        fp32_optimizer_states: bool
        fused: bool | None
        foreach: bool | None
        maximize: bool
        capturable: bool
        differentiable: bool
        decoupled_weight_decay: bool
        max_coeff: Positive
        min_coeff: NonNegative
        eps_inside_sqrt: bool
        freeze_step: Natural
        cuda_aware: bool
        comm_backend_name: Literal["nccl", "mpi", "hccl", "compressed", "gloo"]
        var_freeze_step: Natural
        var_update_scaler: Count
        local_step_scaler: Count
        local_step_clipper: Count
        coeff_beta: Fraction
        factor_max: Positive
        factor_min: NonNegative
        factor_threshold: NonNegative
        muon_lr: NonNegative | None
        adam_lr: NonNegative | None
        ns_method: Literal["gram", "standard"]
        ns_steps: Count
        adjust_lr_fn: Literal["original", "match_rms_adamw", "spectral", "unit_rms_norm"]
        extra_scale_factor: Positive
        split_qkv: bool
        momentum: BelowOne | None
        dampening: float
        nesterov: bool | None
        beta: BelowOne
        decoupled_wd: bool
        lr_decay: NonNegative
        initial_accumulator_value: NonNegative
        alpha: Fraction | None
        centered: bool
        momentum_decay: NonNegative
        rho: Fraction
        lambd: NonNegative
        t0: NonNegative
        etas: list[float]
        step_sizes: list[float]
        beta2_decay: float
        d: Positive

    class Scheduler:
        type: Literal["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"] | None

    class ActivationCheckpointing:
        partition_activations: bool
        number_checkpoints: Count | None
        contiguous_memory_optimization: bool
        cpu_checkpointing: bool
        synchronize_checkpoint_boundary: bool
        profile: bool

    class Aio:
        block_size: Count
        queue_depth: Count
        intra_op_parallelism: Count
        single_submit: bool
        overlap_events: bool
        use_gds: bool


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
