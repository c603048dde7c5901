"""The summary printed before a run starts, so that a person notices wrong settings at a glance.

Plain text that fits the terminal's width; a terminal gets the same text with colours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from neoxargs.base.problems import listed
from neoxargs.base.text import protect_names, wrap
from neoxargs.config.config import Config
from neoxargs.facts.batch import sequences_per_batch
from neoxargs.facts.kinds import RECURRENT, layer_kind
from neoxargs.facts.layout import Layout
from neoxargs.facts.model import mlp_width, parameters, vocabulary_rows
from neoxargs.facts.trained import is_frozen, trained_parameters
from neoxargs.facts.vocab import vocabulary_size
from neoxargs.hosts.hosts import Resources
from neoxargs.resolve.derived_values import derived, describe_source, overridden, shorten
from neoxargs.resolve.rules.data import path_list
from neoxargs.runs.launcher import LOCAL, launcher_of, settings_for_a_launcher
from neoxargs.runs.rank_grid import compact_numbers, rank_grid
from neoxargs.runs.run_spec import RunSpec

LABEL = 11
WIDTH = 100
#: More GPUs than any machine has; a larger number comes from `--gpus`.
MAX_GPUS_PER_MACHINE = 16


class Row(NamedTuple):
    """A label and its lines. Lines that are too long are wrapped or, with `cut`, shortened."""

    label: str
    lines: tuple[str, ...]
    cut: bool = False


def summary_rows(spec: RunSpec, width: int, cut: bool = True) -> list[Row]:
    """Return the rows of the summary. width: of the grid of ranks, in characters. cut: shorten long values."""
    config, resources = spec.config, spec.resources
    rows = [
        Row("model", tuple(_model(config))),
        Row("ranks", (ranks(config, resources),)),
        Row("", tuple(rank_grid(config, width)), cut=True),
        Row("launcher", tuple(_launcher(config, resources))),
        Row("batch", tuple(_batch(config))),
        Row("precision", (_precision(config),)),
        Row("optimizer", tuple(_optimizer(config))),
        Row("data", tuple(_data(config, cut))),
        Row("run", tuple(_run(config))),
        Row("dialect", (dialect(config),)),
        Row("overridden", (*overridden(config, cut), *resources.overrides), cut=cut),
        Row("derived", tuple(derived(config, cut)), cut=cut),
    ]
    return [row for row in rows if row.lines]


def ranks(config: Config, resources: Resources) -> str:
    """Return the number of ranks with its factors, and the machines that they run on."""
    return f"{Layout.of(config).ranks} = {_factors(config)}, {_machines(resources)}"


def _factors(config: Config) -> str:
    layout = Layout.of(config)
    engine = "" if config.parallel.pipe_parallel_size else " (no pipeline engine)"
    return f"tensor {layout.tensor} x pipeline {layout.pipe} x data {layout.data}{engine}"


def describe(config: Config) -> list[tuple[str, str]]:
    """Return (label, description) pairs of the run that do not depend on where it runs."""
    subjects = {
        "model": _model(config),
        "ranks": [f"{Layout.of(config).ranks} = {_factors(config)}"],
        "batch": _batch(config, with_sources=False),
        "precision": [_precision(config)],
        "optimizer": _optimizer(config),
        "data": _data(config, cut=True),
    }
    return [(label, "; ".join(lines)) for label, lines in subjects.items()]


def batch_equation(config: Config, with_sources: bool = True) -> str:
    """Return the batch equation in numbers. with_sources: with the places where the numbers are set."""
    sizes = config.batch
    terms = (
        ("train_batch_size", "{:,} samples{}", sizes.train_batch_size),
        ("train_micro_batch_size_per_gpu", " = micro batch {:,}{}", sizes.train_micro_batch_size_per_gpu),
        ("gradient_accumulation_steps", " x accumulation {:,}{}", sizes.gradient_accumulation_steps),
    )
    sources = {name for name, _, _ in terms if with_sources and config.is_set(name)}
    words = (
        template.format(number, f" ({describe_source(config.source(name))})" if name in sources else "")
        for name, template, number in terms
    )
    return f"{''.join(words)} x data {Layout.of(config).data:,}"


def dialect(config: Config) -> str:
    """Return the dialect of the files and how it was determined; empty if there is none."""
    if not config.dialect:
        return ""
    name, reason = config.dialect.name, config.dialect.reason
    named = f"dialect: {name} "  # the file's own words
    return f"{name} {reason.removeprefix(named)}" if reason.startswith(named) else f"{name}: {reason}"


def brief_lines(spec: RunSpec) -> list[str]:
    """Return model, ranks, batch and dialect, one line each."""
    config = spec.config
    lines = {
        "model": "; ".join(_model(config)),
        "ranks": ranks(config, spec.resources),
        "batch": batch_equation(config),
        "dialect": dialect(config),
    }
    return [f"{label.ljust(LABEL)}{line}" for label, line in lines.items()]


def to_json(spec: RunSpec) -> dict[str, Any]:
    """Return the summary for a program."""
    config, layout, rows = spec.config, Layout.of(spec.config), vocabulary_rows(spec.config)
    return {
        "parameters": None if rows is None else parameters(config, rows),
        "trained_parameters": None if rows is None else trained_parameters(config, rows),
        "active_parameters": None if rows is None else parameters(config, rows, active=True),
        "device": spec.resources.device,
        "hosts": spec.resources.hosts,
        "ranks": layout.ranks,
        "layout": {"tensor": layout.tensor, "pipeline": layout.pipe, "data": layout.data},
        "train_batch_size": config.batch.train_batch_size,
        "train_micro_batch_size_per_gpu": config.batch.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": config.batch.gradient_accumulation_steps,
        "dialect": config.dialect.name if config.dialect else None,
    }


def to_text(spec: RunSpec, width: int = WIDTH, cut: bool = True) -> str:
    """Return the summary as plain text. cut: shorten long values."""
    return "\n".join(label.ljust(LABEL) + line for label, line in _lines(spec, width, cut))


def print_summary(spec: RunSpec) -> None:
    """Print the summary: with colours and shortened values on a terminal, complete elsewhere (a log)."""
    if not sys.stdout.isatty():
        print(to_text(spec, cut=False), flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console, subject = Console(highlight=False), ""
    for label, line in _lines(spec, min(console.width, WIDTH)):
        subject = label or subject
        styled = Text.assemble((label.ljust(LABEL), "bold cyan"), (line, "dim" if subject == "derived" else ""))
        console.print(styled, soft_wrap=True)


def _lines(spec: RunSpec, width: int, cut: bool = True) -> Iterator[tuple[str, str]]:
    for row in summary_rows(spec, width - LABEL, cut):
        label = row.label
        for line in row.lines:
            unwrapped = protect_names(line, spec.config)
            parts = [shorten(line, width - LABEL)] if row.cut else wrap(unwrapped, width - LABEL)
            for part in parts:
                yield label, part
                label = ""


def _model(config: Config) -> Iterator[str]:
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


def _machines(resources: Resources) -> str:
    hosts = resources.hosts
    gpu = resources.device == "cuda"
    if len(hosts) > 1:
        counts, noun = sorted({len(slots) for slots in hosts.values()}), "GPU" if gpu else "rank"
        each = f"{counts[0]} to " * (len(counts) > 1) + _count(counts[-1], noun)
        return f"on {len(hosts)} machines, {each} each"
    host, slots = next(iter(hosts.items()))
    if gpu and len(slots) > MAX_GPUS_PER_MACHINE:
        return f"on {len(slots)} GPUs"
    where = "this machine" if host == "localhost" else host
    gpus = f"GPU{'s' * (len(slots) > 1)} {compact_numbers(slots)}"
    return f"on {where}'s {gpus if gpu else 'CPU'}"


def _launcher(config: Config, resources: Resources) -> Iterator[str]:
    """Yield what starts the ranks of one machine if it is not deepy itself."""
    launcher = launcher_of(config, resources)
    if not resources.remote and launcher is not LOCAL:
        name = "DeepSpeed's launcher" if launcher.through_deepspeed else launcher.name
        yield f"{name}, because of {listed(settings_for_a_launcher(config), 'and')}"


def _batch(config: Config, with_sources: bool = True) -> Iterator[str]:
    yield batch_equation(config, with_sources)
    yield f"{sequences_per_batch(config) * config.shape.seq_length:,} tokens per step"


def _precision(config: Config) -> str:
    words: list[str] = [config.precision.precision]
    if config.precision.precision == "fp16":
        scale = config.fp16.loss_scale
        words.append(f"loss scale {scale:g}" if scale else "dynamic loss scale")
    return ", ".join(words)


def _optimizer(config: Config) -> Iterator[str]:
    options, schedule = config.optimizer_options, config.schedule
    stage = config.zero_optimization.stage
    clipping = config.get("gradient_clipping")
    words = [config.optimizer.type or "Adam", f"weight decay {config.regularization.weight_decay:g}"]
    words += [f"gradient clipping at {clipping:g}"] if clipping else ["no gradient clipping"]
    yield ", ".join([*words, f"ZeRO stage {stage}" if stage else "no ZeRO"])
    if config.scheduler.type:
        yield f"learning rate schedule: DeepSpeed's {config.scheduler.type}"
        return
    warmup = round(schedule.warmup * schedule.lr_decay_iters)  # a share of the decay, as in GPT-NeoX
    end = "" if schedule.lr_decay_style == "constant" else f" to {schedule.min_lr:g}"
    yield f"learning rate {options.lr:g}{end}, {schedule.lr_decay_style}, {_count(warmup, 'warm-up step')}"


def _pairs(config: Config, cut: bool) -> Iterator[str]:
    answers, most = config.post_training, 2 * 66 if cut else None
    chosen, rejected = (
        shorten(_weighted(paths or ""), most) for paths in (answers.pos_train_data_paths, answers.neg_train_data_paths)
    )
    yield f"preferred answers {chosen}, rejected answers {rejected}, tokenised by {config.tokenizer.tokenizer_type}"


def _data(config: Config, cut: bool) -> Iterator[str]:
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
    rewards = [f"rewards {', '.join(path_list(paths))}"] if (paths := _rewards(config)) else []
    if labels or rewards or packing:
        yield "; ".join([*labels, *rewards, *packing])
    if data.data_path:
        yield f"split {data.split} into training, validation and test"


def _weighted(source: str | Sequence[str | float]) -> str:
    """Format one prefix or several, some with a weight before them."""
    words = [source] if isinstance(source, str) else source
    return "".join(f"{word}, " if isinstance(word, str) else f"{word} x " for word in words).removesuffix(", ")


def _rewards(config: Config) -> Sequence[str] | str | None:
    options = config.post_training
    return options.train_reward_data_paths if options.train_impl == "kto" else None


def _run(config: Config) -> Iterator[str]:
    training, checkpoint = config.training, config.checkpoint
    tokens = training.train_iters * sequences_per_batch(config) * config.shape.seq_length
    epochs = f"{_count(training.train_epochs, 'epoch')}: " if training.train_epochs else ""
    yield f"{epochs}{_count(training.train_iters, 'step')}, {tokens:,} tokens; results in {config.logging.run_dir}"
    unpaired = config.data.dataset_impl == "pairwise" and not config.post_training.pos_valid_data_paths
    evaluates = training.eval_iters and not unpaired
    yield f"evaluation every {_count(training.eval_interval, 'step')}" if evaluates else "no evaluation"
    every = f"every {checkpoint.checkpoint_factor:,} steps and " if checkpoint.checkpoint_factor else ""
    yield (
        f"checkpoints in {checkpoint.save}, {every}at the end" if checkpoint.save else "no checkpoints: save is not set"
    )
    if checkpoint.load:
        start = "starts with the weights in" if checkpoint.finetune else "continues from"
        yield f"{start} {checkpoint.load} if that folder contains a checkpoint"
    if checkpoint.base_checkpoint:
        yield f"frozen model from {checkpoint.base_checkpoint}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
