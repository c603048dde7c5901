"""Megatron-LM flags whose parameter has to be computed, mostly from other flags: one function each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.facts.context import HYBRID
from neoxargs.migrate.megatron import experts
from neoxargs.migrate.megatron.list_expressions import list_of
from neoxargs.migrate.megatron.reading import Option, Reading
from neoxargs.resolve.yaml.nodes import read_plain
from neoxargs.targets.megatron_tables import (
    CONTEXT_STYLES,
    LLAMA3_CONTEXT,
    MUON_SCALES,
    OPTIMIZERS,
    POSITIONS,
    TOKENIZERS,
    YARN,
)

#: `--position-embedding-type` of BigScience's Megatron-DeepSpeed.
BIGSCIENCE_POSITIONS = {"absolute": "learned", "rotary": "rotary", "alibi": "alibi"}
OF_YARN = f"--position-embedding-type {YARN}"
#: Megatron-LM's default of --yarn-original-max-position-embeddings.
YARN_CONTEXT = 4096
#: With it, each of the paths of --valid-data-path is a validation set of its own.
SETS = "multiple-validation-sets"
#: Their names, in the order of the paths.
SET_NAMES = "validation-set-names"
#: Tokenizer of Megatron-LM or a fork -> the one that reads the same files.
SIMILAR_TOKENIZERS = {
    "Llama2Tokenizer": "SPMTokenizer", "GPTSentencePieceTokenizer": "SPMTokenizer",
    "HFTokenizer": "HFTokenizer", "Llama3Tokenizer": "HFTokenizer", "AutoTokenizer": "HFTokenizer",
}  # fmt: skip
#: `--data-parallel-sharding-strategy` of Megatron-LM's FSDP -> ZeRO's stage; the last is the default.
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
STRATEGY, KEPT = "data-parallel-sharding-strategy", "torch-fsdp2-no-reshard-after-forward"
SHARDED = ("use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2", STRATEGY, KEPT)


def pipeline(reading: Reading, option: Option) -> None:
    # A single stage is no pipeline: pipe_parallel_size stays 0, DeepSpeed's plain engine.
    if option.text != "1" and "no-pipeline-parallel" not in reading.options:
        reading.set_from(option, "pipe_parallel_size")


def context_style(reading: Reading, option: Option) -> None:
    given = " ".join(word.text for word in option.values)
    styles = {theirs: ours for ours, theirs in CONTEXT_STYLES.items()}
    if style := styles.get(given):
        reading.set("context_parallel_style", style)
    else:
        reading.leave_out(option, f"context_parallel_style is one of {listed([*CONTEXT_STYLES], 'and')} for all layers")


def context_groups(reading: Reading, option: Option) -> None:
    """Compare the sizes with those of `hybrid`: ranks that exchange heads, and their groups in the ring."""
    heads_flag = "num-query-groups" if "group-query-attention" in reading.options else "num-attention-heads"
    flags = "context-parallel-size", "tensor-model-parallel-size", heads_flag
    ranks, tensor, heads = (int(text) if (text := reading.text(flag)).isdecimal() else 1 for flag in flags)
    sizes = [int(word.text) if word.text.isdecimal() else 0 for word in option.values]
    sharing = math.gcd(heads // max(tensor, 1), ranks)
    if math.prod(sizes) != ranks:
        why = f"the product of the sizes is not --context-parallel-size ({ranks}), and Megatron-LM refuses that"
        reading.leave_out(option, why, "set context_parallel_size in the new file to the number that is right")
    elif CONTEXT_STYLES[HYBRID] not in reading.text("cp-comm-type"):
        reading.leave_out(option, f"it has no effect without --cp-comm-type {CONTEXT_STYLES[HYBRID]}")
    elif sizes != [sharing, ranks // sharing]:
        why = f"context_parallel_style: {HYBRID} takes {sharing} x {ranks // sharing} ranks, as the heads allow"
        reading.leave_out(option, why)


def deepspeeds_file(reading: Reading, option: Option) -> None:
    why = "the script does not contain DeepSpeed's JSON, which configures precision, ZeRO and the optimizer"
    reading.leave_out_with_note(option, why, "migrate the JSON too, and pass both new files to every deepy command")


def sharding(reading: Reading, option: Option) -> None:
    """Read what data parallel ranks divide among them, whatever the order of the flags in `SHARDED`."""
    stage, detail = (1 if "use-distributed-optimizer" in reading.options else None), ""
    if "use-megatron-fsdp" in reading.options:
        stage, detail = STRATEGIES.get(reading.text(STRATEGY) or [*STRATEGIES][-1]), STRATEGY
    elif "use-torch-fsdp2" in reading.options:
        stage, detail = 2 if KEPT in reading.options else 3, KEPT
    if option.name in (STRATEGY, KEPT) and option.name != detail:
        reading.leave_out(option, "it has no effect without the FSDP that reads it")
    elif stage is None:
        reading.leave_out(option)
    else:
        reading.set("zero_optimization.stage", stage)


def pretrained(reading: Reading, option: Option) -> None:
    """Megatron-LM starts from these weights, as with --finetune, where --load has no checkpoint yet."""
    hint = "for the first launch, set load to a checkpoint of these weights, and finetune: true"
    reading.leave_to_write(option, "load", hint, "its weights must be converted first (deepy import)")


def load_tag(reading: Reading, option: Option) -> None:
    if step := re.fullmatch(r"global_step(\d+)", option.text):
        reading.set("iteration", int(step[1]))
    else:
        reading.leave_to_write(option, "iteration", "set iteration in the new file to that of the checkpoint")


def sample_order(reading: Reading, option: Option) -> None:
    if option.text != "single":
        reading.leave_out_with_note(option, "deepy reads samples in the order of --dataloader-type single")


def ffn_width(reading: Reading, option: Option) -> None:
    width = reading.number(option.name)
    if experts.width(reading) is not None:
        return  # --moe-ffn-hidden-size replaces it in every layer
    if reading.is_gated and width and width > 0:
        reading.set_width(width, option.text)
    else:
        reading.set_from(option, "intermediate_size")


def swiglu(reading: Reading, option: Option) -> None:
    """Set the activation, and Megatron-LM's default width for it: 8/3 of the hidden size, a multiple of 64."""
    reading.set("activation", "swiglu")
    _default_width(reading, "--swiglu")


def glu_activation(reading: Reading, option: Option) -> None:
    """Set a gated activation of BigScience's and others' forks, whose default width is 4 times the hidden size."""
    names = {"swiglu": "swiglu", "geglu": "geglu", "reglu": "reglu", "liglu": "bilinear"}
    if option.text not in names:
        return reading.leave_out(option)
    reading.set("activation", names[option.text])
    _default_width(reading, "--glu-activation")


def _default_width(reading: Reading, flag: str) -> None:
    width = reading.default_width
    if width > 0 and "ffn-hidden-size" not in reading.options and experts.width(reading) is None:
        reading.set_width(width, f"{width}, Megatron-LM's default for {flag}")


def key_value_heads(reading: Reading, option: Option) -> None:
    """Read `multihead` or `multiquery`, in which all query heads share one key and value head."""
    if option.text == "multiquery":  # `multihead` is the default
        reading.set("num_kv_heads", 1)


def query_groups(reading: Reading, option: Option) -> None:
    """Read --num-query-groups, which has an effect only with --group-query-attention."""
    if "group-query-attention" not in reading.options:
        reading.leave_out(option, "it has no effect without --group-query-attention")
    elif "num-query-groups" not in reading.options:
        why = "without --num-query-groups, Megatron-LM has one group until 2025, and as many as heads since"
        reading.leave_to_write(option, "num_kv_heads", "set num_kv_heads in the new file, for example to 1", why)
    elif option.name == "num-query-groups":
        reading.set_from(option, "num_kv_heads")


def no_gelu_fusion(reading: Reading, option: Option) -> None:
    """Turn the fusion off, unless its other meaning holds: GELU approximated by tanh."""
    if "openai-gelu" not in reading.options:
        reading.set("bias_gelu_fusion", False)


def epsilon(reading: Reading, option: Option) -> None:
    is_rms = reading.text("normalization").lower() == "rmsnorm" or "use-rms-norm" in reading.options
    reading.set_from(option, "rms_norm_epsilon" if is_rms else "layernorm_epsilon")


def attention_backend(reading: Reading, option: Option) -> None:
    """Read which library computes attention: FlashAttention and cuDNN (`fused`) are both in torch's kernels.

    With other masks than the causal one, which these would take as tensors, `auto` chooses.
    """
    masked = not {"window-size", "reset-attention-mask"}.isdisjoint(reading.options)
    fused = "auto" if masked else "sdpa"
    names = {"flash": fused, "fused": fused, "unfused": "unfused", "local": "unfused", "auto": "auto"}
    choice("attention_backend", names)(reading, option)


def window(reading: Reading, option: Option) -> None:
    """Read `W,0`, a window of W tokens before each token; -1 means no limit."""
    sides = [read_plain(side.strip(" ()")) for side in ",".join(word.text for word in option.values).split(",")]
    if len(sides) == 2 and isinstance(sides[0], int) and sides[0] > 0 and sides[1] in (0, -1):
        reading.set("sliding_window_width", sides[0])
    elif sides[:1] != [-1]:
        why = "sliding_window_width counts only earlier tokens"
        reading.leave_out_with_note(option, why, "use --window-size W,0")


def window_layers(reading: Reading, option: Option) -> None:
    """Read which layers have the window: a number, or a list with a 1 for each layer that has it."""
    layers = list_of(" ".join(word.text for word in option.values))
    reading.set_from(option, "window_attn_skip_freq", layers)


def choice(name: str, values: Mapping[str, Any]) -> Callable[[Reading, Option], None]:
    """Set a parameter whose choices have other names: Megatron-LM's choice -> value."""

    def read(reading: Reading, option: Option) -> None:
        if option.text in values:
            reading.set(name, values[option.text])
        else:
            reading.leave_out(option)

    return read


def positions(reading: Reading, option: Option) -> None:
    """Set pos_emb; `yarn` is rotary with scaled frequencies."""
    if option.text != YARN:
        ours = {theirs: ours for ours, theirs in POSITIONS.items()} | BIGSCIENCE_POSITIONS
        return choice("pos_emb", ours)(reading, option)
    reading.set("pos_emb", "rotary")
    reading.set("rope_scaling.rope_type", YARN)
    if "yarn-original-max-position-embeddings" not in reading.options:
        reading.set("rope_scaling.original_max_position_embeddings", YARN_CONTEXT, "Megatron-LM's default")
    factor = reading.number("rotary-scaling-factor")
    if factor is None:
        hint = "set factor in the rope_scaling section of the new file"
        return reading.leave_to_write(option, "rope_scaling.factor", hint, "--rotary-scaling-factor is missing")
    reading.set("rope_scaling.factor", float(factor))


def factor(used_by: str) -> Callable[[Reading, Option], None]:
    """Report a factor without the flag, or its value, with which alone `positions` or `llama3` reads it."""
    flag, _, value = used_by.removeprefix("--").partition(" ")

    def read(reading: Reading, option: Option) -> None:
        if flag not in reading.options or value not in ("", reading.text(flag)):
            hint = "set the rope_scaling section in the new file if the positions are to be scaled"
            reading.leave_out(option, f"it has no effect without {used_by}", hint)

    return read


def yarn_multiplier(reading: Reading, option: Option) -> None:
    """Read --mscale and --mscale-all-dim, which are 1 and 0 by default, for the multiplier of YaRN's paper."""
    if reading.text("position-embedding-type") != YARN:
        return factor(OF_YARN)(reading, option)
    given = reading.number("mscale"), reading.number("mscale-all-dim")
    if all(given):
        reading.set_from(option, f"rope_scaling.{option.name.replace('-', '_')}")
    elif given[0] not in (None, 1) or given[1]:
        hint = "set attention_factor in the rope_scaling section of the new file"
        why = "rope_scaling has mscale only together with mscale_all_dim"
        reading.leave_to_write(option, "rope_scaling.attention_factor", hint, why)


def llama3(reading: Reading, option: Option) -> None:
    reading.set("rope_scaling.rope_type", "llama3")
    reading.set("rope_scaling.factor", float(reading.number("rope-scaling-factor") or 8.0))  # Megatron-LM's default
    reading.set("rope_scaling.original_max_position_embeddings", LLAMA3_CONTEXT, "Megatron-LM's constant")


def interpolation(reading: Reading, option: Option) -> None:
    reading.set("rope_scaling.rope_type", "linear")
    reading.set_from(option, "rope_scaling.factor")


def expert_layers(reading: Reading, option: Option) -> None:
    """Read the interval between layers with experts: a number, or a list with a 1 for each layer that has them."""
    layers = list_of(" ".join(word.text for word in option.values))
    if layers is None:
        reading.set_from(option, "moe_expert_interval")
        return
    numbers = range(len(layers))
    interval = next((n for n in range(1, len(layers) + 1) if layers == [int(i % n == 0) for i in numbers]), None)
    if interval and reading.number("num-layers") in (None, len(layers)):
        reading.set("moe_expert_interval", interval, option.text)
    else:
        why = "moe_expert_interval puts experts in every N-th layer, starting with the first"
        hint = "set moe_expert_interval in the new file to the interval that best approximates this list"
        reading.leave_to_write(option, "moe_expert_interval", hint, why)


def balance(reading: Reading, option: Option) -> None:
    """Read the weight of the load-balancing loss; a list has one for each kind of loss."""
    if len(option.values) == 1:
        reading.set_from(option, "moe_aux_loss_coeff")
    else:
        hint = "set moe_aux_loss_coeff in the new file to the weight of aux_loss"
        reading.leave_to_write(option, "moe_aux_loss_coeff", hint, "train.py has only one kind of load-balancing loss")


def fp16(reading: Reading, option: Option) -> None:
    """Set the precision, and Megatron-LM's initial loss scale unless a flag or DeepSpeed's JSON sets it."""
    reading.set("precision", "fp16")
    if not reading.options.keys() & {"loss-scale", "initial-loss-scale", "deepspeed-config"}:
        reading.set("fp16.initial_scale_power", 32, "Megatron-LM's default")


def scaling(reading: Reading, option: Option) -> None:
    """Set a key of the fp16 section, which has the flag's name; without fp16 the flag has no effect."""
    if "fp16" in reading.options:
        reading.set_from(option, f"fp16.{option.name.replace('-', '_')}")


def initial_scale(reading: Reading, option: Option) -> None:
    scale = reading.number(option.name)
    if "fp16" not in reading.options:
        return
    if scale and math.log2(scale).is_integer():
        reading.set("fp16.initial_scale_power", int(math.log2(scale)))
    else:
        why = "DeepSpeed's initial loss scale must be a power of two"
        reading.leave_out_with_note(option, why, "set fp16.initial_scale_power in the new file")


def optimizer(reading: Reading, option: Option) -> None:
    kinds = {"adam": "Adam", "sgd": "SGD", "lion": "Lion", "muon": "Muon"}
    if option.text not in {*kinds} & {*OPTIMIZERS}:
        reading.leave_out(option)
    elif "optimizer.type" not in reading.settings:  # --optimizer-cpu-offload may have set it
        reading.set("optimizer.type", kinds[option.text])


def cpu_offload(reading: Reading, option: Option) -> None:
    uses_torch = "use-torch-optimizer-for-cpu-offload" in reading.options
    reading.set("optimizer.type", "cpu_torch_adam" if uses_torch else "cpu_adam")


def betas(kind: str, defaults: tuple[float, float]) -> Callable[[Reading, Option], None]:
    """Set both betas, if the flags are those of the chosen optimizer."""

    def read(reading: Reading, option: Option) -> None:
        if reading.chosen_optimizer == kind:
            given = [reading.number(f"{kind}-beta{number}") for number in (1, 2)]
            betas = [default if beta is None else beta for beta, default in zip(given, defaults, strict=True)]
            reading.set_from(option, "optimizer.params.betas", betas)

    return read


def muon(key: str, value: Any = None) -> Callable[[Reading, Option], None]:
    """Set a parameter of Muon. value: of a flag without one."""

    def read(reading: Reading, option: Option) -> None:
        if "muon" in reading.chosen_optimizer:
            reading.set_from(option, f"optimizer.params.{key}", value)

    return read


def muon_scale(reading: Reading, option: Option) -> None:
    ours = {mode: name for name, (mode, factor) in MUON_SCALES.items() if factor == 1}
    muon("adjust_lr_fn", ours.get(option.text))(reading, option)


def momentum(kind: str) -> Callable[[Reading, Option], None]:
    def read(reading: Reading, option: Option) -> None:
        if reading.chosen_optimizer == kind:
            reading.set_from(option, "optimizer.params.momentum")

    return read


def recompute(reading: Reading, option: Option) -> None:
    if option.text == "full":
        reading.set("checkpoint_activations", True)
    else:
        selective_recompute(reading, option)


def selective_recompute(reading: Reading, option: Option) -> None:
    reading.leave_out(option, "deepy's fused attention does not store attention scores, so none are recomputed")


def method(reading: Reading, option: Option) -> None:
    if option.text != "uniform":
        reading.leave_out(option, "only uniform recomputation is supported")
    else:
        reading.set("checkpoint_activations", True)


def paths(part: str) -> Callable[[Reading, Option], None]:
    """Read token files, or weights and token files alternately: `0.3 one 0.7 other`."""

    def read(reading: Reading, option: Option) -> None:
        weights, names = _blend(option)
        if part != "valid" or SETS not in reading.options:
            if weights:
                reading.set(f"{part}_data_weights", list(map(float, weights)))
            reading.set(f"{part}_data_paths", names)
            return
        named = reading.options.get(SET_NAMES)
        given = [word.text for word in named.values] if named else []
        reading.set("validation", _named(names, given if len(given) == len(names) else names))
        if weights:
            what = f"the weights of --{option.name} ({', '.join(weights)}) are left out, because with --{SETS} "
            what += "each of its paths is evaluated by itself"
            hint = "to weigh the losses in their mean, set the weight of each set in the new file"
            reading.warn("migrate-flag-without-counterpart", what, option.place, hint, ["validation"])

    return read


def _blend(option: Option) -> tuple[list[str], list[str]]:
    """Return the weights and the token files of an option; no weights if it has none."""
    words = [word.text for word in option.values]
    numbers = (read_plain(word) for word in words[::2])
    is_weighted = len(words) > 1 and len(words) % 2 == 0 and all(isinstance(each, int | float) for each in numbers)
    return (words[::2], words[1::2]) if is_weighted else ([], words)


def _named(paths: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the validation sets of these paths. names: of the sets, or the paths, from whose ends names are made."""
    sets: dict[str, str] = {}
    for path, own in zip(paths, names, strict=True):
        name = re.sub(r"[^\w.-]", "_", own.rpartition("/")[2].removesuffix("_text_document"))
        sets[name if name not in sets else f"{name}-{len(sets) + 1}"] = path
    return sets


def named_sets(reading: Reading, option: Option) -> None:
    """Of SETS, which `paths` reads together with the paths."""
    if "valid-data-path" not in reading.options:
        reading.leave_out(option, "no --valid-data-path names the sets")


def set_names(reading: Reading, option: Option) -> None:
    """Of SET_NAMES, which `paths` reads together with the paths."""
    paths = reading.options.get("valid-data-path")
    if SETS not in reading.options or paths is None:
        reading.leave_out(option, "there are no validation sets")
    elif len(_blend(paths)[1]) != len(option.values):
        reading.leave_out(option, "the sets of --valid-data-path are more or fewer", "name the sets in the new file")


def data(reading: Reading, option: Option) -> None:
    words = [word.text for word in option.values]
    reading.set("data_path", words[0] if len(words) == 1 else [_weight_or_path(word) for word in words])


def _weight_or_path(word: str) -> Any:
    value = read_plain(word)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else word


def tokenizer(reading: Reading, option: Option) -> None:
    ours = {theirs: our for our, theirs in reversed(TOKENIZERS.items())} | {"PretrainedFromHF": "HFTokenizer"}
    name = ours.get(option.text)
    if option.text == "NullTokenizer" and reading.number("vocab-size") != 256:
        hint = "in the new file, set tokenizer_type and vocab_file as when the data was tokenised"
        why = "deepy takes the vocabulary size from the tokenizer"
        reading.leave_to_write(option, "tokenizer_type", hint, why)
    elif option.text == "TikTokenizer":
        hint = "set tokenizer_type: HFTokenizer, and vocab_file to a tokenizer.json with the same vocabulary"
        reading.leave_to_write(option, "tokenizer_type", hint, "deepy does not read its vocabulary file")
    elif name is None:
        similar = SIMILAR_TOKENIZERS.get(option.text)
        types = f"tokenizer_type: {similar}" if similar else f"tokenizer_type to one of {', '.join(TOKENIZERS)}"
        hint = f"set {types} in the new file"
        reading.leave_to_write(option, "tokenizer_type", hint, "deepy has no tokenizer of this name")
    else:
        reading.set("tokenizer_type", name)


def tokenizer_file(reading: Reading, option: Option) -> None:
    """Read the tokenizer's file from the flag that this type of tokenizer reads, if several flags name one."""
    kind = reading.text("tokenizer-type")
    own = "tokenizer-model"
    if kind == "PretrainedFromHF" or (not kind and own not in reading.options):
        own = "tokenizer-name-or-path"
    elif kind in ("", "GPT2BPETokenizer") or kind.startswith("BertWordPiece"):
        own = "vocab-file"
    if own in reading.options and own != option.name:
        reading.leave_out(option, f"{kind or 'the tokenizer'} reads --{own}")
    elif kind == "TikTokenizer":
        reading.note_to_write(option, "vocab_file")
    elif option.name == "tokenizer-name-or-path" and not kind:
        reading.leave_out_with_note(option, "--tokenizer-type is missing")
    else:
        reading.set_from(option, "vocab_file")


def vocabulary(reading: Reading, option: Option) -> None:
    if reading.text("tokenizer-type") != "NullTokenizer":
        reading.leave_out(option, "the tokenizer determines the vocabulary size")


def evaluation(reading: Reading, option: Option) -> None:
    """Read the number of batches; -1 is for --full-validation, and means no evaluation without it."""
    if option.text != "-1":
        reading.set_from(option, "eval_iters")
    elif "full-validation" in reading.options:
        reading.leave_out(option, "deepy evaluates a fixed number of batches", "set eval_iters in the new file")
    else:
        reading.set("eval_iters", 0, "-1, without --full-validation")


def save_interval(reading: Reading, option: Option) -> None:
    if option.text != "0":
        reading.set_from(option, "checkpoint_factor")
    else:
        reading.leave_out(option, "without checkpoint_factor, no checkpoints are saved during training")


def exit_interval(reading: Reading, option: Option) -> None:
    if option.text != "0":  # 0 means never, as without the flag
        reading.set_from(option, "exit_interval")


def tracked(name: str) -> Callable[[Reading, Option], None]:
    def read(reading: Reading, option: Option) -> None:
        reading.set("use_wandb", True)
        reading.set_from(option, name)

    return read
