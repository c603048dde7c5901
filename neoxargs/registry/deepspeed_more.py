"""DeepSpeed's remaining keys: gradients, reports, checkpoint files, disks, pipeline, and features used rarely."""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, Natural, NonNegative, Positive

CommunicationType = Literal["fp16", "bf16", "fp32"]


class Gradients(Group, origin="DSC", effect="engine"):
    """What happens to gradients between backward and the step."""

    gradient_clipping: NonNegative = param(0.0, receiver_default=1.0)
    """Shrink the gradient to this length where it is longer, measured over all weights; 0 never shrinks. 1.0 is usual
    for GPTs."""

    gradient_allreduce_op: Literal["mean", "sum"] = param("mean")
    """Average the gradients of the data parallel ranks, or add them up. `sum` excludes ZeRO 3."""

    prescale_gradients: bool = param(False)
    """Divide gradients by the number of ranks before they are added up instead of after; against overflow in fp16, at
    the risk that small ones vanish."""

    gradient_predivide_factor: Positive = param(1.0)
    """Without `prescale_gradients`: divide by this before gradients are added up and by the rest of the number of ranks
    afterwards; against overflow in fp16 on many GPUs."""

    communication_data_type: CommunicationType | None = param(None)
    """Format in which gradients are communicated; None is the format of the computation. `fp32_allreduce` asks for
    fp32."""

    seq_parallel_communication_data_type: CommunicationType | None = param(
        "fp32", effect="none", no_effect_reason="only sequence_parallel_size reads it, which the GPT here does not do"
    )
    """Format in which gradients are communicated among sequence parallel ranks."""

    sparse_gradients: bool = param(
        False,
        effect="none",
        no_effect_reason="the embedding here has dense gradients; DeepSpeed looks for torch's own with sparse ones",
    )
    """Communicate only the touched rows of embedding gradients; for layers built with torch's `sparse=True`."""

    managed_gradient_accumulation: bool = param(True, effect="not built")
    """DeepSpeed counts micro batches and steps after the last; false leaves the counting to the training script."""

    disable_allgather: bool = param(False, effect="none", no_effect_reason="DeepSpeed takes it and does not read it")
    """Retired: DeepSpeed still takes it and does nothing with it."""


class Reports(Group, origin="DSC", effect="log"):
    """What DeepSpeed's engine prints."""

    steps_per_print: Count | None = param(10, receiver_default=None)
    """Print step, learning rate and speed every this many steps; None prints nothing. train.py, which has log lines of
    its own, prints these only where it is written, or needed by `wall_clock_breakdown`."""

    wall_clock_breakdown: bool = param(False)
    """Print the time of forward, backward, communication and step. Waiting for the GPU at each slows training a
    little."""

    memory_breakdown: bool = param(False)
    """Print GPU memory before and after each part of a step."""

    dump_state: bool = param(False)
    """Print the engine's settings once when it is built."""


class Engine(Group, origin="DSC", effect="engine"):
    """Switches of DeepSpeed's engine as a whole."""

    deepspeed: bool = param(True, to=("train",), effect="not built")
    """Train with DeepSpeed. Always true: nothing else runs the model."""

    deepspeed_extra_args: dict[str, Any] | None = param(None)
    """Keys to add to DeepSpeed's JSON as they are, for a key that this table does not have. Sections that it has are
    better written at the top level, where they are checked."""

    zero_allow_untested_optimizer: bool = param(False)
    """Allow ZeRO with an optimizer that DeepSpeed has not been tested with."""

    zero_force_ds_cpu_optimizer: bool = param(True)
    """With the optimizer's state on the CPU, refuse optimizers other than DeepSpeed's own CPU ones."""

    sequence_parallel_size: Count = param(1, effect="not built")
    """Ranks that share one sequence (Ulysses), for models without a parallel layout of their own. Not the same as
    `sequence_parallel`, which divides activations among the tensor parallel ranks."""

    use_data_before_expert_parallelism: bool = param(
        False, effect="none", no_effect_reason="only a mixture of experts reads it, which train.py does not have"
    )
    """Number ranks with data parallelism inside expert parallelism instead of the other way round."""

    dataloader_drop_last: bool = param(
        False, effect="none", no_effect_reason="train.py loads its data itself, and every batch is full"
    )
    """Drop an incomplete last batch, for data loaders that DeepSpeed builds itself."""

    graph_harvesting: bool = param(False)
    """Record sequences of short GPU kernels as CUDA graphs."""

    vocabulary_size: Count | None = param(None, effect="log")
    """Only makes DeepSpeed warn when the number is not a multiple of 8."""

    curriculum_seqlen: Natural = param(
        0, to=("train",), effect="none", no_effect_reason="training counts it, and train.py does no curriculum_learning"
    )
    """The sequence length that `curriculum_learning` is at; training counts it, nobody sets it."""

    datastates_ckpt: bool | dict[str, Any] = param(False, effect="checkpoint")
    """Settings of the DataStates checkpoint writer (package datastates-llm), which writes in the background; false
    writes with torch."""


class DeepspeedCheckpoint(Group, origin="DSC", effect="checkpoint", section="checkpoint"):
    """How DeepSpeed writes and reads checkpoint files."""

    tag_validation: Literal[
        "WARN", "IGNORE", "FAIL", "Warn", "Ignore", "Fail", "warn", "ignore", "fail"
    ] = param("WARN")  # fmt: skip
    """What to do when ranks disagree on a checkpoint's name."""

    load_universal: bool = param(False)
    """The checkpoint to load is a universal one, which fits any parallel layout."""

    use_node_local_storage: bool = param(False)
    """Write to disks of the machines themselves: every machine then saves what it alone can see."""

    checkpoint_serialization: bool = param(True)
    """Write torch's zip format; false writes its older format, which the fast writer prefers."""


class ParallelWrite(Group, origin="DSC", effect="checkpoint", section="checkpoint.parallel_write"):
    """Who writes checkpoint files."""

    pipeline_stage: bool = param(False)
    """Let the data parallel ranks of a pipeline stage share the writing of its layers."""


class CheckpointWriter(Group, origin="DSC", effect="checkpoint", section="checkpoint.writer"):
    """DeepSpeed's fast checkpoint writer. Writing the section turns it on; it needs the aio operator."""

    type: Literal["FAST", "PYTHON", "MOCK", "fast", "python", "mock"] = param("FAST")
    """FAST writes past the page cache, PYTHON through an ordinary file, MOCK not at all, for measuring."""

    decoupled: bool = param(False)
    """Write in another process while training goes on."""

    io_buffer_size: Count = param(64 * 1024**2)
    """Bytes of the pinned buffer to write from."""

    io_buffer_double: bool = param(True)
    """Two half buffers: fill one while the other is written."""

    show_statistics: bool = param(False)
    """Print how fast each file was written."""

    data_parallel: Literal["REPLICA", "SOCKET", "MACHINE", "replica", "socket", "machine"] | None = param(None)
    """Divide each file among data parallel ranks: all of them, one per CPU socket or one per machine. None does not
    divide."""

    io_multiplier: Count = param(1)
    """Pieces per writing rank."""


class Aio(Group, origin="DSC", effect="engine", section="aio"):
    """Reading and writing NVMe disks in the background, for `device: nvme` and the fast checkpoint writer. The
    program `ds_nvme_tune` finds good values."""

    block_size: Count = param(1024**2)
    """Bytes per request."""

    queue_depth: Count = param(8)
    """Requests under way at a time."""

    intra_op_parallelism: Count = param(1, aliases="thread_count")
    """Threads per request to DeepSpeed."""

    single_submit: bool = param(False)
    """Hand requests to the kernel one at a time instead of in one batch."""

    overlap_events: bool = param(True)
    """Submit new requests while waiting for earlier ones."""

    use_gds: bool = param(False)
    """Move data straight between disk and GPU (NVIDIA GPUDirect Storage)."""


class Pipeline(Group, origin="DSC", effect="engine", section="pipeline"):
    """DeepSpeed's own settings of pipeline parallelism; the layout comes from `pipe_parallel_size`."""

    stages: Count | Literal["auto"] = param(
        "auto", effect="none", no_effect_reason="DeepSpeed does not read it; pipe_parallel_size counts"
    )
    """DeepSpeed stores it and does not read it; `pipe_parallel_size` counts."""

    partition: str = param(
        "best", effect="none", no_effect_reason="DeepSpeed does not read it; pipe_partition_method counts"
    )
    """DeepSpeed stores it and does not read it; `pipe_partition_method` counts."""

    seed_layers: bool = param(False, effect="none", no_effect_reason="DeepSpeed does not read it")
    """DeepSpeed stores it and does not read it."""

    activation_checkpoint_interval: Natural = param(0, effect="memory")
    """Layers per recomputed piece; 0 leaves it to `checkpoint_num_layers`."""

    pipe_partitioned: bool = param(True)
    """Divide activations among the tensor parallel ranks when they pass from stage to stage, and collect them there."""

    grad_partitioned: bool = param(True)
    """The same for the gradients on the way back."""

    use_reentrant: bool = param(True, effect="memory")
    """Recompute with torch's reentrant autograd; false allows inputs that need no gradient."""


class Nebula(Group, origin="DSC", effect="checkpoint", section="nebula"):
    """Checkpoints in the background on Azure, through the package torch_nebula."""

    enabled: bool = param(False)
    """Write checkpoints through it."""

    persistent_storage_path: str | None = param(None)
    """Folder that checkpoints are copied to."""

    persistent_time_interval: Count = param(100)
    """Seconds between two copies."""

    num_of_version_in_retention: Count = param(2)
    """Checkpoints to keep in memory."""

    enable_nebula_load: bool = param(True)
    """Read checkpoints through it too; false reads files that torch wrote."""

    nebula_load_path: str | None = param(None)
    """Folder to read from; none given reads `persistent_storage_path`."""


class HybridEngine(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="only the hybrid engine reads it, which train.py does not use",
    section="hybrid_engine",
):
    """One engine that trains and generates in turn, as reinforcement learning needs."""

    enabled: bool = param(False, effect="not built")
    """Turn this section on."""

    max_out_tokens: Count = param(512)
    """Longest sequence to generate, prompt included."""

    inference_tp_size: Count = param(1)
    """Tensor parallel ranks while generating."""

    release_inference_cache: bool = param(False)
    """Free the memory of generation before training goes on."""

    pin_parameters: bool = param(True)
    """Keep the weights for generation in pinned memory."""

    tp_gather_partition_size: Count = param(8)
    """Layers to collect at a time when tensor parallel ranks exchange weights."""

    enable_cuda_graph: bool = param(False)
    """Generate with CUDA graphs."""


class ProgressiveLayerDrop(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="only progressive_layer_drop reads it, which the GPT here does not do",
    section="progressive_layer_drop",
    always_sent=("enabled",),
):
    """Skip layers at random, more and more of them as training goes on. The model must implement it; the GPT here does
    not."""

    enabled: bool = param(False, effect="not built")
    """Turn this section on."""

    theta: Fraction = param(0.5)
    """Probability of keeping a layer that is approached in the end."""

    gamma: NonNegative = param(0.001)
    """How fast it is approached, per step."""


class Eigenvalue(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="only quantisation while training reads it, which train.py does not do",
    section="quantize_training.eigenvalue",
):
    """Curvature of the loss as the timetable of quantisation. DeepSpeed keeps the settings and currently refuses to
    turn it on."""

    enabled: bool = param(False, effect="not built")
    """Use it; true is an error in current DeepSpeed."""

    verbose: bool = param(False)
    """Print progress."""

    max_iter: Count = param(100)
    """Most iterations of the power method."""

    tol: Positive = param(1e-2)
    """Relative change at which the iteration has converged."""

    stability: NonNegative = param(1e-6)
    """Added to denominators against division by zero."""

    gas_boundary_resolution: Count = param(1)
    """Optimizer steps between two computations."""

    layer_name: str = param("bert.encoder.layer")
    """Name of the list of layers in the model."""

    layer_num: Natural = param(0)
    """How many layers that list has."""


class ThroughputTimer(Group, origin="DSC", effect="log", section="timers.throughput"):
    """The clock behind the speed that DeepSpeed prints."""

    enabled: bool = param(True)
    """Whether throughput is measured."""

    synchronized: bool = param(True)
    """Wait for the GPU when taking the time: exact, and a little slower."""


class WeightQuantization(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="only DeepSpeed's engine for generating reads it",
    section="weight_quantization",
):
    """Load weights quantised, for generating with large models; training does not read it."""

    enabled: bool = param(True)
    """Quantise; only counts where the section is written."""

    num_bits: Count = param(8)
    """Bits per weight."""

    q_type: Literal["symmetric", "asymmetric"] = param("symmetric")
    """Whether 0 is the middle of the range."""

    q_groups: Count = param(1)
    """Groups of weights with a range of their own."""

    quantized_initialization: dict[str, Any] = param({}, effect="not built")
    """Settings for weights that are quantised while the model is built: num_bits, group_size, group_dim, symmetric."""

    post_init_quant: dict[str, Any] = param({})
    """The same for weights that are quantised afterwards, by the name of the layer."""


class SparseAttention(Group, origin="DSC", effect="model", section="sparse_attention"):
    """DeepSpeed's block sparse attention: what the layers read that `sparsity` or `attention_config` makes sparse.
    Lengths are in blocks; what follows a token is hidden from it in all patterns."""

    mode: Literal["dense", "fixed", "variable", "bigbird", "bslongformer"] = param("fixed")
    """The pattern: everything, local windows with summary blocks, the same with windows of various sizes, BigBird or
    Longformer."""

    block: Count = param(16)
    """Side of a block in tokens; `seq_length` must be a multiple. DeepSpeed's kernels want 16, 32, 64 or 128."""

    different_layout_per_head: bool = param(False)
    """Let every head have its own pattern, where the pattern has random parts or several forms."""

    num_local_blocks: Count = param(4)
    """fixed: length of a local window."""

    num_global_blocks: Natural = param(1)
    """fixed, bigbird: blocks that everything attends to, per window (fixed) or at the start (bigbird)."""

    attention: Literal["bidirectional", "unidirectional"] = param("bidirectional")
    """For which model the pattern is laid out. A GPT's tokens see nothing after them either way."""

    horizontal_global_attention: bool = param(False)
    """fixed, variable: let global blocks attend to everything as well. Needs `bidirectional`."""

    num_different_global_patterns: Count = param(1)
    """fixed: how many choices of global blocks the heads take turns in. Needs `different_layout_per_head`."""

    num_random_blocks: Natural = param(0)
    """variable, bigbird: random blocks per row."""

    local_window_blocks: list[Count] = param([4])
    """variable: lengths of the first windows; the last one repeats."""

    global_block_indices: list[Natural] = param([0])
    """variable, bslongformer: which blocks are global."""

    global_block_end_indices: list[Natural] | None = param(None)
    """variable, bslongformer: makes ranges of `global_block_indices`; each is the end, exclusive, of one."""

    num_sliding_window_blocks: Count = param(3)
    """bigbird, bslongformer: width of the sliding window."""


class Compile(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="only DeepCompile reads it, which train.py does not use",
    section="compile",
):
    """DeepCompile: ZeRO inside torch.compile's graphs."""

    deepcompile: bool = param(False, effect="not built")
    """Use it; training then calls `engine.compile()`."""

    passes: list[Literal["z1", "z3", "autosp", "autotp"]] | None = param(None)
    """Graph transformations to apply; None lets the ZeRO stage decide."""

    free_activation: bool = param(False)
    """Free large activations as soon as their last reader is done."""

    free_activation_threshold: Natural = param(10 * 1024**2)
    """What counts as large, in bytes."""

    offload_activation: bool = param(False)
    """Keep saved activations in host memory. Excludes `offload_parameters` and `offload_opt_states`."""

    offload_activation_pin_memory: bool = param(True)
    """Page-locked host memory for them."""

    offload_opt_states: bool = param(False)
    """Keep the optimizer's state in host memory during forward and backward. Excludes `offload_parameters`; best
    without gradient accumulation."""

    offload_parameters: bool = param(False)
    """Keep weights in host memory until they are used."""

    double_buffer: bool = param(True)
    """Fill one communication buffer while another is sent."""

    symmetric_memory: bool = param(False)
    """Communicate through torch's symmetric memory."""

    debug_log: bool = param(False)
    """Write out the graphs."""

    sync_before_reduce: bool = param(False)
    """For finding bugs: wait for the GPU before gradients are reduced."""

    sync_after_reduce: bool = param(False)
    """For finding bugs: wait for the GPU after gradients were reduced."""

    sync_before_allgather: bool = param(False)
    """For finding bugs: wait for the GPU before weights are fetched."""

    sync_after_allgather: bool = param(False)
    """For finding bugs: wait for the GPU after weights were fetched."""

    keep_int_input_tensors: bool = param(True)
    """Compile with the real values of integer inputs instead of made-up ones."""

    keep_all_input_tensors: bool = param(False)
    """Compile with the real values of all inputs."""
