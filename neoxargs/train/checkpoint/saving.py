"""Writing the checkpoints of a run, on top of DeepSpeed's files (their folder: files/checkpoints/folder.py).

Every rank writes its files; then all ranks compare the outcomes, and rank 0 commits the checkpoint if no rank failed.
With `use_node_local_storage`, the first rank of each host that has a disk of its own does so too.
DeepSpeed stores weights, optimizer and schedule; added here are each rank's random states, the number of consumed
samples, which alone determines the data, the configuration and the inventory for other layouts.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed
import yaml
from torch import nn

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.base.record import replace
from neoxargs.config.config import Config
from neoxargs.facts.position import Position
from neoxargs.facts.trained import is_frozen
from neoxargs.files import tokenizer_folder
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.checksums import Digest
from neoxargs.files.token_files import checksums
from neoxargs.files.token_files.sources import files_of, sources
from neoxargs.processes.failures import OfAnotherRank
from neoxargs.targets.ranks import train_values
from neoxargs.train.batches.references import References
from neoxargs.train.checkpoint import commit, expert_files, inventory
from neoxargs.train.checkpoint import references as recorded
from neoxargs.train.checkpoint.random_states import random_file, random_state
from neoxargs.train.checkpoint.rank_files import RankFiles
from neoxargs.train.checkpoint.readers import identity
from neoxargs.train.checkpoint.snapshot import Snapshot
from neoxargs.train.checkpoint.validation import KEY, ForwardPass
from neoxargs.train.deepspeed import checkpoint_io, interface
from neoxargs.train.deepspeed.optimizer_view import stored_tensors
from neoxargs.train.deepspeed.pipeline_module import is_pipeline_module
from neoxargs.train.engine.divergence import latest_checkpoint
from neoxargs.train.engine.spikes import Spikes
from neoxargs.train.parallel.layers import is_expert
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.setup import Process, suppress_output


class Saved(NamedTuple):
    """A complete checkpoint."""

    position: Position
    folder: Path


class Saver:
    """Writes the checkpoints of one run. Its methods are collective: every rank calls them.

    With `save_in_background`, `save` only copies what to write, and `finish` makes the checkpoint visible once the
    threads of all ranks have written it. No collective is called outside of these two methods, so that none of training
    is disturbed.

    last: folder of the checkpoint that was saved or loaded last; None before.
    base: the checkpoint of the weights that are frozen; None if all weights are trained.
    pending: the position of the checkpoint that is being written in the background, and this rank's files of it.
    leads: whether this rank prepares and commits the folder that its files are in; rank 0 always does.
    beside: the ranks whose files are in the same folder.
    forward_pass: with `checkpoint_validation_with_forward_pass`, what computes the recorded loss.
    references: the reference log-probabilities of preference training.
    written, validation_loss: what its checkpoints record of this run, and of the model at the next save.
    spikes: what is judged by earlier steps, with `on_spike`.
    initial: the checkpoint whose weights the run began with (`finetune`); None if they were random or a frozen model's.
    """

    forward_pass: ForwardPass | None = None
    references: References | None = None
    initial: checkpoint_folder.Base | None = None
    written = checkpoint_folder.Written()
    spikes: Spikes | None = None
    validation_loss: float | None = None

    def __init__(self, config: Config, engine: interface.Engine, process: Process) -> None:
        self.config, self.options, self.engine, self.process = config, config.checkpoint, engine, process
        self.last: Path | None = None
        self.base = checkpoint_folder.Base(None, "") if is_frozen(config) else None
        self.files: RankFiles | None = None
        self.pending: tuple[Position, RankFiles] | None = None
        self.removal = commit.Removal()
        self.leads, self.beside = process.main, list(range(process.world_size))
        self.copies = Snapshot() if self.options.save_in_background else None
        checkpoint_io.replace_io(engine, self._write, copies=self.copies is not None)

    @property
    def writing(self) -> bool:
        """Whether this rank still writes files in the background."""
        return self.pending is not None and self.pending[1].writing

    def save(self, position: Position) -> Saved | None:
        """Write a checkpoint below `save`, after the one before.

        Raises Problems if a rank cannot write its files, or if a weight or an optimizer state is infinite or NaN: such
        a checkpoint would be of no use, and older ones are removed for it.

        Returns the checkpoint that this call completed: this one, or in the background the one before, if any.
        """
        assert self.options.save is not None
        # One checkpoint at a time: the copies' buffers are used again.
        before = self.finish()
        if found := first_non_finite(self.engine):
            what = f"save ({self.options.save}): the checkpoint at iteration {position.iteration} is not written, "
            what += f"because the weight or the optimizer state of {found} is infinite or NaN; "
            what += latest_checkpoint(self.last)
            hint = "continue from an earlier checkpoint with a lower lr, a longer warmup, or gradient_clipping"
            about = ("save", "lr", "warmup", "gradient_clipping")
            raise Problems(Problem(what, hint=hint, id="weights-not-finite", about=about))
        root, iteration = Path(self.options.save), position.iteration
        part = root / (checkpoint_folder.WRITING + checkpoint_folder.tag(iteration))
        self.files = files = RankFiles(part, checkpoint_io.in_zip_format(self.engine), self.copies)
        if self.process.main:
            # `begin` removes leftovers, among which would be the folders that the thread is removing.
            self.removal.wait()
            with files.errors_kept():
                commit.begin(root, iteration)
        # Also a barrier: the folder exists from here on.
        self._compare_outcomes(files, position)
        if self.engine.use_node_local_storage():
            self._begin_on_other_hosts(files, position)
        self._write_files(files, position)
        self.pending = position, files
        if self.copies is None:
            return self.finish()
        files.start()
        return before

    def finish(self) -> Saved | None:
        """Wait for the checkpoint that is being written and make it visible; None if there is none.

        Raises Problems if a rank could not write its files.
        """
        if self.pending is None:
            return None
        (position, files), self.pending = self.pending, None
        files.finish()
        # Also a barrier: all files are written.
        digests, root = self._compare_outcomes(files, position), files.part.parent
        if self.leads:
            written = {name: digest for rank in self.beside for name, digest in digests[rank].items()}
            with files.errors_kept():
                commit.commit(root, position.iteration, written)
                if self.options.keep_last_n_checkpoints:
                    best = self.options.keep_best_checkpoints or 0
                    self.removal.prune(root, self.options.keep_last_n_checkpoints, best)
        # Also a barrier: no rank goes on to load or report a checkpoint before it is visible.
        self._compare_outcomes(files, position)
        self.last = root / checkpoint_folder.tag(position.iteration)
        return Saved(position, self.last)

    def close(self) -> None:
        """Wait until old checkpoints are removed."""
        self.removal.wait()

    def _begin_on_other_hosts(self, files: RankFiles, position: Position) -> None:
        """Prepare the folder on the other hosts, and find out which ranks write to the same one.

        Raises Problems if a host sees rank 0's folder: DeepSpeed lets every host write some of the files.
        """
        own = identity(files.part), socket.gethostname()
        folders = of_all_ranks(own)
        sharing = {host for seen, host in folders[1:] if seen == folders[0][0] and host != folders[0][1]}
        if sharing:
            what = f"save ({self.options.save}) must be local to each host, because checkpoint.use_node_local_storage "
            what += f"is set, but rank 0's host shares it with {listed(sorted(sharing), 'and')}"
            hint = "remove use_node_local_storage, or set save to a folder on each host's local disk"
            about = ("checkpoint.use_node_local_storage", "save")
            raise Problems(Problem(what, hint=hint, id="node-local-storage-shared", about=about))
        self.beside = [rank for rank, (_, host) in enumerate(folders) if host == own[1]]
        self.leads = self.process.rank == self.beside[0]
        if self.leads and not self.process.main:
            self.removal.wait()
            with files.errors_kept():
                commit.begin(files.part.parent, position.iteration)
        # Also a barrier: all folders exist from here on.
        self._compare_outcomes(files, position)

    def _write_files(self, files: RankFiles, position: Position) -> None:
        part, rank = files.part, self.process.rank
        state: dict[str, Any] = {
            "iteration": position.iteration,
            "consumed_samples": position.samples,
            "left_out_samples": position.left_out,
            "spikes": self.spikes and self.spikes.state(),
        }
        if self.forward_pass:
            state[KEY] = self.forward_pass.measure()
        module = self.engine.module
        # ZeRO-2 and 3 save frozen weights apart from the state of the module.
        options: dict[str, Any] = {"client_state": state, "save_latest": False}
        # Not in a pipeline, whose own option would fail on the names that `left_out` has already removed.
        if self.base and not is_pipeline_module(module):
            options["exclude_frozen_parameters"] = True
        with suppress_output(), self._without_optimizer(), checkpoint_io.left_out(module, _is_elsewhere):
            self.engine.save_checkpoint(str(part.parent), tag=part.name, **options)
        # DeepSpeed copies the files on NVMe into the checkpoint itself, so they still need a digest.
        for swapped in part.glob(f"offloaded_tensors/rank{rank:02d}/**/*"):
            if swapped.is_file():
                files.add(swapped)
        expert_files.write(self.engine, files, with_optimizer=not self.options.no_save_optim)
        if not self.options.no_save_rng:
            files.save(random_state(), part / random_file(rank))
        partitioned = self.engine.zero_optimization_partition_weights()
        # ZeRO-3 writes the optimizer's files even with `no_save_optim`, see `_without_optimizer`.
        inventory.write(self.engine, files, complete=partitioned or not self.options.no_save_optim)
        if self.leads:
            _write_config(files, self.config)
            _write_tokenizer(files, self.config)
            progress = {"samples": position.samples, "left_out": position.left_out}
            written = replace(self.written, validation_loss=self.validation_loss, **progress)
            files.text(written.to_json(), files.part / checkpoint_folder.RUN)
            if self.references:
                recorded.write(recorded.Recorded(self.references.tables, self.initial), files)
            if self.base:
                files.text(self.base.to_json(), files.part / checkpoint_folder.BASE)

    def _write(self, value: Any, path: Path) -> None:
        """Write a file for DeepSpeed."""
        assert self.files is not None
        self.files.save(value, path)

    def _compare_outcomes(self, files: RankFiles, position: Position) -> list[dict[str, Digest]]:
        """Return the digests of each rank's files. If a rank failed, remove them and raise Problems on every rank."""
        outcomes = of_all_ranks((files.digests, files.error, socket.gethostname()))
        for rank, (_, error, host) in enumerate(outcomes):
            if error:
                if self.leads:
                    with contextlib.suppress(OSError):  # the next save tries again
                        checkpoint_folder.delete(files.part)
                what = f"save ({self.options.save}): the checkpoint at iteration {position.iteration} cannot be "
                what += f"written: rank {rank} on {host}: {error}; {latest_checkpoint(self.last)}"
                hint = "free up space on this disk, or set save to another folder"
                kind = Problems if rank == self.process.rank else OfAnotherRank
                raise kind(Problem(what, hint=hint, id="checkpoint-not-saved", about=("save",)))
        return [digests for digests, *_ in outcomes]

    @contextlib.contextmanager
    def _without_optimizer(self) -> Iterator[None]:
        """Within this, DeepSpeed saves no optimizer state if `no_save_optim` is set; it has no such option itself.

        ZeRO-3 saves the weights in the optimizer's files, so these are written nevertheless.
        """
        if not self.options.no_save_optim or self.engine.zero_optimization_partition_weights():
            yield
            return
        files, partitioned = self.engine.checkpoint_engine, self.engine.save_zero_checkpoint
        write = files.save

        def write_rest(state_dict: dict[str, Any], path: str) -> Any:
            return write({key: value for key, value in state_dict.items() if key != "optimizer"}, path)

        # `save_zero_checkpoint` False: the engine writes no file of ZeRO's partitions.
        files.save, self.engine.save_zero_checkpoint = write_rest, False
        try:
            yield
        finally:
            files.save, self.engine.save_zero_checkpoint = write, partitioned


def first_non_finite(engine: interface.Engine) -> str:
    """Return which weight or optimizer state is infinite or NaN, and on which rank; "" if none is. Collective."""
    names, tensors = [], []
    for name, tensor in stored_tensors(engine):
        if tensor.numel():
            names.append(name)
            tensors.append(tensor.detach())
    # The largest absolute value is infinite or NaN exactly if an element is.
    norms = [norm.float().to(engine.device) for norm in torch._foreach_norm(tensors, float("inf"))] if tensors else []
    finite = torch.stack(norms).isfinite().tolist() if norms else []
    own = next((name for name, is_finite in zip(names, finite, strict=True) if not is_finite), "")
    found = enumerate(of_all_ranks((own, socket.gethostname())))
    return next((f"{name} on rank {rank} of {host}" for rank, (name, host) in found if name), "")


def _is_elsewhere(weight: nn.Parameter) -> bool:
    """Whether DeepSpeed's files leave out a weight: an expert, or a frozen weight, which is in the base checkpoint."""
    return is_expert(weight) or not weight.requires_grad


def _write_config(files: RankFiles, config: Config) -> None:
    """Write the run's configuration: config.json for programs that need only the checkpoint, config.yml for people.

    data.json has the digests of the token files in the order of the configuration, by which a continued run notices
    other data, also under another name.
    """
    values = train_values(config)
    files.text(json.dumps(values, indent=1), files.part / checkpoint_folder.CONFIG)
    files.text(yaml.safe_dump(values, sort_keys=False), files.part / "config.yml")
    digests: dict[str, Any] = {
        prefix: {suffix: known.to_json() for suffix, known in checksums.known_digests(prefix).items()}
        for prefix in files_of(sources(config.data, config.post_training))
    }
    if shapes := config.mup.use_mup and config.mup.base_shapes_file:
        digests[shapes] = checkpoint_folder.file_digest(shapes)
    files.text(json.dumps(digests, indent=1), files.part / checkpoint_folder.DATA)


def _write_tokenizer(files: RankFiles, config: Config) -> None:
    """Add the files of the tokenizer, except those that are gone: without them, a checkpoint is still worth saving."""
    options = config.tokenizer
    found = tokenizer_folder.files(options.tokenizer_type, options.vocab_file, options.merge_file)
    for name, file in found.items():
        with contextlib.suppress(OSError):
            files.bytes(file.read_bytes(), files.part / checkpoint_folder.TOKENIZER / name)
