"""The run as command line flags for NVIDIA Megatron-LM (`--emit megatron`).

Most parameters have one flag, which the registry declares. This module translates the others: values with other names,
and settings with several flags. Settings that Megatron-LM does not support raise Problems.
Source: Megatron-LM's argument parser (megatron/training/arguments.py, 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.config.value import Value
from neoxargs.facts.batch_sizes import PHASES, BatchSizes
from neoxargs.facts.context import HYBRID, ranks_with_other_heads, style_of
from neoxargs.facts.layout import stages
from neoxargs.facts.model import mlp_width
from neoxargs.registry import ABSENT, Parameter
from neoxargs.targets.megatron_tables import (
    CONTEXT_STYLES,
    IN_ITERATIONS,
    LION,
    MUON_SCALES,
    NORMS,
    OPTIMIZERS,
    POSITIONS,
    TOKENIZERS,
    TRANSLATED,
    YARN,
)
from neoxargs.targets.megatron_unsupported import unsupported

Words = Iterator[str]


def megatron_flags(config: Config) -> list[str]:
    """Return the flags; raises Problems with every setting that Megatron-LM does not support and the run needs."""
    if problems := unsupported(config):
        raise Problems(problems)
    left_out = () if config.training.train_samples is None else IN_ITERATIONS
    if config.get(PHASES):  # of which --global-batch-size is the last
        left_out = (*left_out, "train_batch_size")
    words = [word for p, value in config.items() if p.name not in left_out for word in _plain(p, value)]
    words += [word for translate in TRANSLATIONS for word in translate(config)]
    return words


# -- one parameter, one flag -----------------------------------------------------------------------------------------


def _plain(parameter: Parameter, value: Value) -> Words:
    if not parameter.megatron or parameter.name in TRANSLATED or parameter.replaced_by or value.value in (None, ABSENT):
        return
    # `!name`: Megatron-LM has only a flag that turns the setting off.
    if parameter.megatron.startswith("!"):
        if not value.value:
            yield f"--{parameter.megatron[1:]}"
    elif value.source.set_by_user or value.value != parameter.receiver_default:
        yield from _flag(parameter.megatron, value.value)


def _flag(name: str, value: Any) -> Words:
    if isinstance(value, bool):
        if value:
            yield f"--{name}"
        return
    yield f"--{name}"
    yield from (str(item) for item in (value if isinstance(value, list) else [value]))


# -- settings with other names or several flags ------------------------------------------------------------------------


def _length(config: Config) -> Words:
    """Yield what a run in samples has in samples too: Megatron-LM counts either these or iterations."""
    schedule, sizes = config.schedule, BatchSizes.of(config.get)
    if config.training.train_samples is None:
        return
    if config.is_set("lr_decay_iters") or schedule.lr_decay_fraction is not None:
        yield from _flag("lr-decay-samples", sizes.samples_after(schedule.lr_decay_iters))
    if schedule.lr_wsd_decay_iters:
        yield from _flag("lr-wsd-decay-samples", schedule.lr_wsd_decay_iters * sizes.last)


def _average(config: Config) -> Words:
    yield from _flag("calculate-per-token-loss", config.training.loss_average == "tokens")


def _batch_phases(config: Config) -> Words:
    """Yield the sizes of the batch with the tokens after which each begins, as `0:256 2097152:512`."""
    if config.get(PHASES):
        begins = ((samples * config.shape.seq_length, size) for samples, size in BatchSizes.of(config.get).begins)
        yield from _flag("step-batch-size-schedule", " ".join(f"{tokens}:{size}" for tokens, size in begins))


def _layout(config: Config) -> Words:
    yield from _flag("tensor-model-parallel-size", config.parallel.model_parallel_size)
    yield from _flag("pipeline-model-parallel-size", stages(config.parallel.pipe_parallel_size))
    if config.parallel.context_parallel_size > 1:
        style, heads = style_of(config.get)[0], ranks_with_other_heads(config.get)
        yield from _flag("cp-comm-type", CONTEXT_STYLES[style])
        if style == HYBRID:
            ring = config.parallel.context_parallel_size // heads
            yield from _flag("hierarchical-context-parallel-sizes", [heads, ring])
    # Megatron-LM's distributed optimizer is ZeRO 1; stages 2 and 3 need its own FSDP.
    stage = config.zero_optimization.stage
    if stage == 1:
        yield "--use-distributed-optimizer"
    elif stage > 1:
        yield "--use-megatron-fsdp"
        yield from _flag("data-parallel-sharding-strategy", "optim_grads" if stage == 2 else "optim_grads_params")


def _shape(config: Config) -> Words:
    shape = config.shape
    yield from _flag("ffn-hidden-size", mlp_width(config.shape, config.mlp))
    if shape.num_kv_heads != shape.num_attention_heads:
        yield "--group-query-attention"
        yield from _flag("num-query-groups", shape.num_kv_heads)
    yield from _flag("normalization", NORMS[config.norm.norm])
    rms = NORMS[config.norm.norm] == "RMSNorm"
    yield from _flag("norm-epsilon", config.norm.rms_norm_epsilon if rms else config.norm.layernorm_epsilon)
    yield from _flag("swiglu", config.mlp.activation == "swiglu")
    yield from _flag("disable-bias-linear", not config.mlp.use_bias_in_mlp)
    yield from _flag("init-method-xavier-uniform", config.init.init_method == "xavier_uniform")
    if config.attention.sliding_window_width:
        # Tokens to the left and to the right; causal attention has none to the right.
        yield from _flag("window-size", f"{config.attention.sliding_window_width},0")
    if config.attention.attention_backend == "unfused":  # TransformerEngine chooses among fused kernels otherwise
        yield from _flag("attention-backend", "unfused")
    if config.attention.window_attn_skip_freq is not None:
        yield from _flag("window-attn-skip-freq", str(config.attention.window_attn_skip_freq).replace(" ", ""))
    fusion = config.fusion
    if not (fusion.scaled_upper_triang_masked_softmax_fusion or fusion.scaled_masked_softmax_fusion):
        yield "--no-masked-softmax-fusion"
    if not fusion.bias_gelu_fusion:
        yield "--no-bias-swiglu-fusion" if config.mlp.activation == "swiglu" else "--no-bias-gelu-fusion"


def _positions(config: Config) -> Words:
    options, shape = config.rope_scaling, config.shape
    is_yarn = config.embedding.pos_emb == "rotary" and options.rope_type == YARN
    yield from _flag("position-embedding-type", YARN if is_yarn else POSITIONS[config.embedding.pos_emb])
    # Megatron-LM refuses longer sequences, also where positions are scaled.
    yield from _flag("max-position-embeddings", max(shape.max_position_embeddings, shape.seq_length))
    if options.rope_type == "linear":
        yield from _flag("rotary-seq-len-interpolation-factor", f"{options.factor:g}")
    elif options.rope_type == "llama3":
        yield "--use-rope-scaling"
        yield from _flag("rope-scaling-factor", options.factor)
    elif is_yarn:
        context = options.original_max_position_embeddings or shape.max_position_embeddings
        yield from _flag("rotary-scaling-factor", options.factor)
        yield from _flag("yarn-original-max-position-embeddings", context)
        if options.mscale and options.mscale_all_dim:
            yield from _flag("mscale", options.mscale)
            yield from _flag("mscale-all-dim", options.mscale_all_dim)


def _experts(config: Config) -> Words:
    if config.moe.moe_num_experts > 1:
        yield from _flag("num-experts", config.moe.moe_num_experts)
        yield from _flag("moe-layer-freq", config.moe.moe_expert_interval)
        yield from _flag("moe-router-topk", config.moe.moe_top_k)
        if config.moe.moe_router_type == "sinkhorn":
            yield from _flag("moe-router-load-balancing-type", "sinkhorn")
        elif not config.moe.moe_normalize_expert_weights:
            yield "--moe-router-pre-softmax"
        if config.moe.moe_token_dropping:
            yield from _flag("moe-expert-capacity-factor", config.moe.moe_train_capacity_factor)
        if shared := config.moe.moe_num_shared_experts:
            width = shared * mlp_width(config.shape, config.mlp)
            yield from _flag("moe-shared-expert-intermediate-size", width)


def _precision(config: Config) -> Words:
    section = config.fp16
    if config.precision.precision == "bfloat16":
        yield "--bf16"
    if config.precision.precision != "fp16":
        return
    yield "--fp16"
    if section.loss_scale:
        yield from _flag("loss-scale", section.loss_scale)
    else:
        yield from _flag("initial-loss-scale", 2**section.initial_scale_power)
        yield from _flag("min-loss-scale", section.min_loss_scale)
        yield from _flag("loss-scale-window", section.loss_scale_window)
        yield from _flag("hysteresis", section.hysteresis)


def _optimizer(config: Config) -> Words:
    kind = (config.optimizer.type or "adam").lower()
    yield from _flag("optimizer", OPTIMIZERS[kind])
    yield from _flag("optimizer-cpu-offload", kind.startswith("cpu") or config.offload_optimizer.device == "cpu")
    yield from _flag("use-torch-optimizer-for-cpu-offload", kind == "cpu_torch_adam")
    if kind == "sgd":
        # Megatron-LM's default is 0.9.
        yield from _flag("sgd-momentum", config.optimizer_params.momentum or 0.0)
    if kind == "muon":
        yield from _muon(config)
    betas = config.optimizer_params.betas or (LION if kind == "lion" else ())
    for number, beta in enumerate(betas, 1):
        yield from _flag(f"{'lion' if kind == 'lion' else 'adam'}-beta{number}", beta)
    # Always sent, because Megatron-LM clips at 1.0 by default.
    yield from _flag("clip-grad", config.gradients.gradient_clipping)


def _muon(config: Config) -> Words:
    params = config.optimizer_params
    mode, factor = MUON_SCALES[params.adjust_lr_fn]
    yield from _flag("muon-momentum", 0.95 if params.momentum is None else params.momentum)
    yield from _flag("muon-nesterov", params.nesterov is not False)
    yield from _flag("muon-num-ns-steps", params.ns_steps)
    yield from _flag("muon-scale-mode", mode)
    yield from _flag("muon-extra-scale-factor", factor * params.extra_scale_factor)
    yield from _flag("muon-no-split-qkv", not params.split_qkv)


def _recompute(config: Config) -> Words:
    recompute = config.recompute
    if recompute.checkpoint_activations == "selective":  # of ours, Megatron-LM recomputes the norms
        yield from ("--recompute-granularity", "selective", "--recompute-modules", "layernorm")
    elif recompute.checkpoint_activations:
        yield from ("--recompute-granularity", "full", "--recompute-method", "uniform")
        yield from _flag("recompute-num-layers", recompute.checkpoint_num_layers)
        shared = recompute.partition_activations and config.parallel.model_parallel_size > 1
        yield from _flag("distribute-saved-activations", shared)


def _data(config: Config) -> Words:
    data = config.data
    sources = {
        "train-data-path": (data.train_data_paths, data.train_data_weights),
        "valid-data-path": (data.valid_data_paths, data.valid_data_weights),
        "test-data-path": (data.test_data_paths, data.test_data_weights),
    }
    for name, (paths, weights) in sources.items():
        if paths:
            paths = paths.split(",") if isinstance(paths, str) else paths
            pairs = zip(weights or [1.0] * len(paths), paths, strict=True)
            yield from _flag(name, [word for pair in pairs for word in pair])
    if not data.train_data_paths:  # Megatron-LM does not accept `split` together with separate data sets
        split = data.split if isinstance(data.split, str) else ",".join(map(str, data.split))
        yield from _flag("split", split.replace(" ", "").replace("/", ","))


def _tokenizer(config: Config) -> Words:
    tokenizer = config.tokenizer
    name = TOKENIZERS[tokenizer.tokenizer_type]
    yield from _flag("tokenizer-type", name)
    if name == "GPT2BPETokenizer":
        yield from _flag("vocab-file", tokenizer.vocab_file) if tokenizer.vocab_file else ()
        yield from _flag("merge-file", tokenizer.merge_file) if tokenizer.merge_file else ()
    elif name == "NullTokenizer":  # token ids as in the file; the id after the last one ends a document
        yield from _flag("vocab-size", 256)
    elif tokenizer.vocab_file:
        yield from _flag("tokenizer-model", tokenizer.vocab_file)


def _reports(config: Config) -> Words:
    yield from _flag("log-num-zeros-in-grad", config.logging.log_grad_pct_zeros)
    if config.wandb.use_wandb:
        names = {"project": config.wandb.wandb_project, "exp-name": config.wandb.wandb_run_name}
        names["entity"] = config.wandb.wandb_team
        yield from (word for key, value in names.items() if value for word in _flag(f"wandb-{key}", value))


TRANSLATIONS: tuple[Callable[[Config], Words], ...] = (
    _length, _average, _batch_phases, _layout, _shape, _positions, _experts, _precision, _optimizer, _recompute, _data,
    _tokenizer, _reports,
)  # fmt: skip
