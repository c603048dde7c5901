"""Sequence lengths that grow along a run: valid phases, and what they cannot be combined with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.context import parts_of_sequence
from neoxargs.facts.layer_kinds import RECURRENT
from neoxargs.facts.sequence_lengths import PHASES, SequenceLengths, begins_of_phases
from neoxargs.resolve.rules.rule import Findings, check, refuse, refuse_phases, warn

#: Kinds of layers without a pattern of blocks, whose sequences can have any length.
ANY_LENGTH = ("global", "flash", *RECURRENT)


@check
def seq_length_phases_cut_whole_samples(
    seq_length_schedule: Sequence[Any] | None, seq_length: int, train_batch_size: int,
    rampup_batch_size: Sequence[int] | None, batch_size_schedule: Sequence[Any] | None,
) -> Findings:  # fmt: skip
    """seq_length_schedule lists the lengths of the sequences in their order, up to seq_length. Each sample of
    seq_length tokens is cut into sequences of the current length, which must therefore divide seq_length.

        seq_length: 32
        seq_length_schedule: [{until: 10, length: 7}, {until: 20, length: 16}, {length: 32}]
    """
    sizes = BatchSizes.with_ramp(train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    listed = seq_length_schedule
    yield from refuse_phases(PHASES, listed, lambda: begins_of_phases(listed or (), seq_length, sizes))


@check
def seq_length_phases_cut_plain_text(
    seq_length_schedule: Sequence[Any] | None, train_impl: str, dataset_impl: str, pack_impl: str,
    soft_prompt_tuning__enabled: bool, attention_config: Sequence[str], compile_layers: bool,
) -> Findings:  # fmt: skip
    """With seq_length_schedule, samples are cut at any token. Preference training compares whole answers, documents
    that are packed whole would be cut, a soft prompt stands only before the first piece, the pattern of a sparse layer
    is laid out for seq_length, and compiled layers would be compiled again in the middle of the run.

        seq_length: 32
        seq_length_schedule: [{until: 10, length: 16}, {length: 32}]
        pack_impl: unpacked
    """
    if seq_length_schedule is None:
        return
    sparse = sorted(set(attention_config) - set(ANY_LENGTH))
    others = {
        f"train_impl ({train_impl})": ("train_impl", train_impl != "normal"),
        f"dataset_impl ({dataset_impl})": ("dataset_impl", dataset_impl == "pairwise"),
        f"pack_impl ({pack_impl})": ("pack_impl", pack_impl != "packed"),
        "soft_prompt_tuning": ("soft_prompt_tuning.enabled", soft_prompt_tuning__enabled),
        f"attention_config ({listed(sparse, 'and')})": ("attention_config", bool(sparse)),
        "compile_layers": ("compile_layers", compile_layers),
    }
    if found := {what: name for what, (name, refused) in others.items() if refused}:
        what = f"{PHASES} cannot be combined with {listed(found, 'and')}"
        yield refuse(what, f"remove {PHASES} or {listed(found.values(), 'and')}", about=[PHASES, *found.values()])


@check
def seq_length_phases_are_divided_by_sequence_parallelism(
    seq_length_schedule: Sequence[Any] | None, sequence_parallel: bool, model_parallel_size: int,
    context_parallel_size: int, context_parallel_style: str,
) -> Findings:  # fmt: skip
    """With sequence_parallel, each tensor parallel rank has the same part of every sequence between the layers, also of
    the shorter ones; so has each context parallel rank.

        seq_length: 32
        seq_length_schedule: [{until: 10, length: 1}, {length: 32}]
        model_parallel_size: 2
        sequence_parallel: true
    """
    tensor = model_parallel_size if sequence_parallel else 1
    sizes = parts_of_sequence(context_parallel_style, context_parallel_size, tensor)
    if seq_length_schedule is None or not sizes:
        return
    unit = math.prod(sizes.values())
    lengths = [each.get("length") for each in seq_length_schedule if isinstance(each, dict)]
    if wrong := [str(each) for each in lengths if isinstance(each, int) and each % unit]:
        factors = " x ".join(name if name == "2" else f"{name} ({size})" for name, size in sizes.items())
        factors += f" = {unit}" * (len(sizes) > 1)
        what = f"{PHASES}: {'with sequence_parallel, ' * sequence_parallel}lengths must be multiples of {factors}, and "
        what += f"{listed(wrong, 'and')} {'is' if len(wrong) == 1 else 'are'} not"
        about = [PHASES, *["sequence_parallel"] * sequence_parallel, *(name for name in sizes if name != "2")]
        removed = "sequence_parallel" if sequence_parallel else "context_parallel_size"
        yield refuse(what, f"use multiples of {unit}, or remove {removed}", about=about)


@check
def seq_length_phases_end_before_the_run(
    seq_length_schedule: Sequence[Any] | None, seq_length: int, train_batch_size: int, train_iters: int,
    rampup_batch_size: Sequence[int] | None, batch_size_schedule: Sequence[Any] | None,
) -> Findings:  # fmt: skip
    """If the run ends before the last phase, no step has sequences of seq_length, with which the model is evaluated and
    used: it has not learned positions and dependencies of that length.

        seq_length: 32
        train_iters: 10
        seq_length_schedule: [{until: 1000, length: 16}, {length: 32}]
    """
    if seq_length_schedule is None:
        return
    sizes = BatchSizes.with_ramp(train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    lengths = SequenceLengths.within({PHASES: seq_length_schedule, "seq_length": seq_length}.get, sizes)
    last = lengths.after(sizes.samples_after(train_iters - 1))
    if last != seq_length:
        what = f"the run ends before the last phase of {PHASES}: its last step has sequences of {last} tokens, not of "
        what += f"seq_length ({seq_length})"
        yield warn(what, "end the phases earlier, or increase train_iters", about=[PHASES, "train_iters"])
