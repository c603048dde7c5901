"""Report before launch what a run restores from a GPT-NeoX checkpoint; damage or a different model is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from neoxargs.base.problems import Problem, Problems, has_errors
from neoxargs.base.record import replace
from neoxargs.base.regular_files import read_regular
from neoxargs.checks.checkpoint.schedule import chooses_schedule
from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.facts.model import vocabulary_rows
from neoxargs.facts.vocab import vocabulary_size
from neoxargs.files.neox_checkpoint.comparison import MLP, mismatches, other_model
from neoxargs.files.neox_checkpoint.consistency import inconsistencies, require_checksums
from neoxargs.files.neox_checkpoint.contents import SCHEDULE, Contents
from neoxargs.files.neox_checkpoint.evidence import query_key_value_order
from neoxargs.files.neox_checkpoint.optimizer import (
    NotUsable,
    not_restorable,
    restorable_state,
    state_kinds,
)
from neoxargs.files.neox_checkpoint.weights import Located, locate, used_weights, weight_kinds

#: The first DeepSpeed that was released after GPT-NeoX moved RMSNorm's epsilon under the root, on 2025-05-09.
EPSILON_UNDER_ROOT = (0, 17)
#: A name of a weight in GPT-NeoX's base shapes, with and without a pipeline.
NEOX_SHAPE = re.compile(r"^(?:sequential\.\d+|tied_modules\.\w+|\d+)\.\S+:", re.MULTILINE)
#: Bytes of a checkpoint, or of a file of base shapes, that are read before the launch: more would delay every check.
AT_MOST = 2**28


def neox_checkpoint(config: Config) -> Iterator[Problem]:
    """Yield what is wrong with the GPT-NeoX checkpoint that `load` names, and a warning that lists what is restored.

    Reads the names and shapes of tensors, and the elements only of a small checkpoint, to compare checksums.
    """
    if not config.checkpoint.load or config.get("checkpoint.load_universal"):  # read by DeepSpeed
        return
    try:
        contents = Contents.at(Path(config.checkpoint.load), config.training.iteration)
        if contents is None:
            return
        located = locate(contents)
        problems = [*inconsistencies(contents), *mismatches(config, contents, located), *other_model(config, contents)]
        if not has_errors(problems):
            compared = require_checksums(contents, AT_MOST)
            problems += _taken_over(config, contents, located, compared)
    except Problems as found:
        problems = found.problems
    place = config.place("load")
    yield from (problem if problem.where else replace(problem, where=place) for problem in problems)


def _taken_over(config: Config, contents: Contents, located: Located, compared: bool) -> Iterator[Problem]:
    """Yield a warning that lists what is restored, and errors about what is missing."""
    options, lines = config.checkpoint, [_layouts(config, contents)]
    order = query_key_value_order(contents, located, config.shape, options.load_query_key_value_order)
    # GPT-NeoX itself has changed the order only of models with grouped queries.
    grouped = config.shape.num_kv_heads != config.shape.num_attention_heads
    reason = f" (query_key_value order {order.order}: {order.reason})" * grouped
    lines.append(f"restored: weights of {located.depth} layers{reason}")
    not_taken = ["RNG states"]
    if options.finetune:
        not_taken += ["optimizer state", "learning rate schedule", "iteration (finetune: true)"]
    else:
        yield from _other_schedule(config, contents)
        lines[-1] += f", iteration {contents.iteration}, learning rate schedule"
        if options.no_load_optim:
            not_taken.append("optimizer state (no_load_optim: true)")
        else:
            try:
                state = restorable_state(contents, config)
                lines[-1] += f", optimizer state at step {state.step} ({', '.join(state_kinds(state))})"
            except NotUsable as why:
                yield not_restorable(contents, str(why))
    lines.append(f"weights: {', '.join(weight_kinds(used_weights(located, config)))}")
    lines.append(f"not restored: {', '.join(not_taken)}")
    if not compared:
        lines.append("checksums: not compared yet, because the files are large; the ranks compare them when they load")
    lines += [*_rows(config, located), *_other_function(config, contents, located), *_biases(config, located)]
    what = f"load ({contents.folder}) is a GPT-NeoX checkpoint\n" + "\n".join(f"  {line}" for line in lines)
    yield Problem(what, severity="warning", id="checkpoint-of-gpt-neox", about=("load",))


def _layouts(config: Config, contents: Contents) -> str:
    files, parallel = contents.files, config.parallel
    there = f"model_parallel_size {files.tensor_ranks}, pipe_parallel_size {files.stages if files.by_layer else 0}"
    noun = "rank" if files.data_ranks == 1 else "ranks"
    partitioned = f", optimizer state on {files.data_ranks} {noun}" if files.data_ranks else ""
    here = f"model_parallel_size {parallel.model_parallel_size}, pipe_parallel_size {parallel.pipe_parallel_size}"
    return f"checkpoint layout: {there}{partitioned}; this run's layout: {here}"


def _rows(config: Config, located: Located) -> Iterator[str]:
    theirs, ours = located.weights["embedding.word_embeddings.weight"].shape()[0], vocabulary_rows(config)
    if ours is None or ours == theirs:
        return
    tokens = vocabulary_size(config.tokenizer.tokenizer_type, config.tokenizer.vocab_file) or 0
    what = f"{ours - theirs} are added and filled with zeros"
    if ours < theirs:
        what = f"the last {theirs - ours} are dropped, which are padding only if the checkpoint's tokenizer has at "
        what += f"most {ours} tokens"
    elif tokens > theirs:
        what += f", {tokens - theirs} of them for tokens"
    yield f"vocabulary: {theirs} rows in the checkpoint, {ours} in this run; {what}"


def _other_function(config: Config, contents: Contents, located: Located) -> Iterator[str]:
    """Yield the differences in `docs/from-gpt-neox.md` that change the loss of this GPT-NeoX run."""
    rows = located.weights["embedding.word_embeddings.weight"].shape()[0]
    tokens = vocabulary_size(config.tokenizer.tokenizer_type, config.tokenizer.vocab_file)
    if tokens is not None and rows > tokens and not config.embedding.softmax_over_padding:
        yield (
            f"different loss: GPT-NeoX's softmax includes {rows - tokens} padding rows, which have probability 0 here; "
            "set softmax_over_padding: true to compute GPT-NeoX's loss"
        )
    version = contents.deepspeed
    under_root = config.get("rms_norm_epsilon_under_root") is not False
    if config.norm.norm == "rmsnorm" and under_root and not (version and version >= EPSILON_UNDER_ROOT):
        yield (
            f"RMSNorm: GPT-NeoX before 2025-05-09 added rms_norm_epsilon ({config.norm.rms_norm_epsilon}) after "
            "the square root; this run adds it inside the square root; if such a version wrote the checkpoint, set "
            "rms_norm_epsilon_under_root: false"
        )
    if config.attention.gpt_j_residual and f"layers.0.{MLP}.bias" not in located.weights:
        yield (
            "different model: with gpt_j_residual and without biases in the MLP (use_bias_in_mlp: false), GPT-NeoX "
            "leaves out the attention's output and has not trained it; this run adds it, which raises the loss"
        )
    if config.mup.use_mup:
        yield (
            "different model: GPT-NeoX builds its layers with muP off, so it divides attention scores by the square "
            "root of the head's width and applies no mup_embedding_mult; its Adam adds the decay to the gradient. This "
            "run does what use_mup describes"
        )


def _biases(config: Config, located: Located) -> Iterator[str]:
    """Yield how the tensor parallel ranks' values of one weight become one."""
    ranks = max(len(refs) for item in located.weights.values() for refs in item.tensors)
    if ranks > 1 and config.attention.gpt_j_residual:
        yield "biases: in GPT-NeoX each tensor parallel rank has its own biases; this run uses their sum"
        return
    copies = {name: item for name, item in located.weights.items() if item.cut in ("copies", "row bias")}
    # By their checksums: the tensors themselves are not read.
    different = [name for name, item in copies.items() if len({ref.storage.crc32 for ref in item.tensors[0]}) > 1]
    if different:
        names = ", ".join(weight_kinds(different))
        yield f"different biases: the tensor parallel ranks have different values of {names}; this run uses their mean"
    if ranks > 1 and config.parallel.sequence_parallel:
        yield (
            "different biases: with sequence_parallel, GPT-NeoX updates each rank's biases of row-parallel layers by "
            "that rank's part of the sequence only; this run updates them by all of it"
        )


def neox_base_shapes(config: Config) -> Iterator[Problem]:
    """Yield an error if `base_shapes_file` is GPT-NeoX's: one file per rank, with its names of the weights.

    It cannot be used: GPT-NeoX writes the shapes of each rank's shards, which depend on the layout.
    """
    name = config.mup.base_shapes_file
    if not config.mup.use_mup or config.mup.save_base_shapes or not name:
        return
    for file in (Path(name), Path(f"{name}.0")):
        try:
            text = read_regular(file, AT_MOST).decode()
        except (OSError, ValueError):
            continue
        if NEOX_SHAPE.search(text):
            what = f"base_shapes_file ({file}) was written by GPT-NeoX, whose files have the shapes of one rank's "
            what += "shards, by its own names of the weights"
            hint = "write a new file: run train.py with the base model's configuration and save_base_shapes: true"
            place, about = config.place("base_shapes_file"), ("base_shapes_file",)
            yield Problem(what, place, hint, id="base-shapes-of-gpt-neox", about=about)
        return


def _other_schedule(config: Config, contents: Contents) -> Iterator[Problem]:
    theirs = contents.common.get("lr_scheduler")
    if chooses_schedule(config) or not isinstance(theirs, dict):
        return
    curve = LearningRateCurve.of(config.get)
    for field, (key, name) in SCHEDULE.items():
        here = getattr(curve, field)
        there = theirs.get(key, here)
        if there == here:
            continue
        unit = " iterations" * (name in ("warmup", "lr_decay_iters"))
        what = f"load ({contents.folder}): the checkpoint's learning rate schedule uses {name} = {there}{unit}, "
        what += f"but this configuration uses {here}{unit}"
        hint = "set use_checkpoint_lr_scheduler: true to continue with the checkpoint's schedule, or "
        hint += "override_lr_scheduler: true to use this configuration's schedule"
        yield Problem(what, config.place(name), hint, id="checkpoint-other-lr-schedule", about=("load", name))
