"""Compare `deepy plan` with published figures of other people's training runs.

    python bench/plan_against_published.py FIGURES.tsv [--json] [--misses] [--write docs/plan.md]
    python bench/plan_against_published.py tests/reference/published_afterwards.tsv --section afterwards --write PAGE

Each row that train.py could run is planned (bench/published_rows.py maps it, and says why it leaves others out). The
ratio planned / measured is summarised by source, memory and throughput apart, with how often the plan's 80 % interval
holds the measured value, and its width (upper / lower end). So are the verdicts: published out-of-memory runs that the
plan foresees, and runs that ran although the plan calls them too large.

Whole sources are held out: no assumption was chosen by looking at their errors. Which ones is decided by a hash of
the source's name (`is_held_out`), written before any error was computed.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from published_programs import LeftOut, Row  # noqa: E402
from published_rows import Case, case_of  # noqa: E402

from neoxargs.base import record  # noqa: E402
from neoxargs.base.problems import Problems  # noqa: E402
from neoxargs.base.text import GIB  # noqa: E402
from neoxargs.hosts.device_table import DEVICES  # noqa: E402
from neoxargs.hosts.hosts import assumed_resources  # noqa: E402
from neoxargs.plan.estimate import Plan, make_plan  # noqa: E402
from neoxargs.plan.given.assumptions import Assumptions  # noqa: E402
from neoxargs.plan.given.placement import group_into_hosts  # noqa: E402
from neoxargs.plan.given.target import Target  # noqa: E402
from neoxargs.resolve import File, complete, draft  # noqa: E402
from neoxargs.runs.run_spec import RunSpec  # noqa: E402

MEMORY, SPEED, VERDICT = "memory", "throughput", "verdict"
KINDS = {"peak_mem_gib": MEMORY, "fits/oom": VERDICT, "tokens_per_s_per_gpu": SPEED, "tflops_per_gpu": SPEED,
         "mfu": SPEED}  # fmt: skip
#: What identifies a run within its source.
RUN = ("layers", "hidden", "heads", "seq", "gpus", "gpu_type", "tp", "pp", "zero_or_fsdp", "micro_batch",
       "global_batch", "act_ckpt", "precision")  # fmt: skip
#: Words of a note that tell runs of the same shape and layout apart.
KERNELS = re.compile(r"flash attention [\d.]+|fused softmax|attention in torch|fused RMSNorm|sequence-parallel")
#: Columns of a table of figures, for rows that lack some.
EMPTY = dict.fromkeys(
    ("source_repo", "path", "model", *RUN, "kv_heads", "ffn", "vocab", "dp", "measured_kind", "measured_value", "note"),
    "",
)
TUNED_ON, HELD_OUT = "tuned on", "held out"
#: Sections of a page that hold a score: of the figures that the assumptions were chosen with, and of later ones.
SECTIONS = ("score", "afterwards")


@dataclass(frozen=True)
class Comparison:
    """A planned and a measured value of one row."""

    source: str
    place: str
    model: str
    kind: str
    planned: float
    measured: float
    error: float
    """Factor of the plan's 80 % interval."""

    @property
    def ratio(self) -> float:
        return self.planned / self.measured

    @property
    def holds(self) -> bool:
        """Whether the measured value is in the plan's 80 % interval."""
        return 1 / self.error <= self.ratio <= self.error


@dataclass(frozen=True)
class Outcome:
    """Whether a run ran, and whether the plan says that it fits."""

    source: str
    place: str
    ran: bool
    fits: bool
    peak: float
    """GiB, planned."""


@dataclass
class Score:
    """Everything that was compared."""

    comparisons: list[Comparison]
    outcomes: list[Outcome]
    left_out: Counter[str]
    rows: int


def source_of(row: Row) -> str:
    """Return the document of a row; the values of a test suite and the logs of a folder are one source."""
    path = row["path"].rpartition(":")[0] or row["path"]
    parts = path.split("/")
    if path.endswith(".json"):
        parts = parts[:2]
    elif path.endswith(".out"):
        parts = parts[:-1]
    return "/".join([row["source_repo"], *parts])


def is_held_out(source: str) -> bool:
    """Whether a source is not looked at when assumptions are chosen: a third of all, by the hash of the name."""
    return hashlib.sha256(source.encode()).digest()[0] % 3 == 2


def plan_of(case: Case) -> Plan:
    """Return the plan of a case. Raises Problems."""
    config = complete(draft([File("row.yml", json.dumps(case.changes))], []), case.gpus)
    device = DEVICES[case.device]
    if case.memory:
        device = replace(device, memory=int(case.memory * GIB))
    if case.network:
        device = replace(device, network=case.network)
    resources = group_into_hosts(record.replace(assumed_resources(case.gpus), device="cuda"), case.per_host)
    return make_plan(RunSpec(config, resources), Target(device, assumed=Assumptions(**case.assume)))


def compare(rows: Iterable[Row]) -> Score:
    """Plan all rows that can be planned."""
    rows = list(rows)
    score = Score([], [], Counter(), len(rows))
    outcomes: dict[tuple[str, ...], Outcome] = {}
    for row, case, plan in planned(rows, score.left_out):
        run, outcome = _run(row), _outcome(row, plan)
        if run not in outcomes or not outcome.ran:
            outcomes[run] = outcome
        if KINDS[row["measured_kind"]] != VERDICT:
            score.comparisons.append(comparison(row, case, plan))
    score.outcomes = list(outcomes.values())
    return score


def planned(rows: Iterable[Row], left_out: Counter[str]) -> Iterator[tuple[Row, Case, Plan]]:
    """Yield each row that can be planned with its plan; count the others by reason."""
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        try:
            case = _case(row)
            _check_new(row, _run(row), seen)
            yield row, case, plan_of(case)
        except LeftOut as reason:
            left_out[str(reason)] += 1
        except Problems as problems:
            left_out[f"train.py refuses it ({problems.problems[0].id})"] += 1


def _case(row: Row) -> Case:
    """Return the case of a row, or raise LeftOut, also for what cannot be read."""
    if row["measured_kind"] not in KINDS:
        raise LeftOut(f"no comparison of {row['measured_kind'] or 'an unnamed quantity'}")
    try:
        if KINDS[row["measured_kind"]] != VERDICT:
            float(row["measured_value"])
        return case_of(row)
    except ValueError as error:
        raise LeftOut("a number that cannot be read") from error


def _run(row: Row) -> tuple[str, ...]:
    return (source_of(row), *(row[column] for column in RUN), *KERNELS.findall(row["note"]))


def _check_new(row: Row, run: tuple[str, ...], seen: set[tuple[str, ...]]) -> None:
    """Raise LeftOut for a figure that its source prints twice, or in a second unit."""
    kind = KINDS[row["measured_kind"]]
    stage = row["note"].partition("stage ")[2][:8] if kind == MEMORY else ""
    repeated = (*run, row["path"], kind, stage, row["note"].partition("«local batch")[0] if kind == SPEED else "")
    unit = (*run, row["path"], kind)
    same = (*run, stage, row["measured_kind"], row["measured_value"])
    if same in seen:
        raise LeftOut("figure printed twice by its source")
    if kind == SPEED and unit in seen and repeated not in seen and row["measured_kind"] == "mfu":
        raise LeftOut("the same run's throughput in a second unit")
    if repeated in seen and kind == SPEED:
        raise LeftOut("the same run's throughput in a second unit")
    seen |= {repeated, same, unit}


def _outcome(row: Row, plan: Plan) -> Outcome:
    return Outcome(source_of(row), row["path"], row["measured_value"] != "oom", plan.fits, plan.fullest.peak / GIB)


def comparison(row: Row, case: Case, plan: Plan) -> Comparison:
    kind = KINDS[row["measured_kind"]]
    planned = _planned_memory(row, case, plan) if kind == MEMORY else _planned_speed(row, plan)
    error = plan.memory_error if kind == MEMORY else plan.time_error
    return Comparison(source_of(row), row["path"], row["model"], kind, planned, float(row["measured_value"]), error)


def _planned_memory(row: Row, case: Case, plan: Plan) -> float:
    """GiB of the measured stage, as the instrument that the row names counts them."""
    ranks = plan.stage_memory if case.stage is None else [plan.stage_memory[case.stage]]
    note = row["note"]
    if "nvidia-smi" in note:
        # nvidia-smi cannot show more than the device has: torch returns cached blocks before it fails.
        return min(max(rank.occupied for rank in ranks), plan.target.device.memory or 0) / GIB
    if "allocated" in note:
        return max(rank.allocated for rank in ranks) / GIB
    return max(rank.reserved for rank in ranks) / GIB


def _planned_speed(row: Row, plan: Plan) -> float:
    speed, note = plan.speed, row["note"]
    if row["measured_kind"] == "tokens_per_s_per_gpu":
        return speed.tokens_per_second / speed.ranks
    if row["measured_kind"] == "mfu":
        return 100 * speed.tflops_per_device * 1e12 / plan.target.device.half
    # Megatron-DeepSpeed counts recomputation (throughput_calculator in megatron/utils.py)
    if "hardware TFLOPs" not in note and "deepspeedai" not in row["source_repo"]:
        return speed.tflops_per_device
    # 8 operations per weight and token instead of 6: recomputation is a second forward pass.
    recomputed = 4 / 3 if plan.config.recompute.checkpoint_activations is True else 1.0
    return speed.tflops_per_device * recomputed * (0.97 if "3 % low" in note else 1.0)


def table(score: Score) -> Iterator[str]:
    """Yield the lines of the score in Markdown."""
    compared = f"{len(score.comparisons):,} figures and {_ooms(score)} out-of-memory runs"
    rows = f"{score.rows:,} rows (each states one figure, or whether a run fitted)"
    yield f"Of {rows}, {compared} were compared with a plan."
    yield ""
    compared = "median planned / measured | middle 80% | within 15% | interval holds | its median width"
    yield f"| source | | figure | n | {compared} |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for part in (HELD_OUT, TUNED_ON):
        for kind in (MEMORY, SPEED):
            chosen = [each for each in score.comparisons if each.kind == kind and _part(each.source) == part]
            if chosen:
                yield _line(f"**all {part}**", part, kind, chosen)
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for each in score.comparisons:
        groups[each.source, each.kind].append(each)
    for (source, kind), chosen in sorted(groups.items()):
        yield _line(source, _part(source), kind, chosen)
    yield ""
    yield "| verdicts | out of memory | foreseen | ran | called too large |"
    yield "|---|--:|--:|--:|--:|"
    for part in (HELD_OUT, TUNED_ON):
        chosen_runs = [each for each in score.outcomes if _part(each.source) == part]
        failed, ran = [r for r in chosen_runs if not r.ran], [r for r in chosen_runs if r.ran]
        yield (f"| {part} | {len(failed)} | {sum(not r.fits for r in failed)} | {len(ran)} | "
               f"{sum(not r.fits for r in ran)} |")  # fmt: skip
    yield ""
    yield "| left out because | rows |"
    yield "|---|--:|"
    for reason, number in score.left_out.most_common():
        yield f"| {reason} | {number} |"


def _ooms(score: Score) -> int:
    return sum(not outcome.ran for outcome in score.outcomes)


def _part(source: str) -> str:
    return HELD_OUT if is_held_out(source) else TUNED_ON


def _line(name: str, part: str, kind: str, chosen: Sequence[Comparison]) -> str:
    ratios = [each.ratio for each in chosen]
    tenths = quantiles(ratios, n=10, method="inclusive") if len(ratios) > 1 else ratios * 9
    return (f"| {name} | {part} | {kind} | {len(ratios)} | {median(ratios):.2f} | {tenths[0]:.2f} to {tenths[8]:.2f} | "
            f"{_share([abs(ratio - 1) <= 0.15 for ratio in ratios])} | {_share([each.holds for each in chosen])} | "
            f"{median(each.error**2 for each in chosen):.2f} |")  # fmt: skip


def _share(holds: Sequence[bool]) -> str:
    return f"{sum(holds) / len(holds):.0%}"


def misses(score: Score) -> Iterator[str]:
    """Yield the rows that are off by more than 15% (memory) or 25% (throughput), and the wrong verdicts."""
    limits = {MEMORY: 0.15, SPEED: 0.25}
    for each in sorted(score.comparisons, key=lambda each: each.ratio):
        if abs(each.ratio - 1) > limits[each.kind]:
            yield (f"{_part(each.source):10} {each.kind:10} {each.ratio:5.2f} {each.planned:9.2f} {each.measured:9.2f} "
                   f"{each.model}  {each.place}")  # fmt: skip
    for run in score.outcomes:
        if run.ran != run.fits:
            what = "ran, called too large" if run.ran else "out of memory, not foreseen"
            yield f"{_part(run.source):10} {what}: {run.peak:.1f} GiB planned  {run.place}"


def as_json(score: Score) -> dict[str, object]:
    held_out = {each.source: is_held_out(each.source) for each in (*score.comparisons, *score.outcomes)}
    figures = [asdict(each) | {"ratio": each.ratio, "held_out": held_out[each.source]} for each in score.comparisons]
    runs = [asdict(each) | {"held_out": held_out[each.source]} for each in score.outcomes]
    return {"rows": score.rows, "figures": figures, "runs": runs, "left_out": dict(score.left_out)}


def read_rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {**EMPTY, **{key: value or "" for key, value in row.items() if key}}
            for row in csv.DictReader(file, delimiter="\t")
        ]


#: Sections of a page that other programs write.
PROGRAMS = {"intervals": "plan_intervals.py", "terms": "plan_terms.py"}


def markers(section: str) -> tuple[str, str]:
    """Return what stands before and after the score of a section in a page."""
    program = PROGRAMS.get(section, "plan_against_published.py")
    return f"<!-- {section}: start, written by bench/{program} -->", f"<!-- {section}: end -->"


def written_between_markers(path: Path, section: str) -> tuple[str, str, str]:
    """Return a page in three parts: before, between and after the markers of a section."""
    start, end = markers(section)
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    written, _, after = rest.partition(end)
    return before, written, after


def write_between_markers(path: Path, section: str, lines: Iterable[str]) -> None:
    """Replace what is between the markers of a section in a page."""
    before, _, after = written_between_markers(path, section)
    start, end = markers(section)
    path.write_text("\n".join([before + start, *lines, end]) + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", type=Path, help="a table of published figures")
    parser.add_argument("--json", action="store_true", help="print every row with its ratio as JSON")
    parser.add_argument("--misses", action="store_true", help="also list the rows that are far off")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables between the markers of this page")
    parser.add_argument("--section", choices=SECTIONS, default=SECTIONS[0], help="markers of the page to write between")
    options = parser.parse_args()
    score = compare(read_rows(options.figures))
    if options.json:
        print(json.dumps(as_json(score), indent=1))
        return
    print("\n".join(table(score)))
    if options.misses:
        print("\n".join(misses(score)))
    if options.write:
        write_between_markers(options.write, options.section, table(score))


if __name__ == "__main__":
    main()
