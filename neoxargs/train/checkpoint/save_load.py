"""Saving and continuing a run, on top of DeepSpeed's own checkpoint files (their places: folder.py).

A resumed run continues bit for bit: weights, optimizer and schedule are DeepSpeed's to restore, the random
states of every rank and the number of samples seen are ours; the data's order depends on nothing else.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
import yaml

from neoxargs import checkpoint_folder
from neoxargs.launch.targets.ranks import train_values
from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.sizes.lr_schedule import differing
from neoxargs.train.checkpoint import commit, inventory, relayout
from neoxargs.train.optim.schedule import Schedule
from neoxargs.train.process.setup import Process, on_gpu, set_seeds, suppress_output

#: What must be as it was where a checkpoint does not say what lies where in it.
LAYOUT = ("model_parallel_size", "pipe_parallel_size")
#: Optimizers that keep the same state.
ADAMS = ("adam", "adamw", "cpu_adam", "cpu_torch_adam")


@dataclass(frozen=True)
class Position:
    """How far a run has come."""

    iteration: int = 0
    samples: int = 0
    """Consumed by training so far; says which sample is next."""


class Checkpoints:
    """The checkpoints of one run. Every rank calls `save` and `load` at the same time."""

    def __init__(self, config: Config, engine: Any, process: Process) -> None:
        self.config, self.options, self.engine, self.process = config, config.checkpoint, engine, process
        self.last: Path | None = None

    def save(self, position: Position) -> Path:
        """Write a checkpoint below `save`; returns its folder."""
        assert self.options.save is not None
        root = Path(self.options.save)
        part = root / (commit.WRITING + checkpoint_folder.tag(position.iteration))
        if self.process.main:
            commit.begin(root, position.iteration)
        state = {"iteration": position.iteration, "consumed_samples": position.samples}
        with suppress_output(), self._without_optimizer():
            self.engine.save_checkpoint(str(root), tag=part.name, client_state=state, save_latest=False)
        if not self.options.no_save_rng:
            torch.save(random_state(), part / _random_file(self.process.rank))
        partitioned = self.engine.zero_optimization_partition_weights()
        inventory.write(self.engine, part, complete=partitioned or not self.options.no_save_optim)
        torch.distributed.barrier()
        if self.process.main:
            _write_config(part, self.config)
            commit.commit(root, position.iteration)
            if self.options.keep_last_n_checkpoints:
                commit.prune(root, self.options.keep_last_n_checkpoints)
        self.last = root / checkpoint_folder.tag(position.iteration)
        return self.last

    def load(self) -> Position:
        """Continue from `load`; raises Problems where that is impossible.

        An empty `load` that is also `save` is a run that has not begun yet, so that one command starts and restarts.
        """
        if self.options.load is None:
            return Position()
        found = self._choose(Path(self.options.load))
        if found is None:
            return Position()
        state, same = self._load_state(found)
        if self.options.finetune:
            return Position()
        if not self.options.no_load_rng:
            self._load_random_state(found, same, state["iteration"])
        self.last = found
        return Position(state["iteration"], state["consumed_samples"])

    def _choose(self, root: Path) -> Path | None:
        if self.config.training.iteration is not None:
            return _exactly(root, self.config.training.iteration)
        found = checkpoint_folder.newest(root)
        if found is None:
            _require_first_start(root, self.options.save)
        elif self.process.main:
            for newer in checkpoint_folder.checkpoints(root):
                if damage := checkpoint_folder.damage(newer):
                    print(f"warning: skipping {newer}, which is damaged: {damage}", flush=True)
        return found

    def _load_state(self, found: Path) -> tuple[dict[str, Any], bool]:
        """DeepSpeed's client state, and whether this run's layout is the checkpoint's."""
        everything = not (self.options.finetune or self.options.no_load_optim)
        inventories = inventory.read(found)
        self._require_same(found, LAYOUT if not inventories else (), everything)
        if everything:
            self._follow_train_iters(found)
        if not inventories:
            state, same = self._load_engine(found, everything), True
        else:
            same = _everywhere(inventory.is_here(self.engine, found), self.process)
            # Without the optimizer DeepSpeed would gather all of a model whose weights ZeRO-3 has divided.
            whole = everything or not self.engine.zero_optimization_partition_weights()
            # Of a state on NVMe it would lose Adam's count of steps, and what is too small to be swapped.
            on_nvme = self.engine.zero_nvme_offload_optimizer()
            if same and whole and not on_nvme:
                state = self._load_engine(found, everything)
            else:
                state = relayout.load(self.engine, found, inventories, everything)
        return {"consumed_samples": state["iteration"] * self.config.batch.train_batch_size, **state}, same

    def _load_engine(self, found: Path, everything: bool) -> dict[str, Any]:
        try:
            with suppress_output():
                path, state = self.engine.load_checkpoint(
                    str(found.parent),
                    tag=found.name,
                    load_optimizer_states=everything,
                    load_lr_scheduler_states=everything,
                    load_module_only=not everything,
                )
        except (RuntimeError, KeyError, AssertionError, ValueError, OSError) as error:
            what = f"load ({found}): DeepSpeed cannot load it into this model: {_short(error)}"
            raise Problems(Problem(what, id="checkpoint-not-loadable", about=("load",))) from error
        if path is None:
            what = f"load ({found}): DeepSpeed found no checkpoint for this model in it"
            raise Problems(Problem(what, id="checkpoint-not-loadable", about=("load",)))
        return state  # type: ignore[no-any-return]

    def _load_random_state(self, found: Path, same: bool, iteration: int) -> None:
        file = found / _random_file(self.process.rank)
        if same and file.exists():
            restore_random_state(torch.load(file, weights_only=True))
            return
        set_seeds(torch.initial_seed() + iteration)  # not the masks of the run's beginning once more
        if self.process.main:
            why = "has no random states" if same else "was written on another layout"
            print(f"warning: {found} {why}; dropout masks will differ from those of an uninterrupted run", flush=True)

    def _require_same(self, found: Path, layout: Sequence[str], everything: bool) -> None:
        """The same model and kind of optimizer; without an inventory also the same layout."""
        saved = checkpoint_folder.configuration(found)
        if saved is None:
            return
        unshared = {"num_unique_layers": None, "param_sharing_style": "grouped"}
        theirs = unshared | saved
        names = ["num_layers", "hidden_size", *unshared, *layout]
        if layout and self.engine.zero_optimization() and not self.options.no_load_optim:
            names.append("world_size")
        raise_if(
            Problem(
                f"load ({found}): it was written with {name} {theirs[name]}, but this run has {self.config.get(name)}",
                hint=f"use the checkpoint's {name}, or load another checkpoint",
                id="checkpoint-other-model",
                about=("load", name),
            )
            for name in names
            if name in theirs and theirs[name] != self.config.get(name)
        )
        kind, other = self.config.optimizer.type or "Adam", theirs.get("optimizer", {}).get("type") or "Adam"
        if everything and _family(kind) != _family(other):
            what = f"load ({found}): it has the state of optimizer.type {other}, but this run uses {kind}"
            hint = "set no_load_optim: true to start with a fresh optimizer state"
            raise Problems(Problem(what, hint=hint, id="checkpoint-other-optimizer", about=("load", "optimizer.type")))

    def _follow_train_iters(self, found: Path) -> None:
        """A decay that ends with the run ends later in a longer one: told before the start, and no reason to refuse."""
        theirs, schedule = checkpoint_folder.schedule(found), self.engine.lr_scheduler
        if theirs is None or not isinstance(schedule, Schedule) or schedule.reload != "neither":
            return
        if not differing(self.config.get, theirs):
            schedule.reload = "ours"

    @contextlib.contextmanager
    def _without_optimizer(self) -> Iterator[None]:
        """`no_save_optim`: DeepSpeed has no such switch. ZeRO-3 keeps its weights in the same file and saves it."""
        if not self.options.no_save_optim or self.engine.zero_optimization_partition_weights():
            yield
            return
        files, partitioned = self.engine.checkpoint_engine, self.engine.save_zero_checkpoint
        write = files.save

        def write_rest(state_dict: dict[str, Any], path: str) -> Any:
            return write({key: value for key, value in state_dict.items() if key != "optimizer"}, path)

        files.save, self.engine.save_zero_checkpoint = write_rest, False
        try:
            yield
        finally:
            files.save, self.engine.save_zero_checkpoint = write, partitioned


def random_state() -> dict[str, Any]:
    """The state of every generator of this rank, in types that `torch.load` reads without running code."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if on_gpu():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and on_gpu():
        torch.cuda.set_rng_state(state["cuda"])


def raise_if(problems: Iterator[Problem]) -> None:
    found = list(problems)
    if found:
        raise Problems(found)


def _exactly(root: Path, iteration: int) -> Path:
    wanted = root / checkpoint_folder.tag(iteration)
    damage = checkpoint_folder.damage(wanted) if wanted.is_dir() else "it does not exist"
    if damage:
        what = f"iteration ({iteration}): {wanted} cannot be loaded: {damage}"
        hint = "remove iteration to load the newest undamaged checkpoint"
        raise Problems(Problem(what, hint=hint, id="checkpoint-not-usable", about=("iteration", "load")))
    return wanted


def _require_first_start(root: Path, save: str | None) -> None:
    damaged = [f"{path.name}: {checkpoint_folder.damage(path)}" for path in checkpoint_folder.checkpoints(root)]
    if damaged:
        what = f"load ({root}): every checkpoint in it is damaged ({'; '.join(damaged)})"
        hint = "set load to another folder, or remove load to start from scratch"
        raise Problems(Problem(what, hint=hint, id="checkpoint-all-damaged", about=("load",)))
    if save is None or Path(save).resolve() != root.resolve():
        hint = "remove load to start from scratch, or set load and save to the same folder to resume on every restart"
        raise Problems(
            Problem(f"load ({root}): there is no checkpoint in it", hint=hint, id="checkpoint-missing", about=("load",))
        )


def _write_config(part: Path, config: Config) -> None:
    """What the run was: for people, and for programs that continue from the checkpoint alone."""
    values = train_values(config)
    (part / checkpoint_folder.CONFIG).write_text(json.dumps(values, indent=1), encoding="utf-8")
    (part / "config.yml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


def _everywhere(here: bool, process: Process) -> bool:
    """Is it so on every rank?"""
    flag = torch.tensor(int(here), device=process.device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN)
    return bool(flag.item())


def _family(kind: str) -> str:
    return "adam" if kind.lower() in ADAMS else kind.lower()


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."


def _random_file(rank: int) -> str:
    return f"random-rank{rank:05d}.pt"
