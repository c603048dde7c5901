"""The text of the file: the model's shipped configuration, and what the answers and the search of layouts add."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from neoxargs.base.shipped import CONFIGS
from neoxargs.base.text import format_bytes, format_duration, wrap
from neoxargs.commands.init.answers import BYTES, STDLIB, Answers, is_text
from neoxargs.commands.init.goals import GOALS
from neoxargs.hosts.device_table import find_device
from neoxargs.plan.given.target import BF16_GENERATION
from neoxargs.plan.search.search import Result
from neoxargs.resolve.rules.usual_rates import FINETUNING, middle_rate
from neoxargs.resolve.yaml.edit import yaml_value

#: The sequences of a batch for everything but pretraining.
FINETUNING_BATCH = 64
#: A batch that the GPUs cannot share is changed by this share at most, to one that allows the first of these.
NEAR, MICRO_BATCHES = 1 / 16, (64, 32, 16, 8, 4, 2, 1)


def compose(answers: Answers) -> str:
    """Return the file without its layout."""
    goal, name = GOALS[answers.goal], f"runs/{answers.model}-{answers.goal}"
    paragraphs = (CONFIGS / "models" / f"{answers.model}.yml").read_text(encoding="utf-8").split("\n\n")
    head = paragraphs[0].partition("\n")[2]  # without the path of the schema, which is relative to that file
    training = [part for part in paragraphs[1:] if re.search("^(optimizer|train_iters):", part, re.MULTILINE)]
    model = [part for part in paragraphs[1:] if part not in training]
    if goal.kind:
        training = _finetuning(training, goal.kind)
    keys = goal.keys.format(checkpoint=yaml_value(answers.checkpoint), save=name)
    parts = [head, *model, *training, _machine(answers), *_data(answers), _run(name, answers), keys]
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    return _with_batch(text, answers.gpus)


def shared_batch(wanted: int, gpus: int) -> int:
    """Return the batch near the wanted one that these GPUs can share equally, in large micro batches if possible."""
    if wanted % gpus == 0 or gpus % wanted == 0:
        return wanted
    nearest = (round(wanted / (gpus * micro)) * gpus * micro for micro in MICRO_BATCHES)
    near = (batch for batch in nearest if abs(batch - wanted) <= NEAR * wanted)
    return next(near, max(1, round(wanted / gpus)) * gpus)


def _with_batch(text: str, gpus: int) -> str:
    """Return the file with a batch that the GPUs can share, and as many tokens as before if it names their number."""
    [line] = re.findall(r"^train_batch_size: \d+.*$", text, re.MULTILINE)
    [(iterations, count, comment)] = re.findall(r"^(train_iters: (\d+)(.*))$", text, re.MULTILINE)
    wanted = int(line.split()[1])
    if (batch := shared_batch(wanted, gpus)) == wanted:
        return text
    text = text.replace(line, f"train_batch_size: {batch}  # {wanted:,}, changed so that {gpus} GPUs can share it")
    as_many = round(int(count) * wanted / batch) if "tokens" in comment else count
    return text.replace(iterations, f"train_iters: {as_many}{comment}")


def _finetuning(training: Sequence[str], kind: str) -> list[str]:
    """Return the optimizer and the length of a run that starts from trained weights."""
    optimizer = next(line for part in training for line in part.splitlines() if line.startswith("optimizer:"))
    rate = f"{middle_rate(kind):.1e}"
    return [
        f"# The optimizer. The rate is in the middle of the usual range for {kind}, {FINETUNING[kind][2]}; try others\n"
        "# first if the loss falls slowly, or rises. It warms up over 3% of the steps, then falls to 0.\n"
        + re.sub(r"lr: [^,}]+", f"lr: {rate}", optimizer)
        + "\nweight_decay: 0.0\ngradient_clipping: 1.0\nlr_decay_style: cosine\nmin_lr: 0.0\nwarmup: 0.03",
        "# The length. Instead of train_iters, train_epochs: 3 makes three passes over token files.\n"
        f"train_batch_size: {FINETUNING_BATCH}\ntrain_iters: 1000",
    ]


def _machine(answers: Answers) -> str:
    device = find_device(answers.device)
    precision = "bfloat16" if device.generation >= BF16_GENERATION else "fp16"
    why = "which needs no loss scale" if precision == "bfloat16" else "with a dynamic loss scale: it has no bf16"
    lines = [
        f"# The machine: {answers.gpus} x {device.name}. 16 bits, {why}; utilisation is a share of the peak rate.",
        f"precision: {precision}",
        f"peak_theoretical_tflops: {device.half / 1e12:g}",
    ]
    if answers.hostfile:
        lines += [
            f"hostfile: {yaml_value(answers.hostfile)}  # a line `name slots=N` for each machine",
            "launcher: pdsh",
        ]
    elif answers.gpus > answers.per_host:
        lines[1:1] = [
            f"# That is more than one machine: list them in a file, with `name slots={answers.per_host}` for each,",
            "# and add hostfile: FILE here. Under Slurm, also launcher: slurm.",
        ]
    return "\n".join(lines)


def _data(answers: Answers) -> list[str]:
    paths = answers.data or [STDLIB]
    of_file = {".json": "HFTokenizer", ".model": "SPMTokenizer"}.get(Path(answers.tokenizer).suffix)
    tokenizer = [f"tokenizer_type: {of_file or answers.tokenizer}"]
    tokenizer += [f"vocab_file: {yaml_value(answers.tokenizer)}"] if of_file else []
    if files := GOALS[answers.goal].files:
        names = {
            "chosen": ["pos_train"],
            "rejected": ["neg_train"],
            "training": ["train"],
            "validation": ["valid", "test"],
        }
        lines = ["# The data: token files, and the labels beside them, as deepy data --chat writes both."]
        for file, path in zip(files, answers.data, strict=True):
            for name in names[file]:
                lines += [f"{name}_data_paths: [{yaml_value(path)}]"]
                lines += [f"{name}_label_data_paths: [{yaml_value(f'{path}_label')}]"]
        if "validation" not in files:
            lines += [
                "# To validate, name other pairs in the keys with valid in place of train, and set eval_iters: 10."
            ]
        evaluation = "do_test: false" if "validation" in files else "eval_iters: 0"
        return ["\n".join([*lines, evaluation, *tokenizer])]
    key = "text_path" if all(map(is_text, paths)) else "data_path"
    if not answers.data:
        lines = [
            "# No data yet: the source code of Python's standard library stands in. Name a file, a folder or a pattern",
            "# here, or tokenise once with deepy data, and set data_path to the result in place of text_path.",
        ]
    elif key == "text_path":
        lines = ["# The text is tokenised on first use. For more than a few GB, tokenise it once with deepy data."]
    else:
        lines = [
            "# The token files, without .bin and .idx. A list of numbers and files in turn gives each file a weight."
        ]
    if answers.tokenizer == BYTES:
        tokenizer[0] += "  # a token per byte; with HFTokenizer, name a tokenizer.json in vocab_file"
    value = yaml_value(paths[0] if len(paths) == 1 else list(paths))
    lines += [f"{key}: {value}", "split: 969, 30, 1  # shares for training, validation and test", *tokenizer]
    return ["\n".join(lines)]


def _run(name: str, answers: Answers) -> str:
    evaluation = "" if GOALS[answers.goal].kind == "DPO" else "eval_interval: 500\neval_iters: 10\n"
    return f"""\
# Logs and checkpoints. More checkpoints lose less when a machine fails, and take more disk space.
log_interval: 10
{evaluation}save: {name}
checkpoint_factor: 500
keep_last_n_checkpoints: 3"""


def layout(result: Result, command: str) -> str:
    """Return the paragraph of the layout with the shortest step. command: plans the file."""
    best, division = result.front[0], result.front[0].layout.division
    usable = format_bytes(best.plan.usable or 0)
    zero = f"{{stage: {division.zero}" + (", offload_optimizer: {device: cpu}" if division.offload else "") + "}"
    recompute = best.layout.recompute
    values = {
        "model_parallel_size": (division.tensor, "GPUs that share each layer"),
        "pipe_parallel_size": (division.pipe, "pipeline stages; 0: without the pipeline engine"),
        "sequence_parallel": (yaml_value(division.sequence_parallel), "norms and dropout are shared as well"),
        "zero_optimization": (zero, "what replicas share: 1 optimizer, 2 and gradients, 3 and weights"),
        "train_micro_batch_size_per_gpu": (best.layout.micro, "more is faster, and takes more memory"),
        "checkpoint_activations": (yaml_value(recompute), "true saves memory, and computes them a second time"),
    }
    if division.expert > 1:
        values["moe_expert_parallel_size"] = (division.expert, "GPUs that share the experts of a layer")
    needs = (
        f"About {format_duration(best.seconds)} per step, and {format_bytes(best.memory)} of {usable} usable per GPU"
    )
    shortest = f"Of {result.planned:,} layouts planned, no other has a shorter estimated step"
    alike = f", but {among - 1:,} may be as fast" if (among := sum(map(result.as_fast, result.fitting))) > 1 else ""
    of_all = f"{shortest}{alike}. The same command with --search lists the best, also for another number of GPUs."
    width = max(len(f"{key}: {value}") for key, (value, _) in values.items())
    lines = [f"{f'{key}: {value}'.ljust(width)}  # {why}" for key, (value, why) in values.items()]
    return "\n".join([
        *(f"# {line}" for line in wrap(f"The layout: {best.layout.division}. {needs}:", 118, "")),
        f"#   {command}",
        *(f"# {line}" for line in wrap(of_all, 118, "")),
        *lines,
    ]) + "\n"  # fmt: skip
