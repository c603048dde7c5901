"""The summary printed before a run starts, so that a person notices wrong settings at a glance.

Plain text that fits the terminal's width; a terminal gets the same text with colours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from neoxargs.base.problems import listed
from neoxargs.base.text import protect_names, shorten, wrap
from neoxargs.config.config import Config
from neoxargs.facts import context, description
from neoxargs.facts.batch import sequences_per_sample
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.context import in_words
from neoxargs.facts.description import counted
from neoxargs.facts.gradient_sum import gradient_sum
from neoxargs.facts.layout import Layout
from neoxargs.facts.model import parameters, vocabulary_rows
from neoxargs.facts.trained import trained_parameters
from neoxargs.hosts.hosts import Resources
from neoxargs.resolve.provenance import derived
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
        Row("model", tuple(description.model(config))),
        Row("ranks", (ranks(config, resources),)),
        Row("", tuple(rank_grid(config, width)), cut=True),
        Row("context", tuple(filter(None, [in_words(config)]))),
        Row("launcher", tuple(_launcher(config, resources))),
        Row("batch", tuple(description.batch(config))),
        Row("precision", (description.precision(config),)),
        Row("optimizer", tuple(description.optimizer(config))),
        Row("gradients", tuple(filter(None, [gradient_sum(config).describe()]))),
        Row("data", tuple(description.data(config, cut))),
        Row("run", tuple(_run(config))),
        Row("dialect", (dialect(config),)),
        Row("overridden", (*_overridden(config, 40 if cut else None), *resources.overrides), cut=cut),
        Row(
            "derived",
            tuple(
                f"{name} {shorten(value.value, 24 if cut else None)}: {value.source.text}"
                for name, value in derived(config)
            ),
            cut=cut,
        ),
    ]
    return [row for row in rows if row.lines]


def ranks(config: Config, resources: Resources) -> str:
    """Return the number of ranks with its factors, and the machines that they run on."""
    return f"{Layout.of(config).ranks} = {description.factors(config)}, {_machines(resources)}"


def dialect(config: Config) -> str:
    """Return the dialect of the files and how it was determined; empty if there is none."""
    if not config.dialect:
        return ""
    name, reason = config.dialect.name, config.dialect.reason
    named = f"dialect: {name} "  # the file's own words
    return f"{name} {reason.removeprefix(named)}" if reason.startswith(named) else f"{name}: {reason}"


def brief_lines(spec: RunSpec) -> list[str]:
    """Return model, ranks, batch and dialect, one line each, and how context parallel ranks compute attention."""
    config = spec.config
    lines = {
        "model": "; ".join(description.model(config)),
        "ranks": ranks(config, spec.resources),
        **({"context": words} if (words := in_words(config)) else {}),
        "batch": description.batch_equation(config),
        "dialect": dialect(config),
    }
    return labelled(lines)


def labelled(lines: Mapping[str, str]) -> list[str]:
    """Return the lines with their labels before them."""
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
        "layout": {"tensor": layout.tensor, "context": layout.context, "pipeline": layout.pipe, "data": layout.data},
        "context_parallel": context.to_json(config),
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
    names = spec.config.file_names()
    for row in summary_rows(spec, width - LABEL, cut):
        label = row.label
        for line in row.lines:
            parts = [shorten(line, width - LABEL)] if row.cut else wrap(protect_names(line, names), width - LABEL)
            for part in parts:
                yield label, part
                label = ""


def _machines(resources: Resources) -> str:
    hosts = resources.hosts
    gpu = resources.device == "cuda"
    if len(hosts) > 1:
        counts, noun = sorted({len(slots) for slots in hosts.values()}), "GPU" if gpu else "rank"
        each = f"{counts[0]} to " * (len(counts) > 1) + counted(counts[-1], noun)
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


def _overridden(config: Config, limit: int | None) -> Iterator[str]:
    """Yield lines such as `lr 0.002  (--set lr=0.002)`. limit: characters of a value."""
    for name, value in config.values.items():
        if value.source.kind in ("set", "environment"):
            yield f"{name} {shorten(value.value, limit)}  ({value.source.short})"


def _run(config: Config) -> Iterator[str]:
    training, checkpoint = config.training, config.checkpoint
    samples = BatchSizes.of(config.get).samples_after(training.train_iters)
    tokens = samples * sequences_per_sample(config) * config.shape.seq_length
    epochs = f"{counted(training.train_epochs, 'epoch')}: " if training.train_epochs else ""
    yield f"{epochs}{counted(training.train_iters, 'step')}, {tokens:,} tokens; results in {config.logging.run_dir}"
    unpaired = config.data.dataset_impl == "pairwise" and not config.post_training.pos_valid_data_paths
    evaluates = training.eval_iters and not unpaired
    yield f"evaluation every {counted(training.eval_interval, 'step')}" if evaluates else "no evaluation"
    every = f"every {checkpoint.checkpoint_factor:,} steps and " if checkpoint.checkpoint_factor else ""
    yield (
        f"checkpoints in {checkpoint.save}, {every}at the end" if checkpoint.save else "no checkpoints: save is not set"
    )
    if checkpoint.load:
        start = "starts with the weights in" if checkpoint.finetune else "continues from"
        yield f"{start} {checkpoint.load} if that folder contains a checkpoint"
    if checkpoint.base_checkpoint:
        yield f"frozen model from {checkpoint.base_checkpoint}"
