"""Data sets of samples from token files, in GPT-NeoX's order (samples/gpt_neox.py) or megatron-core's (`sample_order`).

Rank 0 (or the first rank of every machine, without a shared file system) writes index files that say which tokens make
which sample; the other ranks read them. megatron-core is imported inside functions, because importing it warns about
packages that this trainer does not use.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.data.tokenizer import Tokenizer
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.data import added
from neoxargs.facts.mixture import Mixture, limits, mixture_of, schedule_of, used_up
from neoxargs.facts.model import rows_for
from neoxargs.facts.trained import prompt_length
from neoxargs.files.token_files import rewards
from neoxargs.files.token_files import writer as indexed
from neoxargs.files.token_files.packing import joined_samples
from neoxargs.files.token_files.sources import (
    PARTS,
    Part,
    Source,
    files_of,
    labelled,
    part_of,
    reward_files,
    sources,
    weights,
)
from neoxargs.registry.data import Data
from neoxargs.registry.training import Training
from neoxargs.train.batches.comparison import Comparison
from neoxargs.train.batches.loader import Loader, Samples
from neoxargs.train.batches.references import References
from neoxargs.train.batches.samples import gpt_neox, megatron_core, whole_documents
from neoxargs.train.batches.samples.answers import Pairs, Rated
from neoxargs.train.batches.samples.mixed import mix_samples
from neoxargs.train.batches.samples.passes import in_passes
from neoxargs.train.batches.token_file_checks import require_token_files
from neoxargs.train.process.mesh import Mesh

T = TypeVar("T")


@dataclass(frozen=True)
class Sampling:
    """Everything that determines how a source is cut into samples."""

    data: Data
    seq_length: int
    seed: int
    eod: int
    """Id of the end-of-document token."""
    vocab_size: int
    rows: int
    """Rows of the embedding, which no token id may exceed."""
    cache: Path
    """Folder of the index files."""
    epochs: int | None = None
    """Number of passes over the training data (`train_epochs`); None to draw a given number of samples instead."""
    mixture: Mixture | None = None
    """Of the training data."""
    prompt: int = 0
    """Number of positions at the beginning of every sample that a soft prompt occupies."""
    reach: int = 0
    """Number of the sample after the last one of the training data, if the run reads others than the first ones."""
    files: dict[str, Any] = field(default_factory=dict)
    """Prefix -> open token file."""
    references: References = field(default_factory=References)
    """The reference model's log-probabilities in preference training."""


def build_datasets(
    config: Config, tokenizer: Tokenizer, mesh: Mesh, local_rank: int = 0, parts: Sequence[Part] = PARTS
) -> Loader:
    """Build the train, validation and test data of the run, or only some of them. Collective: every rank calls it.

    local_rank: this rank's number on its machine.
    Raises Problems if a token file is missing, damaged or made with another vocabulary, or the train split is empty.
    """
    training = config.training
    rows = rows_for(tokenizer.vocab_size, config)
    sampling = sampling_of(config, tokenizer.eod, tokenizer.vocab_size, rows, index_folder(config))
    chosen, sizes = sources(config.data, config.post_training), BatchSizes.of(config.get)
    batches = needed_batches(training, config.data.repeat_eval_samples)
    # 0 for parts that are not asked for: their data sets become None.
    needed = dict.fromkeys(chosen, 0) | {
        part: sizes.samples_after(batches["train"]) if part == "train" else batches[part_of(part)] * sizes.last
        for part in chosen
        if part_of(part) in parts
    }
    require_token_files(chosen, tokenizer.vocab_size)
    comparison = Comparison(files_of(chosen), labelled(chosen), reward_files(chosen), rows)
    rank = None if config.data.use_shared_fs else local_rank
    if _is_first(rank):
        comparison.start()
    built = first_rank_first(
        rank, lambda: {part: dataset(chosen[part], part, needed[part], sampling) for part in chosen}
    )
    _refuse_empty(built, chosen, needed, sampling)
    # Once for each text: a file can be a source of several parts.
    for left_out in dict.fromkeys(text for part in chosen if built[part] for text in _left_out(chosen[part], sampling)):
        _warn(left_out)
    evaluated = training.eval_iters * sizes.last
    starts_over = not is_limited(config)

    def extend(reach: int) -> Samples:
        further = replace(sampling, reach=reach)
        found = first_rank_first(rank, lambda: dataset(chosen["train"], "train", needed["train"], further))
        assert found is not None
        if (ends := len(found)) < reach:
            then = "starts over" if starts_over else "ends, because all datasets that have a share have been used up"
            _warn(f"after {ends:,} samples, {reach - ends:,} before the last step of this run, its data {then}")
        return found

    return Loader(
        built,
        mesh,
        config.batch.train_micro_batch_size_per_gpu,
        config.data.num_workers,
        samples_per_evaluation=0 if config.data.repeat_eval_samples else evaluated,
        drops_last=config.data.sample_order == "gpt-neox",
        prompt=sampling.prompt,
        references=sampling.references,
        comparison=comparison,
        extend=extend,
        starts_over=starts_over,
    )


def is_limited(config: Config) -> bool:
    """Return whether a run ends when its training data has been read, instead of starting over."""
    return config.data.train_data_max_epochs is not None


def index_folder(config: Config) -> Path:
    """Return the folder of the index files of a run."""
    return Path(config.logging.run_dir, "data", "index")


def sampling_of(config: Config, eod: int, vocab_size: int, rows: int, cache: Path) -> Sampling:
    """Return how a run cuts its sources into samples. The arguments are fields of Sampling."""
    return Sampling(
        config.data,
        config.shape.seq_length,
        config.training.seed,
        eod,
        vocab_size,
        rows,
        cache,
        config.training.train_epochs,
        mixture_of(config.get, len(sources(config.data, config.post_training)["train"])),
        prompt_length(config.soft_prompt),
    )


def training_samples(config: Config, cache: Path, rows: int = 0, reach: int = 0) -> Samples:
    """Return the samples of a run's training data, without its tokenizer. Raises Problems.

    cache: folder of the index files, written if missing. rows: more than the largest token id that will be read. reach:
    as of `Sampling`.
    """
    sampling = replace(sampling_of(config, 0, 0, rows, cache), reach=reach)
    chosen = {"train": sources(config.data, config.post_training)["train"]}
    needed = {"train": BatchSizes.of(config.get).samples_after(config.training.train_iters)}
    require_token_files(chosen)
    found = {"train": first_rank_first(None, lambda: dataset(chosen["train"], "train", needed["train"], sampling))}
    _refuse_empty(found, chosen, needed, sampling)
    assert found["train"] is not None
    return found["train"]


def _is_first(local_rank: int | None) -> bool:
    """Return whether this rank writes or reads files for the others; see `first_rank_first`."""
    if not torch.distributed.is_initialized():
        return True
    return (torch.distributed.get_rank() if local_rank is None else local_rank) == 0


def needed_batches(training: Training, repeat_eval_samples: bool) -> dict[Part, int]:
    """Return how many batches of each split a run reads: as many for evaluation as GPT-NeoX prepares.

    The number decides how often the documents are repeated, and so the order of the samples.
    """
    repeats = repeat_eval_samples or not training.eval_interval
    # + 1: the evaluation after training, which need not fall on an interval.
    evaluations = 1 if repeats else training.train_iters // training.eval_interval + 1
    return {
        "train": training.train_iters, "validation": evaluations * training.eval_iters, "test": training.eval_iters
    }  # fmt: skip


def _refuse_empty(
    parts: Mapping[Part, Samples | None],
    chosen: Mapping[Part, list[Source]],
    needed: Mapping[Part, int],
    sampling: Sampling,
) -> None:
    """Raise Problems if the train split is empty; warn if a split that would be evaluated is empty."""
    for part in chosen:
        if parts[part] is not None or not needed[part]:
            continue
        names = ", ".join(source.prefix for source in chosen[part])
        why = "; ".join(_left_out(chosen[part], sampling)) or "there are too few documents"
        what = (
            f"{names}: the {part} split is empty, because {why}" if names else f"there is no data for the {part} split"
        )
        if part == "train":
            hint = "add documents, or set a different split" if names else "set data_path"
            raise Problems(Problem(what, hint=hint, id="data-part-empty", about=("data_path", "split")))
        if names:
            _warn(what)


def _warn(what: str) -> None:
    """Print a warning on rank 0."""
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        print(f"warning: {what}", flush=True)


def _left_out(chosen: Sequence[Source], sampling: Sampling) -> Iterator[str]:
    """Yield, for each source of which documents are left out, how many and why."""
    if sampling.data.pack_impl == "packed":
        return
    for source in chosen:
        if not tokens_in(source, sampling):
            continue
        one_pass = _one_pass(source, sampling)
        too_long, untrained = one_pass.left_out
        reasons = [
            f"{too_long:,} longer than {one_pass.packing.window:,} tokens (allow_chopped: false)" if too_long else "",
            f"{untrained:,} without a trained token" if untrained else "",
        ]
        if any(reasons):
            total, why = _documents_in(source, sampling), " and ".join(filter(None, reasons))
            yield f"{too_long + untrained:,} of {total:,} documents in {source.prefix} are left out: {why}"


def dataset(chosen: Sequence[Source], part: Part, samples: int, sampling: Sampling) -> Samples | None:
    """Return a data set of at least `samples` samples, blended if there are several sources.

    None if `samples` is 0 or all sources are empty. For training, it has `sampling.reach` samples if that is more and
    the order of the first ones does not change: joined documents of a single source, and all sources in megatron-core's
    order, are shuffled for a given number of samples.
    """
    if part != "train":
        sampling = replace(sampling, reach=0, mixture=None, epochs=None)
    if samples and sampling.mixture:
        return _in_mixture(chosen, samples, sampling.mixture, sampling)
    filled = [source for source in chosen if _has_samples(source, sampling)] if samples else []
    present = [source for source in filled if source.weight != 0]
    if not present:
        return None
    if sampling.epochs:
        built = [_one_epoch(source, sampling) for source in filled]
        reach = max(sampling.epochs * sum(map(len, built)), sampling.reach)
        return in_passes(built, reach, sampling.seed, sampling.cache)
    if sampling.data.sample_order == "gpt-neox":
        # With the sources of weight 0: their samples count in the size of GPT-NeoX's blend.
        return _in_gpt_neox_order(filled, samples, sampling)
    if len(present) == 1:
        single: Samples = _gpt_dataset(present[0], part, samples, sampling)
        return single
    weighted = _weights(present, sampling)
    shares = [weight / added(weighted) for weight in weighted]
    surplus = _settings(sampling, present).mid_level_dataset_surplus
    # The blend may draw one sample more from a source than its share, hence + 1.
    # Rounded up twice, as in megatron-core's own builder.
    sizes = [int(np.ceil(np.ceil(samples * share) * (1 + surplus))) + 1 for share in shares]
    built = [_gpt_dataset(s, part, size, sampling) for s, size in zip(present, sizes, strict=True)]
    blended: Samples = megatron_core.blended(built, shares, samples, _settings(sampling, present))
    return blended


def _in_gpt_neox_order(filled: Sequence[Source], samples: int, sampling: Sampling) -> Samples:
    """Return the samples of sources that have tokens. A list of paths with one entry is a blend in GPT-NeoX, too."""
    if sampling.data.pack_impl != "packed":  # the order of these does not depend on their number
        samples = max(samples, sampling.reach)
    build = [partial(_source_samples, source, sampling) for source in filled]
    if len(filled) == 1 and filled[0].weight is None:
        return build[0](samples)
    identity = [[_identity(source) for source in filled], [sampling.seq_length, sampling.seed]]
    weighted = _weights(filled, sampling)
    return gpt_neox.blend_samples(build, weighted, samples, identity, sampling.cache, sampling.reach)


def _in_mixture(chosen: Sequence[Source], samples: int, mixture: Mixture, sampling: Sampling) -> Samples | None:
    """Return so many samples of sources whose shares change."""
    sizes = [_samples_in(source, sampling) for source in chosen]
    if not any(sizes):
        return None
    found = schedule_of(mixture, _weights(chosen, sampling), sizes, samples, sampling.reach)
    if problem := used_up(found, samples):
        raise Problems(problem)
    # A source without samples has no share.
    built = [_one_epoch(source, sampling) if size else [] for source, size in zip(chosen, sizes, strict=True)]
    return mix_samples(built, found, limits(mixture, sizes), sampling.seed, sampling.cache)


def _samples_in(source: Source, sampling: Sampling) -> int:
    """Return the number of samples in one pass over a source."""
    if sampling.data.pack_impl == "packed":
        return joined_samples(tokens_in(source, sampling), sampling.seq_length)
    return len(_one_pass(source, sampling)) if tokens_in(source, sampling) else 0


def _one_epoch(source: Source, sampling: Sampling) -> Samples:
    if sampling.data.pack_impl != "packed":
        return _one_pass(source, sampling)
    return _source_samples(source, sampling, joined_samples(tokens_in(source, sampling), sampling.seq_length))


def _source_samples(source: Source, sampling: Sampling, samples: int) -> Samples:
    if sampling.data.pack_impl != "packed":
        return in_passes([_one_pass(source, sampling)], samples, sampling.seed, sampling.cache)
    built = gpt_neox.source_samples(
        _file(source.prefix, sampling), _sequences(source, sampling), samples, sampling.seq_length, sampling.seed,
        _identity(source), sampling.cache, _masked_token(sampling),
    )  # fmt: skip
    return replace(built, labels=_labels(source, sampling))


def _one_pass(source: Source, sampling: Sampling) -> whole_documents.DocumentSamples | Pairs | Rated:
    """Return the samples of whole documents of a source, of its pairs or of its rated documents, each once."""
    data = sampling.data
    assert data.pack_impl != "packed"
    packing = whole_documents.Packing(
        data.pack_impl, sampling.seq_length, sampling.seed, data.allow_chopped, sampling.prompt, _masked_token(sampling)
    )
    chosen = whole_documents.document_samples(
        _file(source.prefix, sampling), _labels(source, sampling), source, packing, _identity(source), sampling.cache
    )
    if source.rewards is not None:
        found = rewards.read(source.rewards, len(chosen.file.sequence_lengths))
        # `require_token_files` has refused others.
        assert not isinstance(found, str)
        return Rated(chosen, sampling.references.table((chosen,)), found)
    if source.rejected is None:
        return chosen
    file, labels = _file(source.rejected.prefix, sampling), _labels(source.rejected, sampling)
    # The same documents of the other file.
    rejected = replace(chosen, file=file, labels=labels)
    return Pairs(chosen, sampling.references.table((chosen, rejected)), rejected)


def _has_samples(source: Source, sampling: Sampling) -> bool:
    if sampling.data.pack_impl == "packed" and not sampling.epochs:
        return tokens_in(source, sampling) > 0
    return _samples_in(source, sampling) > 0


def _masked_token(sampling: Sampling) -> int | None:
    """Return the token that does not count toward the loss as an input."""
    return sampling.eod if sampling.data.eod_mask_loss else None


def _labels(source: Source, sampling: Sampling) -> Any:
    return None if source.labels is None else _file(source.labels, sampling, is_label=True)


def _weights(present: Sequence[Source], sampling: Sampling) -> list[float]:
    count = partial(tokens_in, sampling=sampling), partial(_documents_in, sampling=sampling)
    return weights(present, sampling.data, *count)


def tokens_in(source: Source, sampling: Sampling) -> int:
    """Number of tokens of a source."""
    lengths = _file(source.prefix, sampling).sequence_lengths
    return int(lengths[_sequences(source, sampling)].sum(dtype=np.int64))


def _documents_in(source: Source, sampling: Sampling) -> int:
    """Number of sequences of a source, which GPT-NeoX counts as documents."""
    sequences = _sequences(source, sampling)
    return int(sequences.stop - sequences.start)


def _sequences(source: Source, sampling: Sampling) -> slice:
    return source.share.sequences(len(_file(source.prefix, sampling).sequence_lengths))


def _gpt_dataset(source: Source, part: Part, samples: int, sampling: Sampling) -> Any:
    file, sequences = _file(source.prefix, sampling), _sequences(source, sampling)
    return megatron_core.gpt_dataset(file, source.prefix, sequences, samples, part, _settings(sampling, [source]))


def _settings(sampling: Sampling, chosen: Sequence[Source]) -> Any:
    """Return megatron-core's configuration of a data set."""
    identity = {source.prefix: _identity(source) for source in chosen}
    tokenizer = SimpleNamespace(eod=sampling.eod, vocab_size=sampling.vocab_size, unique_identifiers=identity)
    return megatron_core.settings(sampling.data, sampling.seed, sampling.seq_length, tokenizer, sampling.cache)


def _identity(source: Source) -> list[Any]:
    """Return what the sequences of a source depend on, for the names of index files."""
    labels = [str(Path(source.labels).absolute()), *_size_and_time(source.labels)] if source.labels else []
    rejected = _identity(source.rejected) if source.rejected else []
    return [str(Path(source.prefix).absolute()), *source.share, *_size_and_time(source.prefix), *labels, *rejected]


def _size_and_time(prefix: str) -> tuple[int, int]:
    """Size and modification time of the index; they change when a token file is rebuilt under the same name."""
    status = indexed.paths(Path(prefix))[1].stat()
    return status.st_size, status.st_mtime_ns


def _file(prefix: str, sampling: Sampling, is_label: bool = False) -> Any:
    """Return the open token file."""
    if prefix not in sampling.files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from neoxargs.train.batches.samples.checked_file import CheckedFile
        mmap = sampling.data.data_impl in ("infer", "mmap")
        sampling.files[prefix] = CheckedFile(prefix, mmap, sampling.rows, is_label)
        if sampling.data.mmap_warmup:
            _read_through(indexed.paths(Path(prefix))[0])
    return sampling.files[prefix]


def _read_through(path: Path) -> None:
    """Read a file once, which brings it into the page cache."""
    with open(path, "rb", buffering=0) as stream:
        while stream.read(1 << 24):
            pass


def first_rank_first(local_rank: int | None, build: Callable[[], T]) -> T:
    """Return `build()` on every rank, where one rank writes the files that the others then read. Collective.

    local_rank: if given, the first rank of each machine writes; otherwise global rank 0 does.
    """
    if not torch.distributed.is_initialized():
        with megatron_core.as_only_rank():
            return build()
    try:
        if _is_first(local_rank):
            with megatron_core.as_only_rank():
                return build()
    finally:  # after a failure too: the other ranks then fail in the same way instead of hanging in the barrier
        torch.distributed.barrier()
    return build()
