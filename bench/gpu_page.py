"""Writes the results of bench/on_gpu.py as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

GIB = 2**30
#: A result of bench/on_gpu.py, as in its JSON.
Row = dict[str, Any]


def page(results: Row, small: bool) -> str:
    """Return the page."""
    facts = results["machine"]
    parts = [
        "# Measured on one GPU",
        f"`python bench/on_gpu.py{' --small' if small else ''}` wrote this page in {results['seconds']:.0f} s.",
        *(["Its models are tiny, and no figure of speed or memory means anything."] if small else []),
        _machine(facts),
        "## Layouts",
        "A small model trains with each layout on the GPU, and in fp32 on this machine's CPU, from the same weights on "
        "the same tokens. The largest relative difference of a loss, and the largest absolute difference of a logit "
        "before the first step. *Waits* are the operations of a step for which the host waits for the GPU, as "
        "`torch.cuda.set_sync_debug_mode` reports them; a plain step reads its loss and its gradient norm:",
        _layouts(results["layouts"]),
        "## Models",
        "bf16, ZeRO stage 1, 4 micro batches in a step, random tokens; the median of the steps after the first three. "
        "FLOP are those of the model: recomputation is not counted. *Tensors* is the peak of torch's allocator, *used* "
        "what is taken of the GPU's memory, with CUDA's context and gaps. *plan* is the figure of `deepy plan`.",
        _models(results["models"], facts["peak_tflops"]),
        "Where the time of a step goes:",
        _times(results["models"]),
        *_failed_attempts(results["models"]),
    ]
    return "\n\n".join(parts) + "\n"


def _machine(facts: Row) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    capability = ".".join(map(str, facts["capability"]))
    gpu = f"{facts['gpu']}, compute capability {capability}, {facts['memory'] / GIB:.1f} GiB"
    return f"{gpu}; host with {facts['cpus']} CPUs and {facts['host_memory'] / GIB:.0f} GiB. {versions}."


def _layouts(rows: Iterable[Row]) -> str:
    cells = [
        [
            row["name"],
            _number(row.get("difference"), ".1e"),
            _number(row.get("logits"), ".1e"),
            "" if row.get("waits") is None else str(len(row["waits"])),
            row["problem"] or "ok",
        ]
        for row in rows
    ]
    return _table(["layout", "losses", "logits", "waits", "result"], cells)


def _models(rows: Iterable[Row], peak: float | None) -> str:
    head = ["model", "parameters", "way", "tokens/s", "plan", "TFLOP/s", "of peak", "tensors, GiB", "plan", "used, GiB",
            "plan"]  # fmt: skip
    return _table(head, [_model(row, peak) for row in rows])


def _model(row: Row, peak: float | None) -> list[str]:
    way = _way(row["attempts"][-1])
    if "seconds" not in row:
        return [row["name"], "", way, "failed", *[""] * 7]
    rate = row["tokens"] / row["seconds"]
    tflops = rate * row["flops_per_token"] / 1e12
    return [
        row["name"], f"{row['parameters']:,}", way, f"{rate:,.0f}", f"{row['tokens'] / row['plan']['seconds']:,.0f}",
        f"{tflops:.1f}", f"{tflops / peak:.1%}" if peak else "",
        *(f"{source[kind] / GIB:.1f}" for kind in ("tensors", "used") for source in (row, row["plan"])),
    ]  # fmt: skip


def _times(rows: Iterable[Row]) -> str:
    measured = [row for row in rows if "kinds" in row]
    kinds = list(measured[0]["kinds"]) if measured else []
    cells = [[row["name"], *(f"{row['kinds'][kind] / row['seconds']:.0%}" for kind in kinds)] for row in measured]
    return _table(["model", *kinds], cells)


def _way(attempt: Row) -> str:
    words = [f"micro batch {attempt['micro_batch']}"]
    words += ["recomputed"] if attempt["recompute"] else []
    words += ["optimizer in host memory"] if attempt["offload"] else []
    return ", ".join(words)


def _failed_attempts(rows: Iterable[Row]) -> list[str]:
    failed = [
        f"- {row['name']}, {_way(attempt)}: {attempt['error']}"
        for row in rows
        for attempt in row["attempts"]
        if attempt["error"]
    ]
    return ["Ways that failed:", "\n".join(failed)] if failed else []


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
