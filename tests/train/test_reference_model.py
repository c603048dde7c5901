"""Which answers the reference model has to rate: every one that the run reads, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.files.token_files.sources import Source
from neoxargs.registry.data import Data
from neoxargs.train.batches import datasets
from neoxargs.train.batches.datasets import Sampling
from neoxargs.train.batches.loader import Loader
from neoxargs.train.process.mesh import ALONE, Mesh
from neoxargs.train.reference_model import missing
from tests.support.finetuning import IGNORED, token_file

pytestmark = pytest.mark.filterwarnings("ignore")  # of megatron-core, when it is imported


def pairs(folder: Path, name: str, token: int, weight: float = 1.0) -> Source:
    """Write four pairs, of the same lengths whatever the token is."""
    documents = [[token] * length for length in (2, 3, 4, 5)]
    chosen, rejected = (token_file(folder / f"{name}_{answer}", documents) for answer in ("chosen", "rejected"))
    return Source(chosen, weight=weight, rejected=Source(rejected))


def loader(folder: Path, chosen: list[Source], samples: int) -> Loader:
    options = Data(pack_impl="unpacked", dataset_impl="pairwise")
    sampling = Sampling(options, 6, 1, eod=0, vocab_size=99, rows=99, cache=folder / "index")
    data = datasets.first_rank_first(None, lambda: datasets.dataset(chosen, "train", samples, sampling))
    return Loader({"train": data}, Mesh(ALONE, ALONE, ALONE, ALONE), 1, references=sampling.references)


def test_a_blend_reads_its_largest_source_more_than_once(tmp_path: Path) -> None:
    """The sizes of the small sources are rounded up, and the blend has too few samples of the large one."""
    chosen = [pairs(tmp_path, "large", 1, 0.9), *(pairs(tmp_path, f"small{i}", 2 + i, 0.01) for i in range(10))]
    data = loader(tmp_path, chosen, 100)
    blend = data.parts["train"]
    assert blend.index[blend.source == 0].max() >= len(blend.sources[0])
    read = {tuple(blend[index]["tokens"].flatten().tolist()) for index in range(len(blend))}
    assert len(missing(data)) == len(read)


def test_files_with_documents_of_the_same_lengths_have_tables_of_their_own(tmp_path: Path) -> None:
    one, other = (pairs(tmp_path, f"pairs{token}", token) for token in (1, 2))
    labels = token_file(tmp_path / "labels", [[IGNORED, *[1] * length] for length in (1, 2, 3, 4)])
    again = one._replace(labels=labels, rejected=one.rejected._replace(labels=labels))
    data = loader(tmp_path, [one, other, again], 12)
    assert len(missing(data)) == 12
    for sample in missing(data):
        sample.entry[:] = -1.0
    moved, unknown = (loader(tmp_path, [pairs(tmp_path / "moved", "pairs", token)], 4) for token in (1, 3))
    for copy in (moved, unknown):
        copy.references.restore(data.references.tables)
    assert len(missing(moved)) == 0 and len(missing(unknown)) == 4
