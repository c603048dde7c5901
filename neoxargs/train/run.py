"""A training run on one rank, from its configuration to its last step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.data.command import summary_of
from neoxargs.data.tokenizer import Tokenizer, build_tokenizer
from neoxargs.facts import model
from neoxargs.facts.attention_kernels import choices, describe_kernels, unusable
from neoxargs.facts.batch import sequences_per_sample
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.context import in_words
from neoxargs.facts.description import describe
from neoxargs.facts.objectives import objective
from neoxargs.facts.position import Position
from neoxargs.facts.sequence_lengths import SequenceLengths
from neoxargs.facts.validation_sets import validation_sets
from neoxargs.files.checkpoints.folder import Written
from neoxargs.files.metrics import FILE as METRICS
from neoxargs.files.run_record import launch_command
from neoxargs.files.token_files.index import digest
from neoxargs.files.token_files.sources import files_of, sources
from neoxargs.files.token_files.timeline import timeline_of
from neoxargs.hosts.device_table import reported_device
from neoxargs.processes import failures, watch
from neoxargs.processes.run_lock import locked_folders, run_of
from neoxargs.targets.ranks import train_values
from neoxargs.targets.wire_format import RankArguments
from neoxargs.train import coord_check
from neoxargs.train import reference_model as reference
from neoxargs.train.batches.datasets import build_datasets
from neoxargs.train.batches.loader import Loader
from neoxargs.train.checkpoint import choose, save_load
from neoxargs.train.checkpoint.prompt_from_text import starting_from_text
from neoxargs.train.checkpoint.validation import ForwardPass
from neoxargs.train.engine import build
from neoxargs.train.engine.spikes import SKIPPING
from neoxargs.train.evaluation.characters import CharacterCounter
from neoxargs.train.evaluation.in_training import Evaluations
from neoxargs.train.evaluation.questions import questions
from neoxargs.train.loop import Loop
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.gpt import GPT
from neoxargs.train.ops.sdpa import place
from neoxargs.train.process import deepspeed_ops, flight_recorder, setup
from neoxargs.train.process.mesh import Mesh, build_mesh, destroy_groups
from neoxargs.train.process.stop_request import StopRequest
from neoxargs.train.saves import Saves
from neoxargs.train.track import metrics
from neoxargs.train.track.console import Console
from neoxargs.train.track.profile import MemoryHistory, Profile
from neoxargs.train.track.progress import ProgressBar
from neoxargs.train.track.report_page import Page
from neoxargs.train.track.series import CometTracker, TensorBoard, WandbTracker
from neoxargs.train.track.time_spent import Spent
from neoxargs.train.track.tracker import Run, Tracker
from neoxargs.train.track.trackers import RunFolders, Trackers

#: Name of the stop file in `run_dir`; see `adlr_autoresume`.
STOP_FILE = "stop"


def run(arguments: RankArguments) -> None:
    """Train as the rank's command line says. Raises Problems."""
    config = arguments.config
    process = setup.start(config.training.distributed_backend, config.training.seed, arguments.local_rank)
    flight_recorder.write_when_asked(failures.current_rank)
    deepspeed_ops.require_nvme_support(config)
    if config.mup.save_base_shapes or config.mup.coord_check:
        if process.main:
            coord_check.run(config, process.device)
        return setup.stop()
    loop = assemble(arguments, process)
    loop.run()
    loop.data.comparison.end()
    destroy_groups()
    setup.stop()


def assemble(arguments: RankArguments, process: setup.Process) -> Loop:
    """Return the training loop of a run at its first step, with model, data and everything else. Raises Problems."""
    config = arguments.config
    # Before the model: problems with the data are reported without waiting for that.
    mesh, tokenizer, vocabulary, data = _read(config, process)
    begun = choose.begin(config)
    setup.seed_by_place(config.training.seed, mesh)
    if refused := [*unusable(config, place(process.device))]:
        raise Problems(refused)
    trainer = build.build(config, arguments.deepspeed, vocabulary, mesh)
    saver = save_load.Checkpoints(config, trainer.deepspeed, process)
    saver.begun, saver.spikes = begun, trainer.spikes
    saver.written = Written(run_of(arguments.launch), job=arguments.job)
    if config.checkpoint.checkpoint_validation_with_forward_pass and not model.is_reward_model(config):
        saver.forward_pass = ForwardPass(config, trainer, vocabulary)
    with starting_from_text(trainer.deepspeed, config, tokenizer, mesh):
        position = saver.load()
    rank = failures.current_rank  # with a supervisor, which watches
    progress = watch.Progress(rank.watch if rank else None, config.runner_extras.step_timeout)
    if objective(config.post_training.train_impl).reference:
        data = data.reaching(position.last_sample(BatchSizes.of(config.get), config.training.train_iters))
        reference.prepare(config, trainer, data, mesh, saver, progress)
        # Of samples beyond these, no log-probabilities of the reference model are known.
        data = replace(data, extend=None)
    kernels = [*attention_line(config, process.device), *trainer.kernels]
    described = _described_run(arguments, process.world_size, position, vocabulary.padded, kernels)
    stops = config.checkpoint.on_save_error == "stop"
    log_dir = {"log_dir": Path(config.logging.log_dir)} if config.logging.log_dir else {}
    folders = RunFolders({**locked_folders(config), **log_dir} if process.main else {})
    trackers = Trackers(_trackers(config, described.folder) if process.main else [], described.folder, stops, folders)
    for tracker in trackers.each:
        tracker.on_start(described)
    # A run that makes no step does not save again.
    saves = Saves(config.checkpoint, saver, trackers, progress, saved=position if position.iteration else None)
    characters = CharacterCounter(tokenizer, mesh, process.device) if config.training.char_level_ppl else None
    asked = questions(trainer, config, tokenizer, mesh, process)
    sets = validation_sets(config.data.validation)
    evaluations = Evaluations(config.training, trainer, data, progress, characters, asked, sets)
    stop_file = described.folder / STOP_FILE if config.training.adlr_autoresume else None
    stop = StopRequest(stop_file, config.training.adlr_autoresume_interval)
    # Only rank 0 has the file of metrics, and reports the time.
    elapsed = metrics.elapsed(described.folder / METRICS, position.iteration) if process.main else 0.0
    sizes, lengths = BatchSizes.of(config.get), SequenceLengths.of(config.get)
    is_idle = torch.cuda.current_stream().query if setup.on_gpu() else None
    # On GPUs, messages are queued like computation; those of compiled layers are in their graphs.
    with_messages = not setup.on_gpu() and process.world_size > 1 and not config.fusion.compile_layers
    planned = described.planned if process.main else None
    spent = Spent(planned, described.tokens_per_sample, is_idle, with_messages=with_messages)
    return Loop(
        config.training, sizes, trainer, data, saves, evaluations, trackers, stop, progress, position, elapsed,
        read_every(config, process.device), spent, lengths if lengths.changes else None,
    )  # fmt: skip


def attention_line(config: Config, device: torch.device) -> Iterator[str]:
    """Yield which kernels compute attention in how many layers, and how context parallel ranks do, each with why."""
    if words := describe_kernels(choices(config, place(device))):
        yield f"attention: {words}"
    if words := in_words(config):
        yield f"context parallel: {words}"


def read_every(config: Config, device: torch.device) -> int:
    """Return after how many steps the host waits for a result; see `Loop.read_every`."""
    # The last three wait in every step: for fp16's overflow check, and to know whether a step is skipped.
    at_once = (
        device.type == "cpu",
        config.profiling.profile,  # which starts and ends between two steps
        config.precision.precision == "fp16",
        config.training.on_divergence == "skip",
        config.training.on_spike in SKIPPING,
    )
    return 1 if any(at_once) else config.logging.log_interval


def model_and_data(arguments: RankArguments, process: setup.Process) -> tuple[GPT, Iterator[MicroBatch]]:
    """Return the model of a run of one rank without an engine, with its micro batches. Raises Problems."""
    config = arguments.config
    mesh, _, vocabulary, data = _read(config, process)
    batches = data.train(0)
    assert batches is not None
    setup.set_seeds(config.training.seed)
    return build.alone(config, vocabulary, mesh), batches


def _read(config: Config, process: setup.Process) -> tuple[Mesh, Tokenizer, Vocabulary, Loader]:
    """Return the mesh, the tokenizer and the data of a run. Raises Problems."""
    mesh, tokenizer = build_mesh(config), build_tokenizer(config.tokenizer)
    vocabulary = build.vocabulary(config, tokenizer.vocab_size, tokenizer.eod)
    data = build_datasets(config, tokenizer, mesh, process.local_rank)
    if process.device.type == "cpu" and not config.is_set("num_workers"):
        data = replace(data, workers=0)  # worker processes would take CPU cores from the ranks
    return mesh, tokenizer, vocabulary, data


def _described_run(arguments: RankArguments, ranks: int, start: Position, rows: int, kernels: Sequence[str]) -> Run:
    config = arguments.config
    sizes, lengths = BatchSizes.of(config.get), SequenceLengths.of(config.get)
    # Known only for one token file that deepy wrote.
    summary = summary_of(config.data.data_path) if isinstance(config.data.data_path, str) else None
    return Run(
        folder=Path(config.logging.run_dir),
        iterations=config.training.train_iters,
        start=start.iteration,
        tokens_per_sample=sequences_per_sample(config) * config.shape.seq_length,
        samples=start.onwards(sizes).samples_after(config.training.train_iters),
        ranks=ranks,
        parameters=model.parameters(config, rows),
        flops_per_token=model.flops_per_token(config, rows),
        peak_tflops=config.logging.peak_theoretical_tflops or peak_tflops(config, setup.gpu_name()),
        unigram_entropy=summary.unigram_entropy if summary else None,
        has_perplexity=config.post_training.train_impl == "normal",
        batch_size_changes=sizes.changes,
        flops_by_length={
            length: model.flops_per_token(config, rows, length) for _, length in lengths.begins if lengths.changes
        },
        kernels=kernels,
        planned=arguments.planned,
    )


def peak_tflops(config: Config, gpu: str) -> float | None:
    """Return the peak rate in 16 bits of a GPU that torch names so; None for other runs and GPUs.

    The peak rate in fp32 depends on whether products use TF32.
    """
    device = reported_device(gpu) if config.precision.precision != "fp32" else None
    return device.half / 1e12 if device else None


def _trackers(config: Config, folder: Path) -> list[Tracker]:
    """Return the trackers that the configuration asks for, the console first."""
    options, profiling = config.logging, config.profiling
    steps = profiling.profile_step_start, profiling.profile_step_stop
    bar = ProgressBar() if sys.stdout.isatty() else None
    log = Path(options.log_dir) / "train.log" if options.log_dir else None
    write = bar.write if bar else partial(print, flush=True)
    trackers: list[Tracker] = [Console(options.log_interval, write, log, options.tensorboard_dir)]
    # They end in reverse order: the page reads the metrics.
    page = Page([*describe(config), *_launched(config)], partial(timeline_of, config))
    # What determines the samples that a run reads, for `deepy data --ledger`.
    files, values = files_of({"train": sources(config.data, config.post_training)["train"]}), train_values(config)
    recorded = {"values": values, "files": {name: digest(name) for name in files}}
    trackers += [page, metrics.Metrics(folder / METRICS, recorded)]
    if options.tensorboard_dir:
        trackers.append(TensorBoard(options.tensorboard_dir))
    if config.wandb.use_wandb:
        trackers.append(WandbTracker(config.wandb, values))
    if config.comet.use_comet:
        trackers.append(CometTracker(config.comet, values))
    memory_on_gpu = profiling.memory_profiling and setup.on_gpu()
    memory_on_cpu = profiling.memory_profiling and not memory_on_gpu
    if profiling.profile or memory_on_cpu:
        trackers.append(Profile(*steps, profiling.profile, memory_on_cpu, profiling.memory_profiling_path))
    if memory_on_gpu:
        trackers.append(MemoryHistory(profiling.memory_profiling_path))
    return [*trackers, bar] if bar else trackers


def _launched(config: Config) -> list[tuple[str, str]]:
    """Return the command and the commit of the launch, as far as they are known."""
    known = {"command": launch_command(config), "commit": str(config.get("git_hash") or "")}
    return [(label, text) for label, text in known.items() if text]
