"""A run in words for people, without where it runs: model, batch, precision, optimizer, data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.base.text import shorten
from neoxargs.config.config import Config
from neoxargs.facts.batch import sequences_per_batch
from neoxargs.facts.batch_sizes import RAMP, BatchSizes
from neoxargs.facts.context import in_words
from neoxargs.facts.data import path_list
from neoxargs.facts.layer_kinds import RECURRENT, layer_kind
from neoxargs.facts.layout import Layout
from neoxargs.facts.lr_phases import CONSTANT
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.facts.model import mlp_width, parameters, vocabulary_rows
from neoxargs.facts.optimizers import own_rates
from neoxargs.facts.sequence_lengths import SequenceLengths
from neoxargs.facts.trained import is_frozen, trained_parameters
from neoxargs.facts.vocab import vocabulary_size
from neoxargs.facts.weight_decay import WeightDecay


def factors(config: Config) -> str:
    layout = Layout.of(config)
    engine = "" if config.parallel.pipe_parallel_size else " (no pipeline engine)"
    context = f" x context {layout.context}" if layout.context > 1 else ""
    return f"tensor {layout.tensor}{context} x pipeline {layout.pipe} x data {layout.data}{engine}"


def describe(config: Config) -> list[tuple[str, str]]:
    """Return (label, description) pairs of the run that do not depend on where it runs."""
    subjects = {
        "model": model(config),
        "ranks": [f"{Layout.of(config).ranks} = {factors(config)}"],
        "context": [in_words(config)],
        "batch": batch(config, with_sources=False),
        "precision": [precision(config)],
        "optimizer": optimizer(config),
        "data": data(config, cut=True),
    }
    words = ((label, "; ".join(lines)) for label, lines in subjects.items())
    return [(label, line) for label, line in words if line]


def batch_equation(config: Config, with_sources: bool = True) -> str:
    """Return the batch equation in numbers. with_sources: with the places where the numbers are set."""

    def number(name: str, noun: str = "") -> str:
        source = f" ({config.source(name).short})" if with_sources and config.is_set(name) else ""
        return f"{config.get(name):,}{noun}{source}"

    samples, micro = number("train_batch_size", " samples"), number("train_micro_batch_size_per_gpu")
    steps = number("gradient_accumulation_steps")
    return f"{samples} = micro batch {micro} x accumulation {steps} x data {Layout.of(config).data:,}"


def model(config: Config) -> Iterator[str]:
    shape, tokenizer = config.shape, config.tokenizer
    yield (
        f"{shape.num_layers} layers, hidden {shape.hidden_size}{_widths(config)}, sequence {shape.seq_length}, "
        f"{config.embedding.pos_emb} positions"
    )
    size, rows = vocabulary_size(tokenizer.tokenizer_type, tokenizer.vocab_file), vocabulary_rows(config)
    if rows is None:
        yield f"the vocabulary size is not known until {tokenizer.tokenizer_type} is loaded"
        return
    words = f"{size:,}, padded to {rows:,}" if size and size != rows else f"{rows:,}"
    count, active = parameters(config, rows), parameters(config, rows, active=True)
    per_token = f" ({_rounded(active)} per token)" if active != count else ""
    yield f"{_rounded(count)} parameters{per_token}; vocabulary {words}"
    if is_frozen(config):
        trained = trained_parameters(config, rows)
        what = f"adapters of rank {config.lora.rank}" if config.lora.rank else "a soft prompt"
        yield f"frozen; trained: {what} with {_rounded(trained)} parameters ({trained / count:.2%} of the model)"


def _widths(config: Config) -> str:
    """Return those sizes of the layers that the model's kinds of layers have."""
    shape, kinds = config.shape, {layer_kind(config, layer) for layer in range(config.shape.num_layers)}
    network = f", feed-forward {mlp_width(shape, config.mlp)}" if kinds - {*RECURRENT} else ""
    mamba = f", Mamba {config.mamba.mamba_inner_size}" if "mamba" in kinds else ""
    rwkv = f", RWKV {config.rwkv.dim_att} and {config.rwkv.ffn_dim}" if "rwkv" in kinds else ""
    heads = f", {shape.num_attention_heads} heads" if kinds - {"mamba"} else ""
    return network + mamba + rwkv + heads


def _rounded(number: int) -> str:
    """Format a number with three digits and a word, such as `3.35 million`."""
    for unit, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= unit:
            return f"{number / unit:#.3g} {word}".replace(". ", " ")
    return str(number)


def batch(config: Config, with_sources: bool = True) -> Iterator[str]:
    yield batch_equation(config, with_sources)
    yield f"{sequences_per_batch(config) * config.shape.seq_length:,} tokens per step"
    sizes = BatchSizes.of(config.get)
    if sizes.changes:
        ramp, steps = config.get(RAMP), sizes.stages[-1].iteration
        rising = f"{ramp[1]:,} more at a time" if ramp else f"in {counted(len(sizes.begins), 'phase')}"
        yield f"ramp from {sizes.first:,} samples, {rising}, over {counted(steps, 'step')}"
    if (lengths := SequenceLengths.of(config.get)).changes:
        cut = listed([f"{length:,}" for _, length in lengths.begins[:-1]], "and")
        yield f"samples are cut into sequences of {cut} tokens at first"


def precision(config: Config) -> str:
    words: list[str] = [config.precision.precision]
    if config.precision.precision == "fp16":
        scale = config.fp16.loss_scale
        words.append(f"loss scale {scale:g}" if scale else "dynamic loss scale")
    return ", ".join(words)


def optimizer(config: Config) -> Iterator[str]:
    stage = config.zero_optimization.stage
    clipping = config.get("gradient_clipping")
    decay = WeightDecay.of(config.get)
    ends = f"{decay.start:g} to {decay.end:g} ({decay.style})" if decay.changes else f"{decay.start:g}"
    words = [config.optimizer.type or "Adam", f"weight decay {ends}"]
    words += [f"gradient clipping at {clipping:g}"] if clipping else ["no gradient clipping"]
    yield ", ".join([*words, f"ZeRO stage {stage}" if stage else "no ZeRO"])
    beside = rates_beside(config)
    yield f"{_rate(config)}; {beside}" if beside else _rate(config)


def rates_beside(config: Config) -> str:
    """Return how the learning rates of Muon's matrices and of other weights differ from the schedule's; "" if not."""
    factors, params = own_rates(config), config.optimizer_params
    own = {"muon": ("Muon's matrices", params.muon_lr), "adam": ("other weights", params.adam_lr)}
    return ", ".join(
        f"{factors[name]:.4g} times this rate for {what} ({name}_lr {rate:g})"
        for name, (what, rate) in own.items()
        if factors and rate is not None
    )


def _rate(config: Config) -> str:
    schedule = config.schedule
    if config.scheduler.type:
        return f"learning rate schedule: DeepSpeed's {config.scheduler.type}"
    if schedule.lr_schedule:
        phases = LearningRateCurve.of(config.get).phases
        each = (f"{style} to {end:g} after step {until:,}" for style, until, _, end in phases)
        return f"learning rate {', then '.join(each)}"
    curve = LearningRateCurve.of(config.get)
    warmup = curve.sizes.iterations_in(round(curve.warmup_iters)) if curve.begins else round(curve.warmup_iters)
    end = "" if schedule.lr_decay_style == "constant" else f" to {schedule.min_lr:g}"
    last = f" ({schedule.lr_wsd_decay_style} decay in the last {schedule.lr_wsd_decay_iters} steps)"
    style = f"{schedule.lr_decay_style}{last * (schedule.lr_decay_style == 'WSD')}"
    return f"learning rate {config.optimizer_options.lr:g}{end}, {style}, {counted(warmup, 'warm-up step')}"


def _pairs(config: Config, cut: bool) -> Iterator[str]:
    answers, most = config.post_training, 2 * 66 if cut else None
    chosen, rejected = (
        shorten(_weighted(paths or ""), most) for paths in (answers.pos_train_data_paths, answers.neg_train_data_paths)
    )
    yield f"preferred answers {chosen}, rejected answers {rejected}, tokenised by {config.tokenizer.tokenizer_type}"


def data(config: Config, cut: bool) -> Iterator[str]:
    data = config.data
    if data.dataset_impl == "pairwise":
        yield from _pairs(config, cut)
        return
    source = data.text_path or data.data_path or data.train_data_paths
    if not source:
        yield "none"
        return
    tokenizer = config.tokenizer.tokenizer_type
    tokens = f", tokenised by {tokenizer} to {data.data_path}" if data.text_path else f", tokenised by {tokenizer}"
    yield f"{shorten(_weighted(source), 3 * 66 if cut else None)}{tokens}"  # about three lines
    labels = [f"labels {', '.join(path_list(data.train_label_data_paths))}"] if data.train_label_data_paths else []
    packing = [f"samples of whole documents ({data.pack_impl})"] if data.pack_impl != "packed" else []
    paths = config.post_training.train_reward_data_paths if config.post_training.train_impl == "kto" else None
    rewards = [f"rewards {', '.join(path_list(paths))}"] if paths else []
    if labels or rewards or packing:
        yield "; ".join([*labels, *rewards, *packing])
    yield from _mixture(data.train_data_mixture or ())
    if data.data_path:
        yield f"split {data.split} into training, validation and test"


def _mixture(phases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield `train_data_mixture` in one line, with lengths as they are written."""
    texts = []
    for phase in phases:
        moves = f"{phase['style']} to " if phase.get("style", CONSTANT) != CONSTANT else ""
        weights = phase.get("weights")
        shares = " : ".join(f"{weight:g}" for weight in weights) if weights else f"temperature {phase['temperature']:g}"
        texts.append(f"{moves}{shares}{f' until {until}' if (until := phase.get('until')) else ''}")
    if texts:
        yield f"mixture {', then '.join(texts)}"


def _weighted(source: str | Sequence[str | float]) -> str:
    """Format one prefix or several, some with a weight before them."""
    words = [source] if isinstance(source, str) else source
    return "".join(f"{word}, " if isinstance(word, str) else f"{word} x " for word in words).removesuffix(", ")


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
