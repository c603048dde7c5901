"""Measure how long a save stops training: if it blocks, if it writes in the background, and if DeepSpeed writes.

    python bench/saving.py [--hidden 1024] [--layers 8] [--folder DIR]

One process trains a GPT on the CPU (plain engine, Adam, fp32) and saves several times in each way, which take turns:

    DeepSpeed       torch.save as DeepSpeed calls it, without checksums of the files
    blocking        what train.py does
    background      with save_in_background: the time until training goes on

"step while writing" is the time of a step while the background writes, relative to one without. Times are printed as
ratios to a step or to each other, because two runs of a shared machine cannot be compared. Results of November 2026
with `--hidden 512 --layers 4`, on two cores with a load of 20 processes, where all ratios vary by a third:

    checkpoint                                57 MB, 0.96 s a step
    pause of a blocking save                0.83 steps
    pause of a save in the background       0.16 steps
    background / blocking                   0.19
    with checksums / as DeepSpeed           1.20
    step while writing / step               1.65
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("DS_ACCELERATOR", "cpu")


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(hidden: int, layers: int, folder: Path, rounds: int) -> dict[str, float]:
    """Return the median seconds of each part."""
    import torch

    from neoxargs.facts.position import Position
    from neoxargs.files.checkpoints.checksums import Digest
    from neoxargs.train.checkpoint.rank_files import RankFiles
    from neoxargs.train.checkpoint.save_load import Checkpoints
    from neoxargs.train.checkpoint.snapshot import Snapshot
    from neoxargs.train.process import setup
    from tests.support.trials import Training, Trial

    process = setup.start("gloo", seed=1)
    training = Training(
        Trial({"hidden_size": hidden, "num_layers": layers}), save=str(folder), keep_last_n_checkpoints=1
    )
    deepspeed, config = training.engine.deepspeed, training.config
    blocking = Checkpoints(config, deepspeed, process)
    background = Checkpoints(config, deepspeed, process)
    background.copies = Snapshot()

    def pause(saver: Checkpoints, number: int) -> float:
        deepspeed.checkpoint_engine.save = lambda state_dict, path: saver.files.save(state_dict, Path(path))
        return seconds(lambda: saver.save(Position(number, number)))

    def save_without_checksum(files: RankFiles, value: Any, path: Path) -> None:
        torch.save(value, path)
        files.digests[path.name] = Digest(path.stat().st_size, 0)

    times: dict[str, list[float]] = defaultdict(list)
    training.step()
    for number in range(1, rounds + 1):
        # Measured in every round, because the load of the machine changes.
        times["step"] += [seconds(training.step) for _ in range(3)]
        times["blocking"].append(pause(blocking, number))
        with patch.object(RankFiles, "save", save_without_checksum):
            times["DeepSpeed"].append(pause(blocking, number))
        times["background"].append(pause(background, number))
        # As many steps as fit into the time that writing takes.
        while background.writing:
            times["step while writing"].append(seconds(training.step))
        background.finish()
    times["bytes"] = [sum(file.stat().st_size for file in (background.last or folder).rglob("*") if file.is_file())]
    setup.stop()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where to write the checkpoints; a temporary folder if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(options.hidden, options.layers, Path(folder), options.rounds)
    step, blocking = found["step"], found["blocking"]
    print(f"checkpoint                          {found['bytes'] / 1e6:8.0f} MB, {step:.2f} s a step")
    print(f"pause of a blocking save            {blocking / step:8.2f} steps")
    print(f"pause of a save in the background   {found['background'] / step:8.2f} steps")
    print(f"background / blocking               {found['background'] / blocking:8.2f}")
    print(f"with checksums / as DeepSpeed       {blocking / found['DeepSpeed']:8.2f}")
    if "step while writing" in found:
        print(f"step while writing / step           {found['step while writing'] / step:8.2f}")


if __name__ == "__main__":
    main()
