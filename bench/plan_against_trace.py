"""Compare `deepy plan` with a trace of the real model at full size, for every file of configs/models.

    python bench/plan_against_trace.py [--only pythia-1b] [--layout tp2-pp2] [--set KEY=VALUE] [--json] [--write]
    python bench/plan_against_trace.py --context [--write]

The model is built by train.py's own builder, on tensors without values: every operator of the forward and the backward
pass runs and returns shapes, so neither a GPU nor memory is needed (bench/traced/). One rank of the first, a middle and
the last pipeline stage is traced, on two of the shipped layouts: the first one without a pipeline, and the first one
with a pipeline, on which the model fits on 64 H100, or else on 128, according to the plan; with --context, the layouts
of CONTEXT. The comparison covers the
peak memory of activations and logits (within 5 %), the floating point operations of a micro batch (within 1 %), and the
number and bytes of messages between tensor parallel ranks and between stages (exactly). It does not cover weights,
gradients and the optimizer, which tests/plan/memory/test_measured_memory.py measures, nor the memory that a
kernel allocates while it runs.

The roofline time is a model: for each operator, the longer of the time of its operations at the device's peak rate and
the time of its memory traffic at full bandwidth, summed over all operators. It leaves out communication, kernel
launches and the optimizer. Real time is longer.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from operations import stage_operations  # noqa: E402

from neoxargs.base.problems import Problems  # noqa: E402
from neoxargs.base.text import GIB  # noqa: E402
from neoxargs.facts.model import flops_per_token  # noqa: E402
from neoxargs.hosts.device_table import find_device  # noqa: E402
from neoxargs.plan.estimate import Plan, make_plan  # noqa: E402
from neoxargs.plan.given.assumptions import SINGLE  # noqa: E402
from neoxargs.plan.given.options import PlanOptions  # noqa: E402
from neoxargs.plan.given.target import choose_target  # noqa: E402
from neoxargs.plan.memory.activation_sizes import ActivationSizes  # noqa: E402
from neoxargs.plan.memory.activations import micro_batches_in_flight  # noqa: E402
from neoxargs.plan.time.communication import (  # noqa: E402
    Message,
    Messages,
    context_messages,
    pipeline_messages,
    tensor_messages,
)
from neoxargs.resolve import resolve  # noqa: E402
from neoxargs.runs.run_spec import resolve_run  # noqa: E402

#: Not those with experts: how many tokens an expert gets depends on values, which traced tensors do not have.
MODELS = sorted(
    path.stem
    for path in (ROOT / "configs" / "models").glob("*.yml")
    if "moe_num_experts" not in path.read_text(encoding="utf-8")
)
#: In the order in which they are tried. ZeRO-3 needs an optimizer while it computes.
LAYOUTS = (("data-parallel", "zero1", "tp8"), ("tp2-pp2", "tp8-pp4", "tp8-pp8"))
DEVICE, GPUS = "H100-80GB", (64, 128)
MEMORY_TOLERANCE, FLOPS_TOLERANCE = 0.05, 0.01
#: Long sequences, and name -> the file of configs/layouts and what else divides them among context parallel ranks.
LONG = ("llama-3.1-8b", ["seq_length=32768", "train_micro_batch_size_per_gpu=1", "checkpoint_activations=true"])
CONTEXT = {
    f"{style}, {layout}": (file, [f"context_parallel_style={style}", *sets])
    for style, layout, file, sets in (
        ("all_to_all", "cp2", "data-parallel", ["context_parallel_size=2"]),
        ("all_to_all", "cp4 x tp2", "tp8", ["context_parallel_size=4", "model_parallel_size=2"]),
        ("ring", "cp4", "zero1", ["context_parallel_size=4"]),
        ("ring", "cp2 x tp2-pp2", "tp2-pp2", ["context_parallel_size=2"]),
        ("hybrid", "cp8 x tp2", "tp8", ["context_parallel_size=8", "model_parallel_size=2"]),
    )
}
PAGE = ROOT / "docs" / "plan-against-trace.md"
BEGIN, END = "<!-- written by bench/plan_against_trace.py -->\n", "<!-- end -->\n"
BEGIN_CONTEXT = "<!-- written by bench/plan_against_trace.py --context -->\n"


@dataclass(frozen=True)
class Figures:
    """The compared figures of one rank."""

    memory: int
    """Peak bytes of activations and logits."""
    flops: int
    """Floating point operations of one micro batch."""
    tensor: Messages
    """Of tensor and context parallel ranks."""
    pipeline: Messages


@dataclass(frozen=True)
class Row:
    """Plan and trace of a rank of one stage."""

    model: str
    layout: str
    stage: int
    stages: int
    planned: Figures
    traced: Figures
    roofline: float
    """Seconds of a micro batch."""
    share: float
    """Operations of the model, without recomputation, in the roofline time, as a fraction of the device's peak."""

    @property
    def memory_error(self) -> float:
        return self.planned.memory / self.traced.memory - 1

    @property
    def flops_error(self) -> float:
        return self.planned.flops / self.traced.flops - 1

    @property
    def agrees(self) -> bool:
        same = self.planned.tensor == self.traced.tensor and self.planned.pipeline == self.traced.pipeline
        return same and abs(self.memory_error) <= MEMORY_TOLERANCE and abs(self.flops_error) <= FLOPS_TOLERANCE


def main() -> int:
    options = _options()
    rows: list[Row] = []
    for found in _with_context(options) if options.context else _on_shipped_layouts(options):
        rows += found
        if options.write:
            _write(rows, BEGIN_CONTEXT if options.context else BEGIN)
    if not rows:
        sys.exit(f"nothing to compare: {options.only or 'no model'} fits on no layout")
    if options.json:
        print(json.dumps([_as_json(row) for row in rows], indent=1))
    else:
        print(f"{sum(row.agrees for row in rows)} of {len(rows)} ranks agree")
    return int(not all(row.agrees for row in rows))


def _on_shipped_layouts(options: argparse.Namespace) -> Iterator[list[Row]]:
    for model in MODELS:
        if options.only in (None, model):
            for layout, gpus in _fitting(model, options.layout, options.set):
                yield list(compare(model, layout, options.set, not options.json, gpus))


def _with_context(options: argparse.Namespace) -> Iterator[list[Row]]:
    model, long = LONG
    for name, (layout, sets) in CONTEXT.items():
        yield list(compare(model, layout, [*long, *sets, *options.set], not options.json, name=name))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MODELS, metavar="NAME", help="compare this file of configs/models only")
    layouts = [layout for group in LAYOUTS for layout in group]
    parser.add_argument("--layout", choices=layouts, help="compare on this file of configs/layouts only")
    parser.add_argument("--context", action="store_true", help="compare context parallel layouts")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"write the table of docs/{PAGE.name}")
    return parser.parse_args()


def _fitting(model: str, layout: str | None, sets: Sequence[str]) -> list[tuple[str, int]]:
    """Return the layouts to trace, with their numbers of GPUs: the first of each group that fits."""
    if layout:
        return [(layout, GPUS[0])]
    for gpus in GPUS:
        fitting = [[name for name in group if fits(model, name, sets, gpus)] for group in LAYOUTS]
        if any(fitting):
            return [(names[0], gpus) for names in fitting if names]
    return []


def fits(model: str, layout: str, sets: Sequence[str], gpus: int) -> bool:
    plan = plan_of(files_of(model, layout), sets, gpus)
    return plan is not None and plan.fits


def files_of(model: str, layout: str) -> list[str]:
    folders = (("models", model), ("layouts", layout), ("machines", "a100"))
    return [str(ROOT / "configs" / folder / f"{name}.yml") for folder, name in folders]


def plan_of(files: Sequence[str], sets: Sequence[str], gpus: int = GPUS[0]) -> Plan | None:
    """Return the plan; None if the layout does not suit the model, as when 8 ranks cannot share 12 heads."""
    options = PlanOptions(files, sets, gpus=gpus, device=DEVICE)
    try:
        spec = resolve_run(options, {})
    except Problems:
        return None
    return make_plan(spec, choose_target(options, spec))


def compare(
    model: str, layout: str, sets: Sequence[str] = (), show: bool = False, gpus: int = GPUS[0], name: str = ""
) -> Iterator[Row]:
    """Trace the first, a middle and the last stage, each in a process of its own, and yield the comparison.

    name: of the layout, if `sets` change it.
    """
    files = files_of(model, layout)
    plan = plan_of(files, sets, gpus)
    assert plan is not None, f"{layout} does not suit {model}"
    for stage in sorted({0, plan.layout.pipe // 2, plan.layout.pipe - 1}):
        began = time.monotonic()
        row = compare_stage(plan, files, sets, stage, (model, name or layout))
        if show:
            print(f"{_in_words(row)}  ({time.monotonic() - began:.0f} s)", flush=True)
        yield row


def compare_stage(plan: Plan, files: Sequence[str], sets: Sequence[str], stage: int, names: tuple[str, str]) -> Row:
    traced = trace_of(plan, files, sets, stage)
    share = model_operations(plan, stage) / traced.roofline / find_device(DEVICE).half
    return Row(*names, stage, plan.layout.pipe, planned(plan, stage), traced.figures, traced.roofline, share)


def model_operations(plan: Plan, index: int) -> float:
    """Return the operations of the model in a micro batch on a rank of a stage, without anything computed twice."""
    config, rows, stage = plan.config, plan.vocab_rows, plan.stage_memory[index].stage
    vocabulary = 6 * rows * config.shape.hidden_size
    layers = (flops_per_token(config, rows) - vocabulary) * len(stage.layers) / config.shape.num_layers
    tokens = config.batch.train_micro_batch_size_per_gpu * config.shape.seq_length
    return float(tokens * (layers + (vocabulary if stage.last else 0)) / plan.layout.tensor / plan.layout.context)


def planned(plan: Plan, index: int) -> Figures:
    """Return the plan's figures for a rank of a stage."""
    memory, rows, sizes = plan.stage_memory[index], plan.vocab_rows, ActivationSizes(plan.config)
    most = max(phase.get("activations", 0) + phase.get("logits", 0) for phase in memory.phases.values())
    return Figures(
        most,
        stage_operations(plan.config, memory.stage, rows).total,
        sum(context_messages(sizes, memory.stage), tensor_messages(sizes, memory.stage, rows)),
        pipeline_messages(sizes, memory.stage),
    )


class Traced(NamedTuple):
    """What a trace of one rank finds."""

    figures: Figures
    roofline: float
    """Seconds of a micro batch."""
    moved: float
    """Bytes that operators other than matrix products and attention read and write in a micro batch."""


def trace_of(plan: Plan, files: Sequence[str], sets: Sequence[str], stage: int) -> Traced:
    """Trace a rank in a process of its own, because torch's process groups and caches are of the whole process."""
    import traced.stage  # noqa: F401  before the fork: torch takes seconds to import

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_trace, args=(sender, plan, files, sets, stage))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        raise RuntimeError("the traced process ended early; its error is above") from None
    finally:
        process.join()
    return result  # type: ignore[no-any-return]


def _trace(sender: Any, plan: Plan, files: Sequence[str], sets: Sequence[str], stage: int) -> None:
    from traced.fake_rank import fake_rank
    from traced.recorder import ACTIVATIONS, LOGITS, Roof
    from traced.stage import build, trace

    layout, batch = plan.layout, plan.config.batch
    in_flight = micro_batches_in_flight(plan.config, plan.stage_memory[stage].stage)
    # as many as are in flight at a time, and in a pipeline one more, which starts when one of them has ended
    micro_batches = min(batch.gradient_accumulation_steps, in_flight + (layout.pipe > 1))
    samples = f"train_batch_size={micro_batches * batch.train_micro_batch_size_per_gpu}"
    in_stage = layout.tensor * layout.context
    one_replica = resolve(files, [*sets, samples], gpus=in_stage * layout.pipe)
    device = find_device(DEVICE)
    with fake_rank(stage * in_stage, one_replica) as mesh:
        deepspeed = build(one_replica, plan.vocab_rows, mesh)
        recorder = trace(deepspeed, one_replica, Roof(device.half, device.single, device.bandwidth))
    # not those of a single number: the mean loss, once in a step
    counted = (each for each in recorder.messages if each.floats and each.size > SINGLE)
    messages = [message for message in counted if message.operator != "broadcast"]
    ring = mesh.context_ring.group.group_name if mesh.context_ring.group else ""
    one_way = [message for message in messages if message.operator in ("send", "recv")]
    between = [message for message in one_way if message.group != ring]
    # around a ring, each rank receives what another one sends
    among = [message for message in messages if message not in between and message.operator != "recv"]
    figures = Figures(
        recorder.peak(ACTIVATIONS, LOGITS).total,
        round(recorder.total.flops / micro_batches),
        _per_micro_batch(among, micro_batches),
        _per_micro_batch(between, micro_batches),
    )
    sender.send(Traced(figures, recorder.total.seconds / micro_batches, recorder.total.moved / micro_batches))


def _per_micro_batch(messages: Sequence[Any], micro_batches: int) -> Messages:
    counts = Counter(Message(message.operator, message.size) for message in messages)
    assert all(count % micro_batches == 0 for count in counts.values()), f"not the same in each micro batch: {counts}"
    return Counter({key: count // micro_batches for key, count in counts.items()})


# --- output -----------------------------------------------------------------------------------------------------------


def _in_words(row: Row) -> str:
    memory = f"{row.planned.memory / GIB:8.3f} GiB planned, {row.traced.memory / GIB:8.3f} traced"
    flops = f"{row.planned.flops / 1e12:9.3f} TFLOP planned, {row.traced.flops / 1e12:9.3f} traced"
    where = f"{row.model:14} {row.layout:13} {row.stage + 1}/{row.stages}"
    wrong = "" if row.agrees else "  DIFFERS" + _differences(row)
    return (
        f"{where}  {memory} ({row.memory_error:+.1%}), {flops} ({row.flops_error:+.2%}), messages: "
        f"{_summed(row.traced.tensor)} tensor parallel; {_summed(row.traced.pipeline)} pipeline; "
        f"roofline {row.roofline * 1e3:.1f} ms ({row.share:.1%}){wrong}"
    )


def _differences(row: Row) -> str:
    pairs = (("tensor", row.planned.tensor, row.traced.tensor), ("pipeline", row.planned.pipeline, row.traced.pipeline))
    return "".join(
        f"; {name}: planned only {dict(planned - traced)}, traced only {dict(traced - planned)}"
        for name, planned, traced in pairs
        if planned != traced
    )


def _summed(messages: Messages) -> str:
    """Number and bytes."""
    if not messages:
        return "0"
    size = sum(each * count for (_, each), count in messages.items())
    return f"{sum(messages.values())}, {size / GIB:.3g} GiB"


def _as_json(row: Row) -> dict[str, Any]:
    def figures(held: Figures) -> dict[str, Any]:
        lists = {
            name: [[operator, size, count] for (operator, size), count in sorted(getattr(held, name).items())]
            for name in ("tensor", "pipeline")
        }
        return {"memory": held.memory, "flops": held.flops, **lists}

    plain = {key: value for key, value in asdict(row).items() if key not in ("planned", "traced")}
    return {**plain, "planned": figures(row.planned), "traced": figures(row.traced), "agrees": row.agrees}


def table(rows: Sequence[Row]) -> str:
    """Return the Markdown table of the page."""
    lines = [
        "| model | layout | stage | planned GiB | traced GiB | error | planned TFLOP | traced TFLOP | error "
        "| tensor parallel messages (number, size) | pipeline messages (number, size) | roofline, ms "
        "| fraction of peak |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|---|---|--:|--:|",
    ]
    for row in rows:
        tensor = _cell(row.planned.tensor, row.traced.tensor)
        pipeline = _cell(row.planned.pipeline, row.traced.pipeline)
        lines.append(
            f"| {row.model} | {row.layout} | {row.stage + 1} of {row.stages} "
            f"| {row.planned.memory / GIB:.3f} | {row.traced.memory / GIB:.3f} | {row.memory_error:+.1%} "
            f"| {row.planned.flops / 1e12:.3f} | {row.traced.flops / 1e12:.3f} | {row.flops_error:+.2%} "
            f"| {tensor} | {pipeline} | {row.roofline * 1e3:.1f} | {row.share:.1%} |"
        )
    return "\n".join(lines) + "\n"


def _cell(planned: Messages, traced: Messages) -> str:
    return _summed(traced) if planned == traced else f"{_summed(traced)}; plan: {_summed(planned)}"


def _write(rows: Sequence[Row], begin: str) -> None:
    """Write the rows into the table of the page that begins there, where they replace those of the same models."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    written, _, after = rest.partition(END)
    head, new = table([]).splitlines(), table(rows).splitlines()[2:]
    kept = [line for line in written.splitlines()[2:] if line.split("|")[1].strip() not in {row.model for row in rows}]
    lines = sorted([*kept, *new], key=lambda line: line.split("|")[1].strip())
    PAGE.write_text(before + begin + "\n".join([*head, *lines]) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
