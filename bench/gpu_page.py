"""Writes the results of bench/on_gpu.py as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

GIB, MIB = 2**30, 2**20
#: Bytes of the smallest messages that are shown; those of flags and norms are smaller.
LEAST = 1024
AXES = "data", "tensor", "pipe", "expert", "expert data"
#: A result of bench/on_gpu.py, as in its JSON.
Row = dict[str, Any]


def page(results: Row, small: bool) -> str:
    """Return the page."""
    facts = results["machine"]
    gpus = facts["gpus"]
    parts = [
        f"# Measured on {'one GPU' if gpus == 1 else f'{gpus} GPUs'}",
        f"`python bench/on_gpu.py{' --small' if small else ''}` wrote this page in {results['seconds']:.0f} s.",
        *(["Its models are tiny, and no figure of speed or memory means anything."] if small else []),
        _machine(facts),
        *_left_out([*results["several"], *results["models"], *results["layouts"]]),
        *(_several(results, gpus) if gpus > 1 else []),
        "## Layouts" + (" on one GPU" if gpus > 1 else ""),
        "A small model trains with each layout on the GPU, and in fp32 on this machine's CPU, from the same weights on "
        "the same tokens. The largest relative difference of a loss, and the largest absolute difference of a logit "
        "before the first step. *Waits* are the operations of a step for which the host waits for the GPU, as "
        "`torch.cuda.set_sync_debug_mode` reports them; a plain step reads its loss and its gradient norm:",
        _layouts(_tried(results["layouts"])),
        "## Models" + (" on one GPU" if gpus > 1 else ""),
        "bf16, ZeRO stage 1, 4 micro batches in a step, random tokens; the median of the steps after the first three. "
        "FLOP are those of the model: recomputation is not counted. *Tensors* is the peak of torch's allocator, *used* "
        "what is taken of the GPU's memory, with CUDA's context and gaps. *plan* is the figure of `deepy plan`.",
        *_measured([row for row in _tried(results["models"]) if row["gpus"] == 1], facts["peak_tflops"]),
    ]
    return "\n\n".join(parts) + "\n"


def _tried(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row.get("left_out")]


def _left_out(rows: Iterable[Row]) -> list[str]:
    names = [f"{row['name']} (one GPU)" if row.get("gpus") == 1 else row["name"] for row in rows if "left_out" in row]
    return [f"There was no time left for {len(names)}: {'; '.join(names)}."] if names else []


def _several(results: Row, gpus: int) -> list[str]:
    layouts = _tried(results["several"])
    return [
        f"## Layouts on {gpus} GPUs",
        "A small model trains with each layout on all GPUs with NCCL; what tensor, pipeline and expert parallelism "
        "leave of them is data parallel (*replicas*). Losses, and the norm of the first gradient, are compared with "
        "those of one process on this machine's CPU, in fp32, from the same weights on the same tokens. *Waits* are "
        "those of the rank with the most. *Groups* are the process groups of a rank, made by dividing NCCL's "
        "communicator (`split_group`) or one by one.",
        _layouts_of_several(layouts),
        "What rank 0 sends in a step, by the axes of the mesh; *in backward* is while a backward pass runs:",
        _messages(layouts),
        f"## Models on {gpus} GPUs",
        "As on one GPU, below, with these layouts: bf16, ZeRO stage 1, 4 micro batches of a replica in a step, unless "
        "the name says otherwise; ZeRO 3 has 1, pipelines have 8. Tokens/s and FLOP/s are "
        "those of one GPU; the slowest rank and the fullest GPU count.",
        *_measured([row for row in _tried(results["models"]) if row["gpus"] > 1], results["machine"]["peak_tflops"]),
    ]


def _layouts_of_several(rows: Iterable[Row]) -> str:
    cells = []
    for row in rows:
        cell = [row["name"], *[""] * 8, row["problem"] or "ok"]
        if "messages" in row:
            groups, waits = row["groups"], max(map(len, row["waits"]))
            made = "split" if groups["split"] else "one by one"
            cell[1:9] = [
                str(row["replicas"]), _number(row.get("difference"), ".1e"),
                _number(row.get("norm"), ".1e"), str(waits), ", ".join(row["attention"]),
                f"{groups['count']}, {made}", f"{row['sum']['way']}, {row['sum']['dtype']}", _share_in_backward(row),
            ]  # fmt: skip
        cells.append(cell)
    head = ["layout", "replicas", "losses", "norm", "waits", "attention", "groups", "sum of gradients",
            "during backward", "result"]  # fmt: skip
    return _table(head, cells)


def _share_in_backward(row: Row) -> str:
    """Return the share of what is reduced over the replicas, in bytes, that is sent while a backward pass runs."""
    sums = [each for each in row["messages"] if each["group"] == "data" and "reduce" in each["operation"]]
    total = sum(each["bytes"] for each in sums)
    during = sum(each["bytes"] for each in sums if each["in_backward"])
    return f"{during / total:.0%} of {total / MIB:.2f} MiB" if total else ""


def _messages(rows: Iterable[Row]) -> str:
    """Return a table of what is sent over each axis of the mesh."""
    sent = {
        row["name"]: [each for each in row["messages"] if each["bytes"] >= LEAST] for row in rows if "messages" in row
    }
    groups = list(dict.fromkeys(each["group"] for messages in sent.values() for each in messages))
    groups.sort(key=lambda group: AXES.index(group) if group in AXES else len(AXES))
    return _table(
        ["layout", *groups],
        [
            [name, *(_over([each for each in messages if each["group"] == group]) for group in groups)]
            for name, messages in sent.items()
        ],
    )


def _over(messages: list[Row]) -> str:
    """Return in words what is sent over one group: `reduce-scatter float32 1.20 MiB, 3 calls (2 in backward)`."""
    words = []
    for operation, dtype in dict.fromkeys((each["operation"], each["dtype"]) for each in messages):
        same = [each for each in messages if (each["operation"], each["dtype"]) == (operation, dtype)]
        calls, during = (sum(each["calls"] for each in same if each["in_backward"] >= part) for part in (False, True))
        size = sum(each["bytes"] for each in same) / MIB
        inside = f" ({during} in backward)" if during else ""
        words.append(f"{operation} {dtype} {size:.2f} MiB, {calls} call{'s' if calls > 1 else ''}{inside}")
    return "; ".join(words)


def _measured(rows: list[Row], peak: float | None) -> list[str]:
    parts = [_models(rows, peak)]
    if any("kinds" in row for row in rows):
        parts += ["Where the time of a step goes:", _times(rows)]
    return [*parts, *_failed_attempts(rows)]


def _machine(facts: Row) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    capability = ".".join(map(str, facts["capability"]))
    count = f"{facts['gpus']} x " if facts["gpus"] > 1 else ""
    gpu = f"{count}{facts['gpu']}, compute capability {capability}, {facts['memory'] / GIB:.1f} GiB"
    return f"{gpu}; host with {facts['cpus']} CPUs and {facts['host_memory'] / GIB:.0f} GiB. {versions}."


def _layouts(rows: Iterable[Row]) -> str:
    cells = [
        [
            row["name"],
            _number(row.get("difference"), ".1e"),
            _number(row.get("logits"), ".1e"),
            "" if row.get("waits") is None else str(len(row["waits"])),
            "; ".join([row["problem"] or "ok", *row.get("recurrent", ())]),
        ]
        for row in rows
    ]
    return _table(["layout", "losses", "logits", "waits", "result"], cells)


def _models(rows: list[Row], peak: float | None) -> str:
    head = ["model", "parameters", "way", "tokens/s", "plan", "TFLOP/s", "of peak", "tensors, GiB", "plan", "used, GiB",
            "plan"]  # fmt: skip
    has_published = any(row.get("published") for row in rows)
    cells = [[*_model(row, peak), *([_published(row)] if has_published else [])] for row in rows]
    return _table([*head, *(["published"] if has_published else [])], cells)


def _model(row: Row, peak: float | None) -> list[str]:
    way = _way(row["attempts"][-1])
    if "seconds" not in row:
        return [row["name"], "", way, "failed", *[""] * 7]
    tokens = row["tokens"] / row["gpus"]
    rate = tokens / row["seconds"]
    tflops = rate * row["flops_per_token"] / 1e12
    return [
        row["name"], f"{row['parameters']:,}", way, f"{rate:,.0f}", f"{tokens / row['plan']['seconds']:,.0f}",
        f"{tflops:.1f}", f"{tflops / peak:.1%}" if peak else "",
        *(f"{source[kind] / GIB:.1f}" for kind in ("tensors", "used") for source in (row, row["plan"])),
    ]  # fmt: skip


def _published(row: Row) -> str:
    units = {"tokens_per_s_per_gpu": "tokens/s", "peak_mem_gib": "GiB"}
    return "; ".join(
        f"{float(each['measured_value']):,g} {units[each['measured_kind']]} on {each['gpus']} x {each['gpu_type']} "
        f"({each['source_repo'].rpartition('/')[2]}, recomputation: {each['act_ckpt']})"
        for each in row.get("published", [])
    )


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
