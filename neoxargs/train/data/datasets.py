"""Data sets of samples from token files, in GPT-NeoX's order (gpt_neox.py) or megatron-core's (`sample_order`).

Rank 0 (or the first rank of every machine, without a shared file system) writes index files that say which tokens make
which sample; the other ranks read them. megatron-core is imported inside functions, because importing it warns about
packages that this trainer does not use.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray

from neoxargs.problems import Problem, Problems
from neoxargs.registry.data import Data
from neoxargs.registry.training import Training
from neoxargs.resolve.config import Config
from neoxargs.train.data import gpt_neox, indexed
from neoxargs.train.data.build import summary_of
from neoxargs.train.data.loader import Loader, Part, Samples
from neoxargs.train.data.sources import PARTS, Source, sources
from neoxargs.train.data.tokenizer import Tokenizer
from neoxargs.train.process.mesh import Mesh
from neoxargs.train.soft_prompt import prompt as soft_prompt

T = TypeVar("T")


@dataclass(frozen=True)
class Sampling:
    """Everything that determines how a source is cut into samples."""

    data: Data
    seq_length: int
    seed: int
    eod: int
    """Token id that ends a document."""
    vocab_size: int
    cache: Path
    """Folder of the index files."""
    files: dict[str, Any] = field(default_factory=dict)
    """Prefix -> open token file."""


def build_datasets(
    config: Config, tokenizer: Tokenizer, mesh: Mesh, local_rank: int = 0, parts: Sequence[Part] = PARTS
) -> Loader:
    """Build the train, validation and test data of the run, or only some of them. Collective: every rank calls it.

    local_rank: this rank's number on its machine.
    Raises Problems if a token file is missing, damaged or made with another vocabulary, or the train split is empty.
    """
    training, cache = config.training, Path(config.logging.run_dir, "data", "index")
    sampling = Sampling(config.data, config.shape.seq_length, training.seed, tokenizer.eod, tokenizer.vocab_size, cache)
    needed = {
        part: count * config.batch.train_batch_size if part in parts else 0
        for part, count in needed_batches(training, config.data.repeat_eval_samples).items()
    }
    chosen = sources(config.data)
    _require_token_files(chosen, tokenizer.vocab_size)
    built = first_rank_first(
        None if config.data.use_shared_fs else local_rank,
        lambda: {part: dataset(chosen[part], part, needed[part], sampling) for part in PARTS},
    )
    _refuse_empty(built, chosen, needed)
    evaluated = training.eval_iters * config.batch.train_batch_size
    return Loader(
        built,
        mesh,
        config.batch.train_micro_batch_size_per_gpu,
        config.data.num_workers,
        samples_per_evaluation=0 if config.data.repeat_eval_samples else evaluated,
        drops_last=config.data.sample_order == "gpt-neox",
        prompt=soft_prompt.length(config.soft_prompt),
    )


def needed_batches(training: Training, repeat_eval_samples: bool) -> dict[Part, int]:
    """Return how many batches of each split a run reads: as many for evaluation as GPT-NeoX prepares.

    The number decides how often the documents are repeated, and so the order of the samples.
    """
    repeats = repeat_eval_samples or not training.eval_interval
    evaluations = 1 if repeats else training.train_iters // training.eval_interval + 1
    return {
        "train": training.train_iters, "validation": evaluations * training.eval_iters, "test": training.eval_iters
    }  # fmt: skip


def _refuse_empty(
    parts: Mapping[Part, Samples | None], chosen: Mapping[Part, list[Source]], needed: Mapping[Part, int]
) -> None:
    """Raise Problems if the train split is empty; warn if a split that would be evaluated is empty."""
    for part in PARTS:
        if parts[part] is not None or not needed[part]:
            continue
        names = ", ".join(source.prefix for source in chosen[part])
        what = (
            f"{names}: the {part} split is empty, because there are too few documents"
            if names
            else f"there is no data for the {part} split"
        )
        if part == "train":
            hint = "add documents, or set a different split" if names else "set data_path"
            raise Problems(Problem(what, hint=hint, id="data-part-empty", about=("data_path", "split")))
        if not names:
            continue
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            print(f"warning: {what}", flush=True)


def _require_token_files(chosen: Mapping[Part, Sequence[Source]], vocab_size: int) -> None:
    """Raise Problems unless every token file is intact and, if its summary exists, has this vocabulary size."""
    problems = []
    for prefix in dict.fromkeys(source.prefix for part in chosen.values() for source in part):
        if damage := indexed.damage(Path(prefix)):
            hint = f"tokenise the text again: deepy data TEXT --output-prefix {prefix}"
            problems.append(
                Problem(f"data_path ({prefix}): {damage}", hint=hint, id="data-file-damaged", about=("data_path",))
            )
            continue
        summary = summary_of(prefix)
        if summary and summary.vocab_size != vocab_size:
            made = f"was tokenised by {summary.tokenizer_type} with a vocabulary of {summary.vocab_size} tokens"
            hint = "use the tokenizer that tokenised the data, or tokenise the text again"
            what = f"data_path ({prefix}) {made}, but this run's tokenizer has {vocab_size}"
            problems.append(Problem(what, hint=hint, id="data-other-tokenizer", about=("data_path", "tokenizer_type")))
    if problems:
        raise Problems(problems)


def dataset(chosen: Sequence[Source], part: Part, samples: int, sampling: Sampling) -> Samples | None:
    """Return a data set of at least `samples` samples, blended if there are several sources.

    None if `samples` is 0 or all sources are empty.
    """
    filled = [source for source in chosen if tokens_in(source, sampling)] if samples else []
    present = [source for source in filled if source.weight != 0]
    if not present:
        return None
    if sampling.data.sample_order == "gpt-neox":
        return _in_gpt_neox_order(filled, samples, sampling)
    if len(present) == 1:
        single: Samples = _gpt_dataset(present[0], part, samples, sampling)
        return single
    weights = _normal(_weights(present, sampling))
    surplus = _settings(sampling, present).mid_level_dataset_surplus
    # The blend may draw one sample more from a source than its share, hence + 1.
    sizes = [int(np.ceil(np.ceil(samples * weight) * (1 + surplus))) + 1 for weight in weights]
    built = [_gpt_dataset(s, part, size, sampling) for s, size in zip(present, sizes, strict=True)]
    from megatron.core.datasets.blended_dataset import BlendedDataset

    blended: Samples = BlendedDataset(built, weights, samples, _settings(sampling, present))
    return blended


def _in_gpt_neox_order(filled: Sequence[Source], samples: int, sampling: Sampling) -> Samples:
    """Return the samples of sources that have tokens. A list of paths with one entry is a blend in GPT-NeoX, too."""
    build = [partial(_source_samples, source, sampling) for source in filled]
    if len(filled) == 1 and filled[0].weight is None:
        return build[0](samples)
    identity = [_identity(source) for source in filled]
    settings = [sampling.seq_length, sampling.seed]
    return gpt_neox.blend_samples(build, _weights(filled, sampling), samples, [identity, settings], sampling.cache)


def _source_samples(source: Source, sampling: Sampling, samples: int) -> gpt_neox.SourceSamples:
    return gpt_neox.source_samples(
        _file(source.prefix, sampling), _sequences(source, sampling), samples, sampling.seq_length, sampling.seed,
        _identity(source), sampling.cache, sampling.eod if sampling.data.eod_mask_loss else None,
    )  # fmt: skip


def _weights(present: Sequence[Source], sampling: Sampling) -> list[float]:
    if sampling.data.weight_by_num_documents:
        counts = [_documents_in(source, sampling) for source in present]
        return gpt_neox.document_weights(counts, sampling.data.weighted_sampler_alpha)
    return [float(tokens_in(source, sampling)) if source.weight is None else float(source.weight) for source in present]


def _normal(weights: list[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


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
    from megatron.core.datasets.gpt_dataset import GPTDataset
    from megatron.core.datasets.utils import Split

    sequences = _sequences(source, sampling)
    indices: NDArray[np.int32] = np.arange(sequences.start, sequences.stop, dtype=np.int32)
    split = {"train": Split.train, "validation": Split.valid, "test": Split.test}[part]
    settings = _settings(sampling, [source])
    return GPTDataset(_file(source.prefix, sampling), source.prefix, indices, samples, split, settings)


def _settings(sampling: Sampling, chosen: Sequence[Source]) -> Any:
    """Return megatron-core's configuration of a data set.

    megatron-core hashes `tokenizer` into the names of the index files. It therefore carries everything they depend on
    that megatron-core does not hash itself: the share of each source, and size and time of its token file.
    """
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    identity = {source.prefix: _identity(source) for source in chosen}
    data = sampling.data
    return GPTDatasetConfig(
        random_seed=sampling.seed,
        sequence_length=sampling.seq_length,
        blend_per_split=[([source.prefix for source in chosen], None)] * 3,
        path_to_cache=str(sampling.cache),
        mmap_bin_files=data.data_impl in ("infer", "mmap"),
        tokenizer=SimpleNamespace(eod=sampling.eod, vocab_size=sampling.vocab_size, unique_identifiers=identity),
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
        eod_mask_loss=data.eod_mask_loss,
        create_attention_mask=False,
    )


def _identity(source: Source) -> list[Any]:
    """Return what the sequences of a source depend on, for the names of index files."""
    return [str(Path(source.prefix).absolute()), *source.share, *_stamp(source.prefix)]


def _stamp(prefix: str) -> tuple[int, int]:
    """Size and modification time of the index; they change when a token file is rebuilt under the same name."""
    status = indexed.paths(Path(prefix))[1].stat()
    return status.st_size, status.st_mtime_ns


def _file(prefix: str, sampling: Sampling) -> Any:
    """Return the open token file."""
    if prefix not in sampling.files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core.datasets.indexed_dataset import IndexedDataset
        sampling.files[prefix] = IndexedDataset(prefix, mmap=sampling.data.data_impl in ("infer", "mmap"))
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
        with _as_only_rank():
            return build()
    rank = torch.distributed.get_rank() if local_rank is None else local_rank
    try:
        if rank == 0:
            with _as_only_rank():
                return build()
    finally:  # after a failure too: the other ranks then fail in the same way instead of hanging in the barrier
        torch.distributed.barrier()
    return build()


@contextmanager
def _as_only_rank() -> Iterator[None]:
    """Within this, megatron-core takes this process for the only rank, so that it writes index files.

    megatron-core 0.16 writes them on global rank 0 only, and calls `torch.distributed.get_rank` even without a process
    group. Only its two data set modules see the replaced `torch`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import blended_dataset, gpt_dataset
    for module in (blended_dataset, gpt_dataset):
        module.torch = _TorchOfOneRank()
    try:
        yield
    finally:
        for module in (blended_dataset, gpt_dataset):
            module.torch = torch


class _TorchOfOneRank:
    """The torch module, except that torch.distributed reports no process group and rank 0."""

    distributed = SimpleNamespace(is_initialized=lambda: False, get_rank=lambda: 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
