"""Makes a configuration small enough to train in seconds: every switch stays, sizes and lengths are reduced by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neoxargs.base.record import Record, replace
from neoxargs.commands.verify.token_data import data_values
from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import PHASES, RAMP, BatchSizes
from neoxargs.facts.layout import Layout, ranks_of_replica
from neoxargs.facts.lr_phases import LEFT
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.facts.sequence_lengths import SequenceLengths
from neoxargs.resolve import Draft, complete
from neoxargs.resolve.rules.synonyms import names_of_setting

#: The most ranks of a trial.
RANKS = 4
STEPS = 20
#: Iterations of the trials of single settings, after which a run of STEPS iterations ends.
SHORT = 6
SEQUENCE = 32
#: Tokens in a sliding window: few, so that it hides some of a sequence after several layers.
WINDOW = 4
#: Features of an attention head.
HEAD = 16
EXPERTS = 4
#: Rows of the embedding, for the 257 tokens of ByteLevelTokenizer.
ROWS = 320
#: Iterations between evaluations, between checkpoints, and between log lines.
EVALUATE, SAVE, LOG = 4, 4, 2
#: The fewest iterations of a warm-up, if there is one.
WARM_UP = 2

MICRO = "train_micro_batch_size_per_gpu"

Values = dict[str, Any]

#: What is left out of every trial: programs of others, other machines, and what measures instead of training.
OFF: Values = {
    "hostfile": None, "wandb.use_wandb": False, "use_wandb": False, "use_comet": False, "profile": False,
    "memory_profiling": False, "autotuning.enabled": False, "flops_profiler.enabled": False, "eval_tasks": None,
    "load": None, "finetune": False, "base_checkpoint": None, "s3_path": None, "save_base_shapes": False,
    "coord_check": False, "exit_interval": None, "train_epochs": None,
    "train_samples": None, "lr_decay_samples": None, "vocab_file": None, "merge_file": None,
    "adlr_autoresume": False, "checkpoint.load_universal": False, "peak_theoretical_tflops": None,
}  # fmt: skip


class Small(Record):
    """A small run with the switches of a configuration."""

    full: Config
    draft: Draft
    """The user's files."""
    values: Values
    """What replaces their values, by registry name."""
    ranks: int

    def config(self, folder: Path, changes: Values, ranks: int | None = None) -> Config:
        """Return the configuration of a trial, which writes to `folder`; raises Problems."""
        places: Values = {"run_dir": str(folder), "save": str(folder / "checkpoints")}
        places |= {name: str(folder / name) for name in ("tensorboard_dir", "log_dir") if self.full.get(name)}
        values = {**self.values, **places, **self.with_synonyms(changes)}
        return complete(self.draft.with_values(values), ranks or self.ranks)

    def with_synonyms(self, changes: Values) -> Values:
        """Return the changes, also under the other names of a setting that the user wrote."""
        written = {
            other: value
            for name, value in changes.items()
            for other in names_of_setting(name)
            if self.full.is_set(other) and other not in changes and self.full.get(other) == self.full.get(name)
        }
        return {**changes, **written}


def shrink(config: Config, draft: Draft, folder: Path) -> Small:
    """Return the small run of a complete configuration. folder: of its token files, which are written."""
    parallel = config.parallel
    tensor, pipe = min(parallel.model_parallel_size, 2), min(parallel.pipe_parallel_size, 2)
    context = min(parallel.context_parallel_size, RANKS // (tensor * max(pipe, 1)), 2)
    replica = ranks_of_replica(tensor, pipe, context)
    data = min(Layout.of(config).data, RANKS // replica, 2)
    values = {
        **{name: value for name, value in OFF.items() if config.is_set(name)},
        **_model(config, max(pipe, 1)),
        **_lengths(config),
        **_batch(config, data),
        **data_values(config, folder),
        "model_parallel_size": tensor,
        "pipe_parallel_size": pipe,
        "context_parallel_size": context,
        "moe_expert_parallel_size": min(parallel.moe_expert_parallel_size, data * context, 2),
        "tokenizer_type": "ByteLevelTokenizer",
        "padded_vocab_size": ROWS,
        "log_grad_norm": True,
    }
    small = Small(config, draft, {}, replica * data)
    return replace(small, values=small.with_synonyms(values))


def one_process(small: Small) -> Values:
    """Return the changes after which a small run has one rank and computes in fp32, without random numbers."""
    return {
        **in_fp32(small.full),
        "gradient_accumulation_steps": small.values["train_batch_size"] // small.values[MICRO],
        "model_parallel_size": 1,
        "pipe_parallel_size": 0,
        "context_parallel_size": 1,
        "moe_expert_parallel_size": 1,
        "sequence_parallel": False,
    }


def in_fp32(config: Config) -> Values:
    """Return the changes after which a small run computes in fp32 and draws no random numbers."""
    values: Values = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    if config.moe.moe_jitter_eps:
        values["moe_jitter_eps"] = 0.0
    if config.lora.dropout:
        values["lora.dropout"] = 0.0
    for name, value in (("precision", "fp32"), ("fp16.enabled", False), ("bf16.enabled", False)):
        if config.is_set(name):
            values[name] = value
    return values


def _model(config: Config, stages: int) -> Values:
    shape, moe = config.shape, config.moe
    # The kinds of layers, each once, if they are given.
    kinds = list(dict.fromkeys(config.attention.attention_config)) if config.is_set("attention_config") else []
    skip = config.attention.window_attn_skip_freq
    layers = max(2, stages, len(kinds), skip if isinstance(skip, int) else 2, moe.moe_expert_interval)
    layers += -layers % stages
    grouped = min(shape.num_attention_heads // shape.num_kv_heads, 4)
    kv = 4 if grouped == 1 else 1 if shape.num_kv_heads == 1 else 2
    heads = 4 if shape.num_kv_heads == 1 else kv * grouped
    hidden = HEAD * heads
    values: Values = {"num_layers": layers, "num_attention_heads": heads, "num_kv_heads": kv, "hidden_size": hidden}
    if shape.head_dim:
        times = shape.head_dim * shape.num_attention_heads / shape.hidden_size
        values["head_dim"] = max(8, round(HEAD * times / 8) * 8)
    if config.is_set("intermediate_size"):
        # Divisible by the three matrices of a gated MLP and two ranks.
        values["intermediate_size"] = max(24, round(shape.intermediate_size / shape.hidden_size * hidden / 24) * 24)
    if shape.num_unique_layers:
        values["num_unique_layers"] = max(1, shape.num_unique_layers * layers // shape.num_layers)
    if kinds:
        values["attention_config"] = [[[kinds[layer % len(kinds)]], 1] for layer in range(layers)]
    if isinstance(skip, list):
        values["window_attn_skip_freq"] = [layer % 2 for layer in range(layers)]
    if moe.moe_num_experts > 1:
        values |= {"moe_num_experts": EXPERTS, "moe_top_k": min(moe.moe_top_k, EXPERTS // 2)}
    return values


def _lengths(config: Config) -> Values:
    """Return the lengths in tokens and in iterations."""
    shape = config.shape
    tokens, steps = SEQUENCE / shape.seq_length, STEPS / config.training.train_iters
    values: Values = {"seq_length": SEQUENCE, "train_iters": STEPS, "eval_iters": 1, "num_workers": 0}
    values |= {"eval_interval": EVALUATE, "checkpoint_factor": SAVE, "log_interval": LOG, "maximum_tokens": 4}
    for name in ("max_position_embeddings", "rope_scaling.original_max_position_embeddings", "rpe_max_distance"):
        if config.is_set(name):
            values[name] = max(8, round(config.get(name) * tokens))
    if config.attention.sliding_window_width:
        values["sliding_window_width"] = WINDOW
    if SequenceLengths.of(config.get).changes:
        lengths = [{"until": STEPS // 4, "length": SEQUENCE // 2}, {"length": SEQUENCE}]
        values["seq_length_schedule"] = lengths
    values |= _schedule(config, steps)
    if config.checkpoint.extra_save_iters:
        values["extra_save_iters"] = [SAVE // 2]
    if config.get("fp16.enabled"):
        values["fp16.initial_scale_power"] = 8
    return values


def _batch(config: Config, replicas: int) -> Values:
    """Return a batch of two micro batches of every replica, or of one if the file has no accumulation."""
    accumulates = not config.is_set("gradient_accumulation_steps") or config.batch.gradient_accumulation_steps > 1
    micro, steps = 2, 2 if accumulates else 1
    unit = micro * replicas
    ramp: Values = {}
    if config.get(RAMP):
        ramp = {RAMP: [unit, unit, STEPS // 4 * unit]}
    elif BatchSizes.of(config.get).changes:
        ramp = {PHASES: [{"until": STEPS // 4, "size": unit}, {"size": steps * unit}]} if steps > 1 else {PHASES: None}
    return {"train_batch_size": steps * unit, MICRO: micro, "gradient_accumulation_steps": steps, **ramp}


def _schedule(config: Config, steps: float) -> Values:
    """Return the lengths of the learning rate schedule, multiplied by `steps`."""
    schedule, decay = config.schedule, STEPS
    if schedule.lr_schedule:
        return {"lr_schedule": _phases(config, steps)}
    values: Values = {}
    if config.is_set("lr_decay_iters"):
        values["lr_decay_iters"] = decay = max(WARM_UP, round(schedule.lr_decay_iters * steps))
    if schedule.warmup:
        values["warmup"] = max(schedule.warmup, WARM_UP / decay)
    if schedule.lr_wsd_decay_iters:
        values["lr_wsd_decay_iters"] = decay - WARM_UP - 1  # so that runs which end early see it
    for name in ("warmup_num_steps", "total_num_steps", "cycle_first_step_size", "cycle_second_step_size"):
        if config.is_set(f"scheduler.params.{name}"):
            values[f"scheduler.params.{name}"] = max(3, round(config.get(f"scheduler.params.{name}") * steps))
    return values


def _phases(config: Config, steps: float) -> list[dict[str, Any]]:
    """Return the phases of lr_schedule with their ends multiplied by `steps`, in iterations."""
    found: list[dict[str, Any]] = []
    for style, until, start, end in LearningRateCurve.of(config.get).phases:
        last = found[-1]["until"] if found else 0
        rates = {"from": start, **({"to": end} if style in LEFT else {})}
        found.append({"style": style, "until": max(last + 1, round(until * steps)), **rates})
    return found
