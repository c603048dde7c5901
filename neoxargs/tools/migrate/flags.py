"""Megatron-LM's flags that are no single parameter of ours: a table of small functions, flag by flag."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neoxargs.launch.megatron import NORMS, OPTIMIZERS, POSITIONS, TOKENIZERS
from neoxargs.resolve.nodes import read_plain
from neoxargs.tools.migrate.new_file import Setting

if TYPE_CHECKING:
    from neoxargs.tools.migrate.megatron import Option, Reading

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


def _pipeline(reading: Reading, option: Option) -> None:
    if option.text != "1" and "no-pipeline-parallel" not in reading.options:
        reading.say("pipe_parallel_size", option)


def _deepspeeds_file(reading: Reading, option: Option) -> None:
    why = "migrate that file too: its precision, ZeRO and optimizer are not in this YAML"
    reading.left_out(option, why)


def _width(reading: Reading, option: Option) -> None:
    width = reading.number(option.name)
    gated = "swiglu" in reading.options and width is not None
    reading.say("intermediate_size", option, str(int(3 * width)) if gated and width is not None else None)
    if gated and "intermediate_size" in reading.settings:
        why = f"3 x {option.text}: GPT-NeoX counts gate, value and output"
        reading.put("intermediate_size", reading.settings["intermediate_size"].value, why)


def _swiglu(reading: Reading, option: Option) -> None:
    """The activation, and Megatron-LM's width for it: two thirds of 4 x hidden, in blocks of 64."""
    reading.put("activation", "swiglu")
    hidden = reading.number("hidden-size")
    width = int(4 * hidden * 2 / 3 / 64) * 64 if hidden else 0
    if width > 0 and "ffn-hidden-size" not in reading.options:
        why = f"3 x {width}, Megatron-LM's width for --swiglu: GPT-NeoX counts gate, value and output"
        reading.put("intermediate_size", 3 * width, why)


def _epsilon(reading: Reading, option: Option) -> None:
    rms = "normalization" in reading.options and reading.options["normalization"].text == "RMSNorm"
    reading.say("rms_norm_epsilon" if rms else "layernorm_epsilon", option)


def _xavier(reading: Reading, option: Option) -> None:
    reading.put("init_method", "xavier_uniform")
    reading.put("output_layer_init_method", "xavier_uniform")


def _window(reading: Reading, option: Option) -> None:
    """`W,0`: W tokens before each; -1 is no limit."""
    sides = [read_plain(side.strip(" ()")) for side in ",".join(word.text for word in option.values).split(",")]
    if len(sides) == 2 and isinstance(sides[0], int) and sides[0] > 0 and sides[1] in (0, -1):
        reading.put("sliding_window_width", sides[0])
    elif sides[:1] != [-1]:
        reading.left_out(option, "a window here reaches back from each token: W,0")


def _head_size(reading: Reading, option: Option) -> None:
    hidden, heads = reading.number("hidden-size"), reading.number("num-attention-heads")
    if not (hidden and heads and reading.number(option.name) == hidden / heads):
        reading.left_out(option, "each head is hidden_size / num_attention_heads wide")


def _fp16(reading: Reading, option: Option) -> None:
    """And the first loss scale, unless DeepSpeed chooses it."""
    reading.put("precision", "fp16")
    if not reading.options.keys() & {"loss-scale", "initial-loss-scale", "deepspeed-config"}:
        reading.put("fp16.initial_scale_power", 32, "Megatron-LM's default")


def _no_bias(reading: Reading, option: Option) -> None:
    reading.put("use_bias_in_mlp", False)
    reading.put("use_bias_in_attn_linear", False)


def _no_softmax_fusion(reading: Reading, option: Option) -> None:
    reading.put("scaled_upper_triang_masked_softmax_fusion", False)
    reading.put("scaled_masked_softmax_fusion", False)


def _scaling(key: str) -> Callable[[Reading, Option], None]:
    """Loss scaling, which only fp16 has."""
    return lambda reading, option: reading.say(f"fp16.{key}", option) if "fp16" in reading.options else None


def _initial_scale(reading: Reading, option: Option) -> None:
    scale = reading.number(option.name)
    if "fp16" not in reading.options:
        return
    if scale and math.log2(scale).is_integer():
        reading.put("fp16.initial_scale_power", int(math.log2(scale)))
    else:
        reading.left_out(option, "DeepSpeed begins with a power of two")


def _optimizer(reading: Reading, option: Option) -> None:
    kinds = {"adam": "Adam", "sgd": "SGD", "lion": "Lion", "muon": "Muon"}
    if option.text not in {*kinds} & {*OPTIMIZERS}:
        reading.left_out(option)
    elif "optimizer.type" not in reading.settings:
        reading.put("optimizer.type", kinds[option.text])


def _on_the_cpu(reading: Reading, option: Option) -> None:
    torchs = "use-torch-optimizer-for-cpu-offload" in reading.options
    reading.put("optimizer.type", "cpu_torch_adam" if torchs else "cpu_adam")


def _betas(kind: str, otherwise: tuple[float, float]) -> Callable[[Reading, Option], None]:
    """Both at once; those of another optimizer than the one that runs are nobody's."""

    def read(reading: Reading, option: Option) -> None:
        if reading.chosen_optimizer == kind:
            given = [reading.number(f"{kind}-beta{number}") for number in (1, 2)]
            betas = [default if beta is None else beta for beta, default in zip(given, otherwise, strict=True)]
            reading.say("optimizer.params.betas", option, betas)

    return read


def _momentum(kind: str) -> Callable[[Reading, Option], None]:
    def read(reading: Reading, option: Option) -> None:
        if reading.chosen_optimizer == kind:
            reading.say("optimizer.params.momentum", option)

    return read


def _recompute(reading: Reading, option: Option) -> None:
    if option.text == "full":
        reading.put("checkpoint_activations", True)
    else:
        reading.left_out(option, "checkpoint_activations recomputes whole layers")


def _method(reading: Reading, option: Option) -> None:
    if option.text != "uniform":
        reading.left_out(option, "layers are recomputed uniformly")
    else:
        reading.put("checkpoint_activations", True)


def _paths(part: str) -> Callable[[Reading, Option], None]:
    """`0.3 one 0.7 other`: weights and token files in turn."""

    def read(reading: Reading, option: Option) -> None:
        words = [word.text for word in option.values]
        weights = [read_plain(word) for word in words[::2]]
        if len(words) > 1 and len(words) % 2 == 0 and all(isinstance(w, int | float) for w in weights):
            reading.put(f"{part}_data_weights", [float(weight) for weight in weights])
            words = words[1::2]
        reading.put(f"{part}_data_paths", words)

    return read


def _data(reading: Reading, option: Option) -> None:
    words = [word.text for word in option.values]
    reading.put("data_path", words[0] if len(words) == 1 else [_weight_or_path(word) for word in words])


def _weight_or_path(word: str) -> Any:
    value = read_plain(word)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else word


def _tokenizer(reading: Reading, option: Option) -> None:
    ours = {theirs: our for our, theirs in reversed(TOKENIZERS.items())}
    name = ours.get(option.text)
    null = option.text == "NullTokenizer" and reading.number("vocab-size") != 256
    if name is None or null:
        reading.left_out(option, "" if null else f"here there are {', '.join(TOKENIZERS)}")
    else:
        reading.put("tokenizer_type", name)


def _vocabulary(reading: Reading, option: Option) -> None:
    if "tokenizer-type" not in reading.options or reading.options["tokenizer-type"].text != "NullTokenizer":
        reading.left_out(option, "the tokenizer says how many tokens there are")


def _samples(name: str) -> Callable[[Reading, Option], None]:
    """A number of samples as whole iterations, as Megatron-LM counts them while the batch keeps its size."""

    def read(reading: Reading, option: Option) -> None:
        samples, batch = reading.number(option.name), reading.number("global-batch-size")
        grows = "rampup-batch-size" in reading.options
        if samples and batch and not grows and 0 < batch <= samples:
            left = " rounded down" if samples % batch else ""
            reading.put(name, int(samples // batch), f"{option.text} samples / {batch:g}{left}")
        else:
            reading.left_out(option, f"write {name}: samples / batch size")

    return read


def _warmup(reading: Reading, option: Option) -> None:
    samples = option.name.endswith("samples")
    given, batch = reading.number(option.name), reading.number("global-batch-size")
    kind = "samples" if samples else "iters"
    until = reading.number(f"lr-decay-{kind}") or reading.number(f"train-{kind}")
    if given is not None and until:
        reading.put("warmup", given / until, f"{option.text} of {until:g} {'samples' if samples else 'iterations'}")
    else:
        reading.left_out(option, "write warmup: its share of the iterations" if batch or not samples else "")


def _tracked(name: str) -> Callable[[Reading, Option], None]:
    def read(reading: Reading, option: Option) -> None:
        reading.put("use_wandb", True)
        reading.say(name, option)

    return read


def _one_only(reading: Reading, option: Option) -> None:
    if option.text != "1":
        reading.left_out(option)


SPECIAL: dict[str, Callable[[Reading, Option], None]] = {
    "pipeline-model-parallel-size": _pipeline,
    "no-pipeline-parallel": _sets("pipe_parallel_size", 0),
    "deepspeed-config": _deepspeeds_file,
    "context-parallel-size": _one_only,
    "expert-model-parallel-size": _one_only,
    "use-distributed-optimizer": _sets("zero_optimization.stage", 1),
    "use-megatron-fsdp": _unless_said("zero_optimization.stage", 3),
    "data-parallel-sharding-strategy": _named("zero_optimization.stage", SHARDING),
    "zero-stage": _renamed("zero_optimization.stage"),
    "ffn-hidden-size": _width,
    "group-query-attention": lambda reading, option: None,  # --num-query-groups says it
    "position-embedding-type": _named("pos_emb", {theirs: ours for ours, theirs in POSITIONS.items()}),
    "use-rotary-position-embeddings": _sets("pos_emb", "rotary"),
    "no-position-embedding": _unless_said("pos_emb", "none"),
    "normalization": _named("norm", {theirs: ours for ours, theirs in reversed(NORMS.items())}),
    "norm-epsilon": _epsilon,
    "swiglu": _swiglu,
    "disable-bias-linear": _no_bias,
    "init-method-xavier-uniform": _xavier,
    "window-size": _window,
    "kv-channels": _head_size,
    "no-masked-softmax-fusion": _no_softmax_fusion,
    "no-bias-swiglu-fusion": _sets("bias_gelu_fusion", False),
    "use-flash-attn": _sets("attention_config", [[["flash"], "all"]]),
    "fp16": _fp16,
    "bf16": _sets("precision", "bfloat16"),
    "initial-loss-scale": _initial_scale,
    "loss-scale": _scaling("loss_scale"),
    "loss-scale-window": _scaling("loss_scale_window"),
    "hysteresis": _scaling("hysteresis"),
    "min-loss-scale": _scaling("min_loss_scale"),
    "optimizer": _optimizer,
    "optimizer-cpu-offload": _on_the_cpu,
    "use-torch-optimizer-for-cpu-offload": _on_the_cpu,
    "sgd-momentum": _momentum("sgd"),
    "muon-momentum": _momentum("muon"),
    "adam-beta1": _betas("adam", (0.9, 0.999)),
    "adam-beta2": _betas("adam", (0.9, 0.999)),
    "lion-beta1": _betas("lion", (0.95, 0.98)),
    "lion-beta2": _betas("lion", (0.95, 0.98)),
    "adam-eps": _renamed("optimizer.params.eps"),
    "clip-grad": _renamed("gradient_clipping"),
    "recompute-granularity": _recompute,
    "recompute-method": _method,
    "recompute-num-layers": _renamed("checkpoint_num_layers"),
    "checkpoint-activations": _sets("checkpoint_activations", True),
    "distribute-saved-activations": _sets("partition_activations", True),
    "data-path": _data,
    "train-data-path": _paths("train"),
    "valid-data-path": _paths("valid"),
    "test-data-path": _paths("test"),
    "tokenizer-type": _tokenizer,
    "tokenizer-model": _renamed("vocab_file"),
    "vocab-size": _vocabulary,
    "train-samples": _samples("train_iters"),
    "lr-decay-samples": _samples("lr_decay_iters"),
    "lr-warmup-iters": _warmup,
    "lr-warmup-samples": _warmup,
    "log-num-zeros-in-grad": _sets("log_grad_pct_zeros", True),
    "wandb-project": _tracked("wandb_project"),
    "wandb-exp-name": _tracked("wandb_run_name"),
    "wandb-entity": _tracked("wandb_team"),
}
