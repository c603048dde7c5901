"""A Megatron-LM command line, or the script around it, as our YAML; the way back of `--emit megatron`.

Most flags are the `megatron=` of one parameter, or its older name. The rest is a table of small functions below;
what has no counterpart is listed. Where a flag is not given and Megatron-LM's default is not ours, it is written.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from neoxargs.launch.megatron import NORMS, OPTIMIZERS, POSITIONS, TOKENIZERS
from neoxargs.problems import Place, Problem, Problems, near
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import Text
from neoxargs.resolve.check import Mismatch, conform
from neoxargs.resolve.nodes import Scalar, node_of, read_plain
from neoxargs.tools.migrate_deepspeed import Written
from neoxargs.tools.migrate_shell import Word, commands
from neoxargs.tools.migrate_yaml import Setting, yaml_text

#: Programs that start ranks, and what their flags are here.
LAUNCHER = {
    "nproc_per_node": "num_gpus", "nnodes": "num_nodes", "master_addr": "master_addr", "master_port": "master_port",
    "num_gpus": "num_gpus", "num_nodes": "num_nodes", "hostfile": "hostfile", "include": "include",
    "exclude": "exclude",
}  # fmt: skip
#: Earlier names of Megatron-LM's flags that the registry does not have.
EARLIER = {
    "batch-size": "micro-batch-size",
    "intra-layer-model-parallel-size": "tensor-model-parallel-size",
    "activations-checkpoint-num-layers": "recompute-num-layers",
    "activations-checkpoint-method": "recompute-method",
    "layernorm-epsilon": "norm-epsilon",
    "min-scale": "min-loss-scale",
    "lr-warmup-percent": "lr-warmup-fraction",
    "use-custom-fsdp": "use-megatron-fsdp",
}
#: What changes how Megatron-LM computes or reports, not what.
NEUTRAL = {
    "use-mcore-models", "use-legacy-models", "transformer-impl", "overlap-grad-reduce", "overlap-param-gather",
    "tp-comm-overlap", "no-async-tensor-model-parallel-allreduce", "distributed-timeout-minutes", "timing-log-level",
    "log-throughput", "log-timers-to-tensorboard", "log-memory-to-tensorboard", "log-validation-ppl-to-tensorboard",
    "log-batch-size-to-tensorboard", "tensorboard-queue-size", "tensorboard-log-interval", "log-progress",
    "no-create-attention-mask-in-dataloader", "no-gradient-accumulation-fusion", "manual-gc", "manual-gc-interval",
    "ckpt-format", "async-save", "use-dist-ckpt", "local-rank", "data-impl", "DDP-impl", "data-cache-path",
    "num-dataset-builder-threads", "dataloader-type", "no-mmap-bin-files", "deepspeed",
}  # fmt: skip
#: Megatron-LM's defaults that are not this dialect's.
DEFAULTS = {"attention_dropout": 0.1, "hidden_dropout": 0.1, "weight_decay": 0.01, "warmup": 0.0}
#: Fusions that are on unless a flag says no.
FUSIONS = (
    "scaled_upper_triang_masked_softmax_fusion", "scaled_masked_softmax_fusion", "bias_gelu_fusion",
    "bias_dropout_fusion", "rope_fusion",
)  # fmt: skip
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


class Option(NamedTuple):
    """One flag with its values."""

    name: str
    values: list[Word]
    place: Place

    @property
    def text(self) -> str:
        return self.values[0].text if self.values else ""


def is_megatrons(text: Text) -> bool:
    """Does some command in the text have flags of Megatron-LM?"""
    return bool(re.search(r"--num[-_]layers\b", text.text))


def converted(text: Text) -> Written:
    """The YAML of a script's command; raises Problems where a value is missing or wrong."""
    found = max(commands(text), key=_flags, default=[])
    if not _flags(found):
        hint = "a command with flags such as --num-layers 24 is looked for"
        raise Problems([Problem("there is no command line of Megatron-LM in this file", Place(text.name, 0, 0), hint)])
    reading = _Reading(found)
    reading.read()
    if any(problem.severity == "error" for problem in reading.problems):
        raise Problems(reading.problems)
    head = [f"From {os.path.basename(text.name)} by deepy migrate."]
    body = yaml_text(reading.settings, head)
    return Written(f"{body}dialect: neox-2026\n", problems=reading.problems)


def _flags(words: Sequence[Word]) -> int:
    return sum(word.text.startswith("--") for word in words)


class _Reading:
    def __init__(self, words: Sequence[Word]) -> None:
        script = next((i for i, word in enumerate(words) if word.text.endswith(".py")), -1)
        self.launcher = _options(words[: max(script, 0)])
        self.options = _options(words[script + 1 :])
        self.settings: dict[str, Setting] = {}
        self.problems: list[Problem] = []

    def read(self) -> None:
        for option in self.launcher.values():
            if name := LAUNCHER.get(normal(option.name)):
                self.say(name, option)
        for name in FUSIONS:
            self.settings[name] = Setting(True, behind="Megatron-LM's default")
        for option in self.options.values():
            self.option(option)
        for name, value in DEFAULTS.items():
            self.settings.setdefault(name, Setting(value, behind="Megatron-LM's default"))

    def option(self, option: Option) -> None:
        if any(not word.is_known for word in option.values):
            what = f"--{option.name}: the script does not say what {option.text} is"
            self.problems.append(Problem(what, option.values[0].place, "set the variable in the script"))
        elif option.name in SPECIAL:
            SPECIAL[option.name](self, option)
        elif option.name in NEUTRAL:
            self.left_out(option, "it changes how Megatron-LM computes, not what")
        elif names := _by_flag().get(option.name):
            for name in names:
                self.say(name, option)
        elif option.name.startswith("no-") and (names := _by_flag().get(f"!{option.name}")):
            for name in names:
                self.put(name, False)
        elif (parameter := REGISTRY.find(option.name)) and "." not in parameter.name:
            self.say(parameter.name, option)
        else:
            self.left_out(option)

    def left_out(self, option: Option, why: str = "") -> None:
        known = [*SPECIAL, *NEUTRAL, *(flag.lstrip("!") for flag in _by_flag())]
        meant = [f"--{flag}" for flag in near(option.name, known)]
        hint = why or (f"did you mean {' or '.join(meant)}?" if meant else "it is left out")
        values = "".join(f" {word.text}" for word in option.values)
        what = f"--{option.name}{values} has no counterpart"
        self.problems.append(Problem(what, option.place, hint, severity="warning"))

    def say(self, name: str, option: Option, value: Any = None) -> None:
        """Set a parameter to the option's value, which must fit its type; a flag alone says true."""
        words = [word.text for word in option.values]
        given = value if value is not None else words if len(words) > 1 else words[0] if words else True
        place = option.values[0].place if option.values else option.place
        node = Scalar(read_plain(given), given, False, place) if isinstance(given, str) else node_of(given)
        try:
            fitting = conform(node, REGISTRY.parameters[name].type)
        except Mismatch as bad:
            self.problems.append(Problem(bad.sentence(f"--{option.name}"), place, bad.hint))
            return
        is_number = isinstance(fitting, int | float) and not isinstance(fitting, bool)
        self.settings[name] = Setting(fitting, given if is_number and isinstance(given, str) else "")

    def put(self, name: str, value: Any, behind: str = "") -> None:
        self.settings[name] = Setting(value, behind=behind)

    def number(self, name: str) -> float | None:
        """The value of another flag as a number."""
        value = read_plain(self.options[name].text) if name in self.options else None
        return value if isinstance(value, int | float) else None


def _options(words: Sequence[Word]) -> dict[str, Option]:
    """Flags with their values, each under today's spelling; of a repeated flag the last counts, as for argparse."""
    found: dict[str, Option] = {}
    last: Option | None = None
    for word in words:
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            name = name.replace("_", "-")
            name = EARLIER.get(name, name)
            last = found[name] = Option(name, [Word(value, word.place)] if equals else [], word.place)
        elif last:
            last.values.append(word)
    return found


@cache
def _by_flag() -> dict[str, list[str]]:
    """Flag -> the parameters that are it; a leading `!` marks a flag that says false."""
    found: dict[str, list[str]] = {}
    for parameter in REGISTRY.parameters.values():
        if parameter.megatron and not parameter.becomes:
            found.setdefault(parameter.megatron, []).append(parameter.name)
    return found


# -- flags that are no single parameter ------------------------------------------------------------------------------


def _sets(name: str, value: Any) -> Callable[[_Reading, Option], None]:
    return lambda reading, option: reading.put(name, value)


def _unless_said(name: str, value: Any) -> Callable[[_Reading, Option], None]:
    def read(reading: _Reading, option: Option) -> None:
        reading.settings.setdefault(name, Setting(value))

    return read


def _named(name: str, words: dict[str, Any]) -> Callable[[_Reading, Option], None]:
    """A choice that is spelt differently here."""

    def read(reading: _Reading, option: Option) -> None:
        if option.text in words:
            reading.put(name, words[option.text])
        else:
            reading.left_out(option)

    return read


def _renamed(name: str) -> Callable[[_Reading, Option], None]:
    return lambda reading, option: reading.say(name, option)


def _pipeline(reading: _Reading, option: Option) -> None:
    if option.text != "1":
        reading.say("pipe_parallel_size", option)


def _width(reading: _Reading, option: Option) -> None:
    width = reading.number(option.name)
    gated = "swiglu" in reading.options and width is not None
    reading.say("intermediate_size", option, str(int(3 * width)) if gated and width is not None else None)
    if gated and "intermediate_size" in reading.settings:
        why = f"3 x {option.text}: GPT-NeoX counts gate, value and output"
        reading.put("intermediate_size", reading.settings["intermediate_size"].value, why)


def _epsilon(reading: _Reading, option: Option) -> None:
    rms = "normalization" in reading.options and reading.options["normalization"].text == "RMSNorm"
    reading.say("rms_norm_epsilon" if rms else "layernorm_epsilon", option)


def _no_bias(reading: _Reading, option: Option) -> None:
    reading.put("use_bias_in_mlp", False)
    reading.put("use_bias_in_attn_linear", False)


def _no_softmax_fusion(reading: _Reading, option: Option) -> None:
    reading.put("scaled_upper_triang_masked_softmax_fusion", False)
    reading.put("scaled_masked_softmax_fusion", False)


def _scaling(key: str) -> Callable[[_Reading, Option], None]:
    """Loss scaling, which only fp16 has."""
    return lambda reading, option: reading.say(f"fp16.{key}", option) if "fp16" in reading.options else None


def _initial_scale(reading: _Reading, option: Option) -> None:
    scale = reading.number(option.name)
    if "fp16" not in reading.options:
        return
    if scale and math.log2(scale).is_integer():
        reading.put("fp16.initial_scale_power", int(math.log2(scale)))
    else:
        reading.left_out(option, "DeepSpeed begins with a power of two")


def _optimizer(reading: _Reading, option: Option) -> None:
    kinds = {"adam": "Adam", "sgd": "SGD", "lion": "Lion", "muon": "Muon"}
    if option.text not in {*kinds} & {*OPTIMIZERS}:
        reading.left_out(option)
    elif "optimizer.type" not in reading.settings:
        reading.put("optimizer.type", kinds[option.text])


def _on_the_cpu(reading: _Reading, option: Option) -> None:
    torchs = "use-torch-optimizer-for-cpu-offload" in reading.options
    reading.put("optimizer.type", "cpu_torch_adam" if torchs else "cpu_adam")


def _betas(reading: _Reading, option: Option) -> None:
    first, second = reading.number("adam-beta1"), reading.number("adam-beta2")
    betas = [0.9 if first is None else first, 0.999 if second is None else second]
    reading.say("optimizer.params.betas", option, betas)


def _recompute(reading: _Reading, option: Option) -> None:
    if option.text == "full":
        reading.put("checkpoint_activations", True)
    else:
        reading.left_out(option, "checkpoint_activations recomputes whole layers")


def _method(reading: _Reading, option: Option) -> None:
    if option.text != "uniform":
        reading.left_out(option, "layers are recomputed uniformly")
    else:
        reading.put("checkpoint_activations", True)


def _paths(part: str) -> Callable[[_Reading, Option], None]:
    """`0.3 one 0.7 other`: weights and token files in turn."""

    def read(reading: _Reading, option: Option) -> None:
        words = [word.text for word in option.values]
        weights = [read_plain(word) for word in words[::2]]
        if len(words) > 1 and len(words) % 2 == 0 and all(isinstance(w, int | float) for w in weights):
            reading.put(f"{part}_data_weights", [float(weight) for weight in weights])
            words = words[1::2]
        reading.put(f"{part}_data_paths", words)

    return read


def _data(reading: _Reading, option: Option) -> None:
    words = [word.text for word in option.values]
    reading.put("data_path", words[0] if len(words) == 1 else [_weight_or_path(word) for word in words])


def _weight_or_path(word: str) -> Any:
    value = read_plain(word)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else word


def _tokenizer(reading: _Reading, option: Option) -> None:
    ours = {theirs: our for our, theirs in reversed(TOKENIZERS.items())}
    name = ours.get(option.text)
    null = option.text == "NullTokenizer" and reading.number("vocab-size") != 256
    if name is None or null:
        reading.left_out(option, "" if null else f"here there are {', '.join(TOKENIZERS)}")
    else:
        reading.put("tokenizer_type", name)


def _vocabulary(reading: _Reading, option: Option) -> None:
    if "tokenizer-type" not in reading.options or reading.options["tokenizer-type"].text != "NullTokenizer":
        reading.left_out(option, "the tokenizer says how many tokens there are")


def _samples(name: str) -> Callable[[_Reading, Option], None]:
    """A number of samples as iterations."""

    def read(reading: _Reading, option: Option) -> None:
        samples, batch = reading.number(option.name), reading.number("global-batch-size")
        if samples and batch and samples % batch == 0:
            reading.put(name, int(samples // batch), f"{option.text} samples / {batch:g}")
        else:
            reading.left_out(option, f"write {name}: samples / batch size")

    return read


def _warmup(reading: _Reading, option: Option) -> None:
    samples = option.name.endswith("samples")
    given, batch = reading.number(option.name), reading.number("global-batch-size")
    kind = "samples" if samples else "iters"
    until = reading.number(f"lr-decay-{kind}") or reading.number(f"train-{kind}")
    if given is not None and until:
        reading.put("warmup", given / until, f"{option.text} of {until:g} {'samples' if samples else 'iterations'}")
    else:
        reading.left_out(option, "write warmup: its share of the iterations" if batch or not samples else "")


def _tracked(name: str) -> Callable[[_Reading, Option], None]:
    def read(reading: _Reading, option: Option) -> None:
        reading.put("use_wandb", True)
        reading.say(name, option)

    return read


def _one_only(reading: _Reading, option: Option) -> None:
    if option.text != "1":
        reading.left_out(option)


SPECIAL: dict[str, Callable[[_Reading, Option], None]] = {
    "pipeline-model-parallel-size": _pipeline,
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
    "swiglu": _sets("activation", "swiglu"),
    "disable-bias-linear": _no_bias,
    "no-masked-softmax-fusion": _no_softmax_fusion,
    "no-bias-swiglu-fusion": _sets("bias_gelu_fusion", False),
    "use-flash-attn": _sets("attention_config", [[["flash"], "all"]]),
    "fp16": _sets("precision", "fp16"),
    "bf16": _sets("precision", "bfloat16"),
    "initial-loss-scale": _initial_scale,
    "loss-scale": _scaling("loss_scale"),
    "loss-scale-window": _scaling("loss_scale_window"),
    "hysteresis": _scaling("hysteresis"),
    "min-loss-scale": _scaling("min_loss_scale"),
    "optimizer": _optimizer,
    "optimizer-cpu-offload": _on_the_cpu,
    "use-torch-optimizer-for-cpu-offload": _on_the_cpu,
    "sgd-momentum": _renamed("optimizer.params.momentum"),
    "adam-beta1": _betas,
    "adam-beta2": _betas,
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
