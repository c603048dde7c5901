"""Resuming a run from DeepSpeed's checkpoint files, or from those of another layout or program.

A resumed run is bit-for-bit identical to an uninterrupted one; on GPUs only with `deterministic`, because some kernels
add in the order in which threads finish. DeepSpeed restores weights, optimizer and schedule; this module restores each
rank's random states and the number of consumed samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import replace
from neoxargs.facts.lr_schedule import differing
from neoxargs.facts.model import DRAWS, REWARD_HEAD, is_reward_model
from neoxargs.facts.position import Position
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Base
from neoxargs.files.checkpoints.optimizer_state import other_optimizer
from neoxargs.registry import REGISTRY
from neoxargs.train.checkpoint import base, inventory, relayout
from neoxargs.train.checkpoint.choose import Verification, choose, damage_on_any_host
from neoxargs.train.checkpoint.neox import loading
from neoxargs.train.checkpoint.neox.weights import NeoxWeights
from neoxargs.train.checkpoint.random_states import random_file, restore_random_state
from neoxargs.train.checkpoint.saving import Saver, first_non_finite
from neoxargs.train.checkpoint.weights_by_name import LAYOUT
from neoxargs.train.deepspeed import checkpoint_io, interface
from neoxargs.train.deepspeed.optimizer_layout import optimizer_layout
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.optim.schedule import Schedule, continue_schedule
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.setup import set_seeds, suppress_output

#: Options of an optimizer that a checkpoint's do not replace. The learning rate is the schedule's.
OWN_SETTINGS = {name.rpartition(".")[2] for name in REGISTRY.parameters if name.startswith("optimizer.params.")} - {
    "lr"
}


class Checkpoints(Saver):
    """The checkpoints of one run. `save` and `load` are collective: every rank calls them.

    begun: the verification of the checkpoint to load, if it was begun before.
    """

    begun: Verification | None = None

    def load(self) -> Position:
        """Restore the run from `load` and return its position; raise Problems if that is impossible.

        An empty `load` folder that is also `save` is a first start, so that one command starts and restarts a run.
        """
        position = self._restore()
        # A run that goes on from a checkpoint of its own, after a rank has failed, began where that one says.
        before = checkpoint_folder.written_by(self.last) if self.last else None
        start = before.start if before and before.run == self.written.run else position.iteration
        self.written = replace(self.written, start=start)
        if self.options.load and (where := first_non_finite(self.engine)):
            what = f"load ({self.options.load}): the weight or the optimizer state of {where} is infinite or NaN in "
            what += "the checkpoint"
            hint = "set iteration to load an earlier checkpoint"
            raise Problems(Problem(what, hint=hint, id="checkpoint-not-finite", about=("load", "iteration")))
        return position

    def roll_back(self, checkpoints: int) -> Position | None:
        """Restore the weights, states and random numbers of an earlier checkpoint of this run, and return its position.

        checkpoints: how many to go back; the oldest if there are fewer, an older one if it is damaged. None if there is
        none. Checkpoints that are saved from now on do not continue those of later iterations in the folder.
        """
        root = Path(self.options.save or "").resolve()
        own = self.last if self.last and self.last.resolve().parent == root else None
        found = checkpoint_folder.line(own) if own else []
        names = of_all_ranks([each.name for each in found if (each / checkpoint_folder.FILES).is_file()])[0]
        usable = (root / name for name in names[checkpoints - 1 :] or names[-1:])
        checkpoint = next((each for each in usable if not damage_on_any_host(each)), None)
        if checkpoint is None:
            return None
        options, count = self.options, self.spikes.count if self.spikes else 0
        # They concern the checkpoint that the run began with.
        self.options = copy(options)
        vars(self.options).update(finetune=False, no_load_optim=False, no_load_rng=False)
        try:
            position = self._continue(checkpoint)
        finally:
            self.options = options
        if self.spikes:
            self.spikes.count = count
        run = f"{self.written.run.partition('+')[0]}+{count}"
        self.written = replace(self.written, run=run, start=position.iteration)
        return position

    def _restore(self) -> Position:
        if self.options.load is None:
            return self._start()
        if theirs := loading.weights_of(self.config, Path(self.options.load), self.config.training.iteration):
            return self._continue_gpt_neox(theirs)
        checkpoint = choose(self.config, Path(self.options.load), self.process, self.begun)
        if checkpoint is None:
            return self._start()
        return self._continue(checkpoint)

    def _continue(self, checkpoint: Path) -> Position:
        with _own_settings(self.engine):
            state, same_layout = self._load_state(checkpoint)
        if self.forward_pass:
            found = self.forward_pass.compare(state, checkpoint)
            if self.process.main:
                print(f"{checkpoint}: {found}", flush=True)
        # Only the weights: iteration, data order and random states are those of a new run.
        if self.options.finetune:
            self.initial = Base.of(checkpoint)
            return Position()
        if self.options.no_load_optim:
            continue_schedule(self.engine.lr_scheduler, state)
        if not self.options.no_load_rng:
            self._load_random_state(checkpoint, same_layout, state["iteration"])
        self.last = checkpoint
        if self.spikes and (before := state.get("spikes")):
            self.spikes.restore(before)
        return Position(state["iteration"], state["consumed_samples"], state.get("left_out_samples", 0))

    def _start(self) -> Position:
        """Start from scratch, or from the weights of a frozen model."""
        if self.base and self.options.base_checkpoint:
            self._load_base(None)
        return Position()

    def _load_base(self, checkpoint: Path | None) -> None:
        """Load the frozen weights of the model that `base_checkpoint` names, or else a checkpoint of this run."""
        found = base.of_run(self.config, checkpoint, damage_on_any_host)
        if found is None:
            return
        self.base = found.base
        frozen = {name for name, weight in named_weights(self.engine.module).items() if not weight.requires_grad}
        # Of all ranks, because each rank compares the checkpoint's names with those of the full model.
        relayout.load_weights(self.engine, found.weights, False, only=relayout.union_over_ranks(frozen))

    def load_initial_weights(self, initial: Base) -> None:
        """Load only the weights that this run began with. Raises Problems if they are gone, changed or damaged."""
        assert initial.folder
        found = base.weights_in(self.config, initial.folder, damage_on_any_host)
        if found is None or found.base.differs_from(initial):
            contains = "which no longer contains a checkpoint" if found is None else "which now contains another one"
            what = f"the run began with the weights in {initial.folder}, {contains}"
            hint = "restore this checkpoint: the reference model has its weights"
            raise Problems(Problem(what, hint=hint, id="initial-checkpoint-missing", about=("load",)))
        relayout.load_weights(self.engine, found.weights, False, only=self._trained() if self.base else None)

    def _continue_gpt_neox(self, theirs: NeoxWeights) -> Position:
        """Load a checkpoint of GPT-NeoX, whose random states mean nothing here."""
        with_optimizer = not (self.options.finetune or self.options.no_load_optim)
        with _own_settings(self.engine):
            state = loading.load(self.engine, theirs, with_optimizer, self._optional())
        self.base = self.base and Base(theirs.folder.resolve(), "")
        if self.options.finetune:
            self.initial = Base(theirs.folder.resolve(), "")
            return Position()
        if self.options.no_load_optim:
            continue_schedule(self.engine.lr_scheduler, state)
        if not self.options.no_load_rng:
            set_seeds(torch.initial_seed() + state["iteration"])
        self.last = theirs.folder
        return Position(state["iteration"], state["consumed_samples"])

    def _load_state(self, checkpoint: Path) -> tuple[dict[str, Any], bool]:
        """Return DeepSpeed's client state, and whether this run has the layout of the checkpoint."""
        with_optimizer = not (self.options.finetune or self.options.no_load_optim)
        # Without a weight index, only DeepSpeed can load the checkpoint, and only with the same layout.
        has_index = bool(inventory.files(checkpoint))
        self._require_same_model(checkpoint, () if has_index else LAYOUT)
        if not self.options.finetune:
            self._follow_train_iters(checkpoint)
        if not has_index:
            # True, because DeepSpeed fails to load files of another layout.
            state, same_layout = self._load_with_deepspeed(checkpoint, with_optimizer), True
        else:
            same_layout = all(of_all_ranks(inventory.has_same_layout(self.engine, checkpoint)))
            # Without the optimizer state, DeepSpeed 0.19 gathers a full ZeRO-3 model on every rank to load it.
            gathers = not with_optimizer and self.engine.zero_optimization_partition_weights()
            # With optimizer state on NVMe, DeepSpeed 0.19 restores neither Adam's step count nor the states of
            # tensors that are too small to be swapped.
            on_nvme = self.engine.zero_nvme_offload_optimizer()
            # DeepSpeed's files lack the experts that data parallel ranks divide.
            divides_experts = self.config.parallel.moe_expert_parallel_size > 1
            if self.base:
                state = self._load_part(checkpoint, with_optimizer)
            elif same_layout and not (gathers or on_nvme or divides_experts or self._optional()):
                state = self._load_with_deepspeed(checkpoint, with_optimizer)
            else:
                state = relayout.load(self.engine, checkpoint, with_optimizer, self._optional())
        # Checkpoints of other programs, and older ones, do not have the number of samples.
        return {"consumed_samples": state["iteration"] * self.config.batch.train_batch_size, **state}, same_layout

    def _load_part(self, checkpoint: Path, with_optimizer: bool) -> dict[str, Any]:
        """Load a model of which a part is frozen: a checkpoint of that part and its base, or of the full model."""
        if checkpoint_folder.recorded_base(checkpoint) is None:
            self.base = Base.of(checkpoint)
            return relayout.load(self.engine, checkpoint, with_optimizer, self._optional())
        self._load_base(checkpoint)
        return relayout.load(self.engine, checkpoint, with_optimizer, only=self._trained())

    def _trained(self) -> set[str]:
        """Return the names of the trained weights of all ranks. Collective."""
        weights = named_weights(self.engine.module)
        return relayout.union_over_ranks({name for name, weight in weights.items() if weight.requires_grad})

    def _optional(self) -> set[str]:
        """Return the weights that need not be in the checkpoint: new adapters, a new prompt or head. Collective."""
        if not self.options.finetune:
            return set()
        head = {f"{REWARD_HEAD}.weight"} if is_reward_model(self.config) else set()
        return (self._trained() if self.base else set()) | head

    def _load_with_deepspeed(self, checkpoint: Path, with_optimizer: bool) -> dict[str, Any]:
        try:
            with suppress_output(), checkpoint_io.safe_reads():
                path, state = self.engine.load_checkpoint(
                    str(checkpoint.parent),
                    tag=checkpoint.name,
                    load_optimizer_states=with_optimizer,
                    load_lr_scheduler_states=with_optimizer,
                    load_module_only=not with_optimizer,
                )
        # What torch and DeepSpeed raise for other shapes, names and numbers of files, and for unreadable files.
        except (RuntimeError, KeyError, AssertionError, ValueError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            text = text if len(text) <= 300 else text[:300] + " ..."
            what = f"load ({checkpoint}): DeepSpeed cannot load the checkpoint into this model: {text}"
            raise Problems(Problem(what, id="checkpoint-not-loadable", about=("load",))) from error
        if path is None:
            what = f"load ({checkpoint}): DeepSpeed found no checkpoint for this model in this folder"
            raise Problems(Problem(what, id="checkpoint-not-loadable", about=("load",)))
        return dict(state)

    def _load_random_state(self, checkpoint: Path, same_layout: bool, iteration: int) -> None:
        file = checkpoint / random_file(self.process.rank)
        has_file = same_layout and file.exists()
        if has_file:
            restore_random_state(checkpoint_io.read(file))
        else:
            set_seeds(torch.initial_seed() + iteration)  # a new seed, so that the run's first masks are not repeated
        # Collective, so after the branch that ranks may take differently.
        draws = any((self.config.get(name) or 0) > 0 for name in (*DRAWS, "lora.dropout"))
        if not all(of_all_ranks(has_file)) and self.process.main and draws:
            why = "has no RNG states" if same_layout else f"was written with {self._other_files(checkpoint)}"
            what = f"{checkpoint} {why}; dropout masks will differ from those of an uninterrupted run"
            print(f"warning: {what}", flush=True)

    def _other_files(self, checkpoint: Path) -> str:
        """Return why the ranks of this run would write other files than those of the checkpoint."""
        saved = checkpoint_folder.configuration(checkpoint) or {}
        sizes = ("world_size", "pipe_parallel_size", "model_parallel_size", "moe_expert_parallel_size")
        same = all(saved.get(name) in (None, self.config.get(name)) for name in sizes)
        return "a different precision, ZeRO stage or optimizer" if same else "a different layout of ranks"

    def _require_same_model(self, checkpoint: Path, layout: Sequence[str]) -> None:
        """Raise Problems unless the checkpoint has this model and optimizer type, and these layout parameters."""
        saved = checkpoint_folder.configuration(checkpoint)
        if saved is None:
            return
        theirs = checkpoint_folder.SHAPE | saved
        names = [*checkpoint_folder.SHAPE, *layout]
        # Without an index, DeepSpeed reads ZeRO's partitions only with the number of ranks that wrote them.
        if layout and self.engine.zero_optimization() and not self.options.no_load_optim:
            names.append("world_size")
        other = [
            Problem(
                f"load ({checkpoint}): the checkpoint was written with {name} {theirs[name]}, "
                f"but this run has {name} {self.config.get(name)}",
                hint=f"set {name} to {theirs[name]}, or load a different checkpoint",
                id="checkpoint-other-model",
                about=("load", name),
            )
            for name in names
            if name in theirs and theirs[name] != self.config.get(name)
        ]
        if problems := other or [*other_optimizer(self.config, checkpoint)]:
            raise Problems(problems)

    def _follow_train_iters(self, checkpoint: Path) -> None:
        """Use this run's schedule if it differs from the checkpoint's only because `train_iters` was changed.

        The launcher has already warned about the jump of the learning rate (checks/checkpoint/schedule.py).
        """
        theirs, schedule = checkpoint_folder.schedule(checkpoint), self.engine.lr_scheduler
        if theirs is None or not isinstance(schedule, Schedule) or schedule.reload != "neither":
            return
        # `differing` ignores the end of a decay that follows train_iters.
        if not differing(self.config.get, theirs):
            schedule.reload = "ours"


@contextmanager
def _own_settings(engine: interface.Engine) -> Iterator[None]:
    """Within this, an optimizer loads its state from a checkpoint, and keeps this run's rates and other settings.

    torch and DeepSpeed load the settings of its groups too; DeepSpeed's schedules continue those that they set.
    """
    schedule, layout = engine.lr_scheduler, optimizer_layout(engine)
    optimizer = layout and layout.optimizer
    names = OWN_SETTINGS - (set() if isinstance(schedule, Schedule) else {"betas", "momentum"})
    groups = optimizer.param_groups if optimizer else []
    own = [{name: value for name, value in group.items() if name in names} for group in groups]
    yield
    for group, settings in zip(optimizer.param_groups if optimizer else [], own, strict=True):
        group |= settings
    if isinstance(schedule, Schedule):
        schedule.set_again()
