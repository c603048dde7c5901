"""Compare training runs that GPT-NeoX made with the same runs in deepy: tokens, losses and logits.

    python bench/neox_runs.py ../shared/reference/neox_runs [--runs pythia llama] [--layouts tp2] [--write]

FOLDER/NAME/ holds a run: one .yml file with paths relative to FOLDER, checkpoints/global_step*, losses.tsv, and where
they were recorded batches.npy (iterations, micro batches, samples, seq + 1), tokens.npy and logits.npy of the last
checkpoint. Each run is repeated here on one process, on two tensor parallel ranks, on two pipeline stages and on two
data parallel ranks with ZeRO 1, from its initial weights and from its last checkpoint before the end, by train.py's
own `run`. --write replaces the table in docs/from-gpt-neox.md. The files are read as the newest GPT-NeoX reads them,
unless they name a dialect or --dialect does.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import multiprocessing
import os
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.base.problems import Problems  # noqa: E402
from neoxargs.config.config import Config  # noqa: E402
from neoxargs.facts.model import vocabulary_rows  # noqa: E402
from neoxargs.files.checkpoints.folder import checkpoints, iteration_of  # noqa: E402
from neoxargs.hosts.rendezvous import unused_port  # noqa: E402
from neoxargs.registry.parallel import Parallel  # noqa: E402
from neoxargs.registry.runner import Runner  # noqa: E402
from neoxargs.resolve import Draft, resolve  # noqa: E402
from neoxargs.targets.wire_format import script_arguments  # noqa: E402

PAGE = ROOT / "docs" / "from-gpt-neox.md"
BEGIN, END = "<!-- bench/neox_runs.py writes this table -->", "<!-- end of the table -->"
#: Name of a layout -> number of ranks, and what differs from the run's configuration.
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "1 process": (1, {"model_parallel_size": 1, "pipe_parallel_size": 0, "zero_optimization.stage": 0}),
    "tp2": (2, {"model_parallel_size": 2, "pipe_parallel_size": 0, "zero_optimization.stage": 0}),
    "pp2": (2, {"model_parallel_size": 1, "pipe_parallel_size": 2, "zero_optimization.stage": 0}),
    "dp2, ZeRO 1": (2, {"model_parallel_size": 1, "pipe_parallel_size": 0, "zero_optimization.stage": 1}),
}
#: Id of a problem -> what the table says in place of a difference.
REFUSALS = {"checkpoint-without-optimizer": "no optimizer state"}
#: Seconds that one run may take.
TIMEOUT = 300


@dataclass(frozen=True)
class Run:
    """A run of GPT-NeoX in its folder."""

    folder: Path
    file: Path
    there: Config
    """Its configuration, on its own layout."""
    dialect: dict[str, str]
    """The dialect to read the file with, {} if it names one."""

    @property
    def losses(self) -> dict[int, float]:
        """Iteration -> loss."""
        with (self.folder / "losses.tsv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        # loss_repr has all digits, where it was recorded.
        return {int(row["iteration"]): float(row.get("loss_repr") or row["loss"]) for row in rows}

    @property
    def checkpoints(self) -> list[int]:
        """Iterations of its checkpoints."""
        return [iteration_of(folder) for folder in checkpoints(self.folder / "checkpoints")]

    @property
    def layout(self) -> str:
        parallel, zero = self.there.parallel, self.there.zero_optimization.stage
        sizes = {"tp": parallel.model_parallel_size, "pp": parallel.pipe_parallel_size, "dp": data_ranks(self.there)}
        named = " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "1 process"
        kind = "" if parallel.pipe_parallel_size else ", no pipeline"
        return f"{named}{kind}{f', ZeRO {zero}' if zero else ''}"

    def here(self, layout: str, **changes: Any) -> Config:
        """Return the configuration of the run on a layout of this script."""
        ranks, values = LAYOUTS[layout]
        batch = self.there.batch
        replicas = ranks // (values["model_parallel_size"] * max(1, values["pipe_parallel_size"]))
        # The largest micro batch, up to the run's own, with which the batch can be divided among the replicas.
        micro = batch.train_micro_batch_size_per_gpu
        while batch.train_batch_size % (micro * replicas):
            micro -= 1
        values = {
            **values, **self.dialect, "num_workers": 0,
            # With GPT-NeoX's loss, which includes the padding rows.
            "softmax_over_padding": True, "padded_vocab_size": vocabulary_rows(self.there),
            "train_batch_size": batch.train_batch_size, "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": batch.train_batch_size // (micro * replicas), **changes,
        }  # fmt: skip
        return configuration(self.file, ranks, values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="read the runs in this folder")
    parser.add_argument("--runs", nargs="+", help="compare only these runs (default: all)")
    parser.add_argument(
        "--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="compare only these (default: all)"
    )
    parser.add_argument("--dialect", default="neox-2026", help="date of the GPT-NeoX that made the runs (%(default)s)")
    parser.add_argument("--write", action="store_true", help=f"replace the table in {PAGE.name}")
    options = parser.parse_args()
    os.chdir(options.folder)
    os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    # Ranks are forked from a process that has imported the trainer, which takes seconds.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["neoxargs.train.run", "neoxargs.train.generate"])
    lines = list(table(runs(options.runs, options.dialect), options.layouts))
    if options.write:
        write("\n".join(lines))
    return 0


def runs(names: Sequence[str] | None, dialect: str) -> list[Run]:
    """Return the runs in the current folder. dialect: that of files which do not name one."""
    found = []
    for losses in sorted(Path().glob("*/losses.tsv")):
        folder = losses.parent
        if names is None or folder.name in names:
            file = next(folder.glob("*.yml"))
            values = {} if re.search(r"^\W*dialect\W", file.read_text(), re.M) else {"dialect": dialect}
            found.append(Run(folder, file, configuration(file, None, values), values))
    return found


def configuration(file: Path, ranks: int | None, values: dict[str, Any]) -> Config:
    """Resolve a file with other values. ranks: None takes the number from the file."""
    overrides = [f"{name}={json.dumps(value)}" for name, value in values.items() if value is not None]
    if ranks is not None:
        overrides.append(f"num_gpus={ranks}")
    return resolve([file], overrides, gpus=_ranks if ranks is None else ranks)


def _ranks(draft: Draft) -> int:
    """Return the number of ranks of a run, or of one replica if its file does not say it."""
    parallel = draft.group(Parallel)
    replica = parallel.model_parallel_size * max(1, parallel.pipe_parallel_size)
    return max(draft.group(Runner).num_gpus or 0, replica)


def data_ranks(config: Config) -> int:
    batch = config.batch
    return batch.train_batch_size // (batch.train_micro_batch_size_per_gpu * batch.gradient_accumulation_steps)


def table(chosen: Sequence[Run], layouts: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table, and print each as soon as it is known."""
    head = ("Run", "In GPT-NeoX", "In deepy", "Tokens", "Losses from the start", "Losses after resuming", "Logits")
    for line in (head, ("---",) * len(head)):
        yield _line(line)
    for run in chosen:
        for layout in layouts:
            cells = (tokens_column(run, layout), *losses_columns(run, layout), logits_column(run, layout))
            yield _line((run.folder.name, run.layout, layout, *cells))
    yield ""
    for note in notes(chosen):
        lines = textwrap.fill(note, 120, subsequent_indent="  ")
        yield lines
        print(lines, flush=True)


def _line(cells: Sequence[str]) -> str:
    text = f"| {' | '.join(cells)} |"
    print(text, flush=True)
    return text


def notes(chosen: Sequence[Run]) -> Iterator[str]:
    """Yield what is different for a reason that is GPT-NeoX's."""
    summed = [run.folder.name for run in chosen if sums_biases(run.there)]
    clipped = [run.folder.name for run in chosen if clips_by_part_of_the_norm(run.there)]
    if summed:
        yield (
            f"- In {', '.join(summed)}, the losses differ because every GPT-NeoX tensor parallel rank adds and updates "
            "its own biases. With N ranks, an update therefore changes the sum of the biases N times as much."
        )
    if clipped:
        yield (
            f"- In {', '.join(clipped)}, the losses differ because DeepSpeed's gradient norm leaves out the biases and "
            "normalisation layers of later stages. The gradients are therefore clipped less than they should be."
        )
    masked = [run.folder.name for run in chosen if drops_out(run.there)]
    if masked:
        yield f"- In {', '.join(masked)}, the losses differ because the dropout masks differ."


def drops_out(config: Config) -> bool:
    return bool(config.get("hidden_dropout") or config.get("attention_dropout"))


def sums_biases(config: Config) -> bool:
    return config.parallel.model_parallel_size > 1 and bool(config.attention.gpt_j_residual)


def clips_by_part_of_the_norm(config: Config) -> bool:
    return config.parallel.pipe_parallel_size > 1 and bool(config.get("gradient_clipping"))


def tokens_column(run: Run, layout: str) -> str:
    """Return the largest difference between the tokens of the first iterations."""
    file = run.folder / "batches.npy"
    if not file.exists():
        return "not recorded"
    theirs = np.load(file).astype(np.int64)
    ours = batches(run.here(layout), len(theirs))
    if theirs[0].size != ours[0].size:  # the first of several data parallel ranks
        ours = ours.reshape(len(ours), theirs.shape[1], -1, *theirs.shape[2:])[:, :, 0]
    return str(int(np.abs(theirs.reshape(ours.shape) - ours).max()))


def batches(config: Config, iterations: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the tokens of the first iterations, in the order of micro steps and ranks: (iterations, samples, seq + 1).

    The samples are those that a loader of each data parallel rank yields.
    """
    from neoxargs.data.tokenizer import build_tokenizer
    from neoxargs.train.batches.datasets import build_datasets
    from neoxargs.train.process.mesh import Axis, Mesh

    count = iterations * config.batch.gradient_accumulation_steps
    of_ranks = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = with_values(config, run_dir=folder)
        for rank in range(data_ranks(config)):
            data = build_datasets(config, build_tokenizer(config.tokenizer), Mesh(data=Axis(data_ranks(config), rank)))
            read = islice(data.train(0) or [], count)
            of_ranks.append([np.hstack([batch.tokens.numpy(), batch.labels.numpy()[:, -1:]]) for batch in read])
    steps = np.concatenate([np.stack(read) for read in of_ranks], axis=1)  # (micro steps, samples, seq + 1)
    return steps.reshape(iterations, -1, steps.shape[-1])


def with_values(config: Config, **values: Any) -> Config:
    from neoxargs.config.value import DEFAULT, Value

    changed = {name: Value(value, DEFAULT) for name, value in values.items()}
    return Config({**config.values, **changed}, config.sections, config.warnings, config.dialect)


def losses_columns(run: Run, layout: str) -> tuple[str, str]:
    """Return the largest differences of losses from the initial weights, and from the last checkpoint but one."""
    end = max(run.losses)
    inner = [iteration for iteration in run.checkpoints if 0 < iteration < end]
    first = losses_column(run, layout, 0) if 0 in run.checkpoints else "not recorded"
    return first, losses_column(run, layout, inner[-1]) if inner else "not recorded"


def losses_column(run: Run, layout: str, start: int) -> str:
    """Return the largest difference of a loss after a checkpoint. At 0 only the weights are taken over."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {"load": str(run.folder / "checkpoints"), "iteration": start, "run_dir": folder}
        try:
            config = run.here(layout, **changes, **({"finetune": True} if start == 0 else {}))
        except Problems as problems:
            return _first_words(str(problems))
        config = with_values(config, save=None)
        failure = on_ranks(config, LAYOUTS[layout][0], train, Path(folder))
        if failure:
            return failure
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        ours = {row["step"]: row["loss"] for row in map(json.loads, lines) if row["event"] == "step"}
    theirs = {iteration: loss for iteration, loss in run.losses.items() if iteration > start}
    if set(ours) != set(theirs):
        return f"iterations {min(ours, default=0)} to {max(ours, default=0)} only"
    return f"{max(abs(ours[iteration] - loss) for iteration, loss in theirs.items()):.1e}"


def logits_column(run: Run, layout: str) -> str:
    """Return the largest difference of a logit with the last checkpoint."""
    if not all((run.folder / name).exists() for name in ("tokens.npy", "logits.npy")) or not run.checkpoints:
        return "not recorded"
    if LAYOUTS[layout][1]["pipe_parallel_size"]:
        return ""  # only the last stage has them
    with tempfile.TemporaryDirectory() as folder:
        changes = {"load": str((run.folder / "checkpoints").absolute()), "iteration": run.checkpoints[-1]}
        config = with_values(run.here(layout, **changes, run_dir=folder), save=None)
        failure = on_ranks(config, LAYOUTS[layout][0], compute_logits, Path(folder), run.folder.absolute())
        if failure:
            return failure
        return f"{json.loads((Path(folder) / 'difference.json').read_text()):.1e}"


def train(arguments: list[str], folder: Path) -> None:
    """Train as train.py does; metrics.jsonl in the run's folder has the losses."""
    from neoxargs.targets.wire_format import parse_rank_arguments
    from neoxargs.train import run

    run.run(parse_rank_arguments(arguments))


def compute_logits(arguments: list[str], folder: Path, run: Path) -> None:
    """Write the largest difference of a logit of the run's tokens to difference.json in `folder`."""
    import torch

    from neoxargs.data.tokenizer import build_tokenizer
    from neoxargs.targets.wire_format import parse_rank_arguments
    from neoxargs.train.generation.loading import for_generation, load_model, without_training
    from neoxargs.train.process import setup
    from neoxargs.train.process.mesh import build_mesh, destroy_groups

    rank = parse_rank_arguments(arguments)
    config = for_generation(rank.config)
    process = setup.start(config.training.distributed_backend, config.training.seed, rank.local_rank)
    mesh, tokenizer = build_mesh(config), build_tokenizer(config.tokenizer)
    engine, _ = load_model(config, without_training(rank.deepspeed), tokenizer, mesh, process)
    tokens = torch.from_numpy(np.load(run / "tokens.npy").astype(np.int64))[:, : config.shape.seq_length]
    with torch.no_grad():
        ours = engine.deepspeed.module(tokens).float().numpy()  # (rows, seq, tokens of the tokenizer)
    theirs = np.load(run / "logits.npy")[:, : ours.shape[1], : ours.shape[2]]
    if process.main:
        (folder / "difference.json").write_text(json.dumps(float(np.abs(theirs - ours).max())))
    destroy_groups()
    setup.stop()


def on_ranks(config: Config, ranks: int, function: Any, folder: Path, *arguments: Any) -> str:
    """Call a function on every rank, in new processes; return why it failed, or ""."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port()), "WORLD_SIZE": str(ranks),
              "OMP_NUM_THREADS": "1"}  # fmt: skip
    context, words = multiprocessing.get_context("forkserver"), script_arguments(config)
    processes = [
        context.Process(target=_rank, args=(common | {"RANK": str(rank)}, folder, function, words, folder, *arguments))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT)
    unfinished = [process for process in processes if process.is_alive()]
    for process in unfinished:
        process.kill()
    if all(process.exitcode == 0 for process in processes):
        return ""
    return _failure(folder, ranks) or f"failed after {TIMEOUT} s"


def _rank(environment: dict[str, str], logs: Path, function: Any, words: list[str], *arguments: Any) -> None:
    os.environ.update(environment | {"LOCAL_RANK": environment["RANK"]})
    log = logs / f"rank{environment['RANK']}.log"
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import torch

    torch.set_num_threads(1)
    try:
        function(words, *arguments)
    except Problems as problems:
        log.with_suffix(".failed").write_text(_first_words(str(problems)))
        os._exit(1)  # not through the process group, whose other ranks would wait
    except BaseException as error:
        log.with_suffix(".failed").write_text(f"{type(error).__name__}: {error}"[:200])
        os._exit(1)


def _failure(folder: Path, ranks: int) -> str:
    files = [folder / f"rank{rank}.failed" for rank in range(ranks)]
    return next((file.read_text() for file in files if file.exists()), "")


def _first_words(text: str) -> str:
    """Return the id of a problem, or the first line of another message."""
    found = re.search(r"\[([a-z0-9-]+)\]", text)
    return REFUSALS.get(found[1], f"refused: {found[1]}") if found else text.partition("\n")[0]


def write(text: str) -> None:
    """Replace the table in the documentation."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
