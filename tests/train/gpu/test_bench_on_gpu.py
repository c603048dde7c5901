"""bench/on_gpu.py: what it trains, how it judges, that no trial can hang it, and all of it on a simulated GPU."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neoxargs.hosts.device_table import DEVICES
from neoxargs.plan.learn.measured import measured_runs
from tests.support import simulated_gpu
from tests.support.paths import ROOT
from tests.support.reference import read


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A module of bench/ by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return import_module


@pytest.fixture
def layouts(bench: Callable[[str], Any]) -> Any:
    return bench("gpu_layouts")


def test_every_layout_can_be_configured(layouts: Any) -> None:
    for name in layouts.LAYOUTS:
        for changes in ({}, layouts.SMALL):
            config = layouts.layout(name)
            for sets in (config, layouts.fp32_on_cpu(config)):
                resolved = layouts.resolve_trial(None, sets | changes)
                assert resolved.batch.train_batch_size == 8, name
                assert not ignored(resolved), name


def ignored(config: Any) -> list[str]:
    return [problem.what for problem in config.warnings if "no effect" in problem.what]


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_every_layout_of_several_gpus_takes_the_samples_of_one_process(layouts: Any, gpus: int) -> None:
    names = layouts.layouts_of_several(gpus)
    assert {"bf16", "bf16, ZeRO-3"} <= set(names)
    assert ("tp2 x pp4, sequence parallel" in names) == (gpus == 8)
    batches = set()
    for name in names:
        config = layouts.layout_of_several(name, gpus)
        resolved = layouts.resolve_trial(None, config, gpus)
        assert not ignored(resolved), name
        batches.add(resolved.batch.train_batch_size)
        batches.add(layouts.resolve_trial(None, layouts.one_process(config, gpus)).batch.train_batch_size)
    assert len(batches) == 1


def test_every_product_of_eight_gpus_is_a_layout(layouts: Any) -> None:
    found = {
        (config["model_parallel_size"], config["pipe_parallel_size"] or 1)
        for config in (layouts.layout_of_several(name, 8) for name in layouts.layouts_of_several(8))
    }
    assert found >= {(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4)}


def test_a_model_is_tried_in_the_ways_that_fit(bench: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench("gpu_models"), "host_memory", lambda: None)
    models, h100 = bench("gpu_models"), DEVICES["H100-80GB"]
    ways = {name: models.choose_ways(name, h100, False) for name in models.MODELS}
    assert ways["GPT-3 125M"] == [(8, False, False), (4, False, False), (2, False, False)]
    assert not ways["GPT-3 1.3B"][0].offload
    assert all(way.offload for way in ways["GPT-3 6.7B"])
    small = models.choose_ways("GPT-3 6.7B", DEVICES["V100-16GB"], False)
    assert small == list(models.WAYS[-1:])
    assert not any(models.choose_ways(name, h100, False, 8)[0].offload for name in models.models(8))


def test_published_figures_are_of_the_training_beside_them(bench: Callable[[str], Any]) -> None:
    models, found = bench("gpu_models"), set()
    for name, model in models.models(8).items():
        for size, device in itertools.product((1, 2, 4, 8), ("H100-80GB", "A100-80GB")):
            way = models.Way(size, False, False)
            for row in models.published(model, way, DEVICES[device]):
                found.add((row["path"], row["measured_kind"]))
                sets = models.model_sets(name, way, False, 8)
                agrees(row, models.resolve_trial(models.model_file(name, 8), sets, 8))
    assert len(found) == len(read("published_one_host.tsv"))


def agrees(row: dict[str, str], config: Any) -> None:
    """Whether a published row has the model and the layout of a configuration."""
    [full] = [
        each
        for each in read("published_one_host.tsv")
        if (each["path"], each["measured_kind"]) == (row["path"], row["measured_kind"])
    ]
    shape, zero, parallel = config.shape, config.zero_optimization, config.parallel
    gated = 3 if config.mlp.activation == "swiglu" else 1
    columns = "layers", "hidden", "heads", "kv_heads", "seq", "tp", "pp", "micro_batch"
    assert [int(full[column]) for column in columns] == [
        shape.num_layers, shape.hidden_size, shape.num_attention_heads, shape.num_kv_heads, shape.seq_length,
        parallel.model_parallel_size, parallel.pipe_parallel_size or 1, config.batch.train_micro_batch_size_per_gpu,
    ]  # fmt: skip
    assert gated * int(full["ffn"]) == shape.intermediate_size
    assert f"ZeRO-{zero.stage}" in full["zero_or_fsdp"]


GOOD = {"losses": [6.0, 5.0], "logits": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("name", "found", "problem"),
    [
        ("fp32", GOOD, ""),
        ("fp32", {"losses": [6.0, 5.004], "logits": [0.5, 1.0]}, ""),
        ("fp32", {"losses": [6.0, 5.01], "logits": [0.5, 1.0]}, "losses differ by more than 0.001"),
        ("bf16", {"losses": [6.0, 5.01], "logits": [0.5, 1.0]}, ""),
        ("bf16", {"losses": [6.0, float("nan")], "logits": None}, "losses differ by more than 0.02"),
        ("fp32", {"losses": [6.0, 5.0], "logits": [0.5, 1.1]}, "logits differ by more than 0.001"),
        ("fp32, pipeline engine", {"losses": [6.0, 5.0], "logits": None}, ""),
        ("dropout in one kernel", {"losses": [6.0, 5.3], "logits": None}, ""),
        ("deterministic", GOOD | {"repeats": False}, "a second run has different losses"),
        ("fp32", {"error": "OutOfMemoryError: full"}, "OutOfMemoryError: full"),
    ],
)
def test_a_layout_is_compared_with_the_cpu(layouts: Any, name: str, found: dict[str, Any], problem: str) -> None:
    assert layouts.compare(name, layouts.layout(name), found, GOOD)["problem"] == problem


def test_an_error_on_the_cpu_is_no_success(layouts: Any) -> None:
    assert layouts.compare("fp32", layouts.layout("fp32"), GOOD, {"error": "no"})["problem"] == "on the CPU: no"


def test_what_was_left_out_is_no_failure(layouts: Any) -> None:
    row = layouts.compare("fp32", layouts.layout("fp32"), {"error": layouts.NO_TIME}, GOOD)
    assert row["left_out"] and not row["problem"]


def rank(**changes: Any) -> dict[str, Any]:
    """What a rank of four replicas reports whose gradients of 100 elements are reduce-scattered in fp32."""
    sent = {"operation": "reduce-scatter", "dtype": "float32", "group": "data", "in_backward": True, "bytes": 400}
    return {
        "losses": [6.0, 5.0], "norm": 2.0, "logits": None, "waits": [], "attention": ["flash"], "gradients": 100,
        "groups": {"count": 3, "split": True}, "messages": [{**sent, "calls": 1, **changes.pop("sent", {})}], **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "problems"),
    [
        ([rank()] * 4, []),
        ([rank(norm=2.2)] * 4, ["norm"]),
        ([rank(norm=float("nan"))] * 4, ["norm"]),
        ([rank(losses=[6.0, 5.2])] * 4, ["losses differ"]),
        ([rank(), rank(), rank(losses=[6.0, 5.001]), rank()], ["losses of rank 2"]),
        ([rank(), rank(sent={"bytes": 399}), rank(), rank()], ["rank 1: of 400 bytes"]),
        ([rank(sent={"dtype": "bfloat16"})] * 4, [f"rank {number}: of 400" for number in range(4)]),
        ([rank(sent={"group": "tensor"}), *[rank()] * 3], ["rank 0: of 400"]),
        ([*[rank()] * 3, rank(sent={"in_backward": False})], ["rank 3: no gradients are summed during"]),
        ([{"error": "rank 1: lost"}], ["rank 1: lost"]),
    ],
)
def test_ranks_are_compared_with_one_process(layouts: Any, ranks: list[Any], problems: list[str]) -> None:
    config = layouts.layout_of_several("bf16", 4)
    found = layouts.compare_ranks("bf16", config, ranks, rank(), 4)["problem"]
    assert len(list(filter(None, found.split("; ")))) == len(problems)
    assert all(part in found for part in problems), found


#: Stands for gpu_trials.py: trials name what becomes of them, on rank 1 if there are several.
CHILD = """
import faulthandler, glob, json, os, signal, sys, time
faulthandler.register(signal.SIGUSR1, all_threads=False)
rank, several = int(os.environ.get("RANK", "0")), "RANK" in os.environ
for number, trial in enumerate(json.load(sys.stdin)):
    faulty = trial["name"] in ("hangs", "dies", "fails")
    name = trial["name"] if rank == several else "waits" if faulty else "works"
    if name == "waits":
        time.sleep(900)
    if faulty:  # once all ranks are at this trial
        while any(len(open(rows).readlines()) < number for rows in glob.glob(os.path.dirname(sys.argv[1]) + "/rows-*")):
            time.sleep(0.05)
    if name == "hangs":
        open("hangs", "w").close()
        time.sleep(800)
    if name == "dies":
        print("Killed", flush=True)
        os._exit(9)
    row = {"error": "CUDA error: lost"} if name in ("loses the GPU", "fails") else {"name": trial["name"]}
    if several:
        row |= {"rank": rank, "at": time.time()}
    print(json.dumps(row), file=open(sys.argv[1], "a"), flush=True)
    if "error" in row:
        sys.exit(1)
"""


@pytest.fixture
def processes(bench: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """gpu_processes with other children, whose time is over as soon as one hangs."""
    module, child = bench("gpu_processes"), tmp_path / "child.py"
    child.write_text(CHILD.strip())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "CHILD", child)
    monkeypatch.setattr(module, "FRAME", re.compile(rf'File "{tmp_path}/(.+)", line (\d+) in'))
    monkeypatch.setattr(module, "GRACE", 0.2)
    clock = lambda: time.monotonic() + 901 * Path("hangs").exists()  # noqa: E731
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    return module


def test_no_trial_takes_the_others_with_it(processes: Any) -> None:
    names = ["first", "dies", "loses the GPU", "second", "hangs", "late"]
    rows = processes.run_trials([{"name": name} for name in names], time.monotonic() + 900, {})
    assert rows[:4] == [
        [{"name": "first"}], [{"error": "ended without a result: Killed"}], [{"error": "CUDA error: lost"}],
        [{"name": "second"}],
    ]  # fmt: skip
    assert rows[4][0]["error"].startswith("no result within ")
    assert rows[5] == [{"error": processes.NO_TIME}]


def test_no_rank_takes_other_trials_with_it(processes: Any) -> None:
    names = ["first", "dies", "fails", "second", "hangs", "late"]
    rows = processes.run_trials([{"name": name} for name in names], time.monotonic() + 900, {}, ranks=3)
    for number in (0, 3):
        assert [row["rank"] for row in rows[number]] == [0, 1, 2]
    assert rows[1] == [{"error": DIED}]
    assert rows[2] == [{"error": "rank 1: CUDA error: lost"}]
    waits, hangs = (1 + CHILD.strip().splitlines().index(f"        time.sleep({seconds})") for seconds in (900, 800))
    assert rows[4][0]["error"].endswith(f": ranks 0, 2 at child.py:{waits}; rank 1 at child.py:{hangs}")
    assert rows[5] == [{"error": processes.NO_TIME}]


@dataclass
class Rank:
    """A rank that has ended, or not, with the rows that it had written when it was looked at first, and later."""

    rank: int
    seen: list[list[Any]]
    ended: bool = True
    process = SimpleNamespace(returncode=9)

    def rows(self) -> list[Any]:
        return self.seen[0]

    @property
    def count(self) -> int:
        return len(self.seen.pop(0) if len(self.seen) > 1 else self.seen[0])

    def last_line(self) -> str:
        return "Killed"


DONE, LOST = {"name": "good"}, {"error": "CUDA error: lost", "rank": 1}
DIED = "rank 1 ended without a result (exit code 9): Killed"


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        ([Rank(0, [[], [DONE]], ended=False), Rank(1, [[DONE]])], DIED),  # it died while others wrote their rows
        ([Rank(0, [[]], ended=False), Rank(1, [[DONE]])], DIED),  # they are still at the trial before
        ([Rank(0, [[DONE, DONE, DONE]]), Rank(1, [[DONE]])], DIED),  # one has done all
        ([Rank(0, [[], [DONE]], ended=False), Rank(1, [[DONE, LOST]])], "rank 1: CUDA error: lost"),
    ],
)
def test_a_rank_that_failed_is_told_wherever_others_are(processes: Any, ranks: list[Any], problem: str) -> None:
    assert processes._watch(ranks, 3, time.monotonic() + 900, 900) == problem


def test_without_a_gpu_it_says_so(bench: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["on_gpu.py"])
    with pytest.raises(SystemExit) as stop:
        bench("on_gpu").main()
    assert str(stop.value) == (
        "error: torch finds no GPU on this machine [no-gpu]\n"
        "  = run this on a machine with a GPU; deepy plan estimates memory and speed without one"
    )


#: Python imports this module when it starts; the child on the CPU shall have no GPU.
SITE = """
import os
if os.environ.get("DS_ACCELERATOR") != "cpu":
    from tests.support.simulated_gpu.start import start
    start()
"""
#: The same, with two faults on rank 1: its bucket keeps its own gradients, and it ends where it builds a pipeline.
FAULTY_SITE = (
    SITE
    + """
if os.environ.get("RANK") == "1":
    from neoxargs.train.deepspeed import buckets
    from neoxargs.train.engine import pipeline

    reduce_scatter = buckets.reduce_scatter

    def skipped(own, flat, **options):
        kept = own.clone()
        work = reduce_scatter(own, flat, **options)
        own.copy_(kept)
        return work

    def die(*arguments, **options):
        os.write(2, b"out of luck\\n")
        os._exit(9)

    buckets.reduce_scatter, pipeline.pipeline = skipped, die
"""
)


def run_on_simulated_gpus(folder: Path, gpus: int, site: str, *only: str) -> tuple[dict[str, Any], Any]:
    """Return the results of the whole program, and its process."""
    simulated_gpu.MACHINE.prepare()
    (folder / "sitecustomize.py").write_text(site)
    environ = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    environ |= {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
    command = [sys.executable, "bench/on_gpu.py", "--small", "--json", str(folder / "gpu.json"), "--minutes", "12"]
    done = subprocess.run([*command, "--only", *only], cwd=ROOT, env=environ, capture_output=True, text=True)
    return json.loads((folder / "gpu.json").read_text()), done


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_program_on_one_simulated_gpu(tmp_path: Path) -> None:
    only = "fp32", "ZeRO-3", "dropout", "deterministic", "6.7B"
    results, done = run_on_simulated_gpus(tmp_path, 1, SITE, *only)
    assert [row for row in results["layouts"] if row["problem"]] == [], done.stderr
    assert len(results["layouts"]) == 9
    assert done.returncode == 0
    [model] = results["models"]
    assert model["attempts"][-1]["error"] == ""
    assert model["seconds"] > 0
    assert 0 < model["plan"]["tensors"] < model["plan"]["used"]
    assert model["tensors"] > 16 * model["parameters"]  # bf16 weights; gradients, and Adam's state, in fp32
    for text in ("# Measured on one GPU", "Simulated H100", "| ZeRO-3 |", "| GPT-3 6.7B |"):
        assert text in done.stdout


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_program_on_four_simulated_gpus(tmp_path: Path) -> None:
    only = "tp2 x pp2, sequence", "experts divided by four", "fp32, ZeRO-3", "8B, tp4"
    results, done = run_on_simulated_gpus(tmp_path, 4, SITE, *only)
    rows = {row["name"]: row for row in results["several"]}
    assert {name: row["problem"] for name, row in rows.items()} == dict.fromkeys(rows, ""), done.stderr
    assert list(rows) == ["tp2 x pp2, sequence parallel", "fp32, ZeRO-3", "experts divided by four"]
    assert [row["replicas"] for row in rows.values()] == [1, 4, 4]
    for row in rows.values():
        assert row["attention"] and row["groups"]["count"] and len(row["waits"]) == 4
        assert all(row["waits"])  # each rank at least waits for its loss
    sums = [sent for sent in rows["experts divided by four"]["messages"] if sent["operation"] == "reduce-scatter"]
    assert {(sent["group"], sent["dtype"], sent["in_backward"]) for sent in sums} == {("data", "float32", True)}
    assert sum(sent["calls"] for sent in sums) > 1
    sent = {(each["operation"], each["group"]) for each in rows["tp2 x pp2, sequence parallel"]["messages"]}
    assert {("send", "pipe"), ("recv", "pipe"), ("reduce-scatter", "tensor"), ("all-gather", "tensor")} <= sent
    [model] = results["models"]
    assert model["gpus"] == 4 and model["attempts"][-1]["error"] == ""
    assert measured_runs(str(tmp_path / "gpu.json"))[0].slots == 4
    assert done.returncode == 0
    for text in ("# Measured on 4 GPUs", "4 x Simulated H100", "| fp32, ZeRO-3 | 4 |", "| Llama 3.1 8B, tp4 |"):
        assert text in done.stdout


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_faults_of_a_rank_are_named(tmp_path: Path) -> None:
    only = "experts divided", "pp2, recomputed", "fp32, ZeRO-3"
    results, done = run_on_simulated_gpus(tmp_path, 2, FAULTY_SITE, *only)
    assert done.returncode == 1
    problems = {row["name"]: row["problem"] for row in results["several"]}
    skipped, died = problems.pop("experts divided"), "rank 1 ended without a result (exit code 9): out of luck"
    assert "norm" in skipped
    assert problems == {"fp32, ZeRO-3": "", "fp32, experts divided": "", "pp2, recomputed": died}
    for problem in (skipped, died):
        assert f"| {problem} |" in done.stdout
