"""Megatron-LM's flags that are no single parameter of ours: a table, flag by flag."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neoxargs.launch.megatron import NORMS, POSITIONS
from neoxargs.tools.migrate import computed
from neoxargs.tools.migrate.new_file import Setting

if TYPE_CHECKING:
    from neoxargs.tools.migrate.megatron import Option, Reading

#: Words of BigScience's Megatron-DeepSpeed.
BIGSCIENCES = {"absolute": "learned", "rotary": "rotary", "alibi": "alibi"}
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _sets(name: str, value: Any) -> Callable[[Reading, Option], None]:
    return lambda reading, option: reading.put(name, value)


def _unless_said(name: str, value: Any) -> Callable[[Reading, Option], None]:
    def read(reading: Reading, option: Option) -> None:
        reading.settings.setdefault(name, Setting(value))

    return read


def _named(name: str, words: dict[str, Any]) -> Callable[[Reading, Option], None]:
    """A choice that is spelt differently here."""

    def read(reading: Reading, option: Option) -> None:
        if option.text in words:
            reading.put(name, words[option.text])
        else:
            reading.left_out(option)

    return read


def _renamed(name: str) -> Callable[[Reading, Option], None]:
    return lambda reading, option: reading.say(name, option)


SPECIAL: dict[str, Callable[[Reading, Option], None]] = {
    "pipeline-model-parallel-size": computed.pipeline,
    "no-pipeline-parallel": _sets("pipe_parallel_size", 0),
    "deepspeed-config": computed.deepspeeds_file,
    "context-parallel-size": computed.one_only,
    "expert-model-parallel-size": computed.one_only,
    "use-distributed-optimizer": _sets("zero_optimization.stage", 1),
    "use-megatron-fsdp": _unless_said("zero_optimization.stage", 3),
    "data-parallel-sharding-strategy": _named("zero_optimization.stage", SHARDING),
    "zero-stage": _renamed("zero_optimization.stage"),
    "ffn-hidden-size": computed.ffn_width,
    "group-query-attention": lambda reading, option: None,  # --num-query-groups says it
    "position-embedding-type": _named("pos_emb", {theirs: ours for ours, theirs in POSITIONS.items()} | BIGSCIENCES),
    "use-rotary-position-embeddings": _sets("pos_emb", "rotary"),
    "no-position-embedding": _unless_said("pos_emb", "none"),
    "normalization": _named("norm", {theirs: ours for ours, theirs in reversed(NORMS.items())}),
    "norm-epsilon": computed.epsilon,
    "swiglu": computed.swiglu,
    "disable-bias-linear": computed.no_bias,
    "init-method-xavier-uniform": computed.xavier,
    "window-size": computed.window,
    "kv-channels": computed.head_size,
    "no-masked-softmax-fusion": computed.no_softmax_fusion,
    "no-bias-swiglu-fusion": _sets("bias_gelu_fusion", False),
    "use-flash-attn": _sets("attention_config", [[["flash"], "all"]]),
    "fp16": computed.fp16,
    "bf16": _sets("precision", "bfloat16"),
    "initial-loss-scale": computed.initial_scale,
    "loss-scale": computed.scaling("loss_scale"),
    "loss-scale-window": computed.scaling("loss_scale_window"),
    "hysteresis": computed.scaling("hysteresis"),
    "min-loss-scale": computed.scaling("min_loss_scale"),
    "optimizer": computed.optimizer,
    "optimizer-cpu-offload": computed.on_the_cpu,
    "use-torch-optimizer-for-cpu-offload": computed.on_the_cpu,
    "sgd-momentum": computed.momentum("sgd"),
    "muon-momentum": computed.momentum("muon"),
    "adam-beta1": computed.betas("adam", (0.9, 0.999)),
    "adam-beta2": computed.betas("adam", (0.9, 0.999)),
    "lion-beta1": computed.betas("lion", (0.95, 0.98)),
    "lion-beta2": computed.betas("lion", (0.95, 0.98)),
    "adam-eps": _renamed("optimizer.params.eps"),
    "clip-grad": _renamed("gradient_clipping"),
    "recompute-granularity": computed.recompute,
    "recompute-method": computed.method,
    "recompute-num-layers": _renamed("checkpoint_num_layers"),
    "checkpoint-activations": _sets("checkpoint_activations", True),
    "distribute-saved-activations": _sets("partition_activations", True),
    "data-path": computed.data,
    "train-data-path": computed.paths("train"),
    "valid-data-path": computed.paths("valid"),
    "test-data-path": computed.paths("test"),
    "tokenizer-type": computed.tokenizer,
    "tokenizer-model": _renamed("vocab_file"),
    "vocab-size": computed.vocabulary,
    "train-samples": computed.samples("train_iters"),
    "lr-decay-samples": computed.samples("lr_decay_iters"),
    "lr-decay-style": computed.decay_style,
    "lr-warmup-iters": computed.warmup,
    "lr-warmup-samples": computed.warmup,
    "log-num-zeros-in-grad": _sets("log_grad_pct_zeros", True),
    "wandb-project": computed.tracked("wandb_project"),
    "wandb-exp-name": computed.tracked("wandb_run_name"),
    "wandb-entity": computed.tracked("wandb_team"),
}
