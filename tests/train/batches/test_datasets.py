"""Batches from token files: the contents of each split, their order, and that they do not depend on the layout."""

import multiprocessing
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from neoxargs.base.problems import render
from neoxargs.data.command import build
from neoxargs.data.encode import Recipe
from neoxargs.facts.data import blend
from neoxargs.files.token_files import sources
from neoxargs.files.token_files.sources import Source
from neoxargs.registry.data import Data
from neoxargs.registry.post_training import PostTraining
from neoxargs.train.batches import datasets
from neoxargs.train.batches.datasets import Sampling, build_datasets
from neoxargs.train.batches.loader import Loader, batches, sample_indices
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process.mesh import Axis, Mesh
from tests.support import finetuning
from tests.support.finetuning import TOKENIZER, data_config
from tests.support.ranks import run_ranks
from tests.support.refused import refused
from tests.support.snapshots import pinned

SEQ, ALONE = 8, Mesh()
token_file = partial(finetuning.token_file, stored=np.uint16)


@pytest.fixture(autouse=True, scope="session")
def _megatron() -> None:
    """Ignore megatron-core's warnings about packages that only GPUs need."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        __import__("megatron.core.datasets.gpt_dataset")


def numbered(prefix: Path, count: int, offset: int = 0) -> str:
    """Write documents of 16 tokens, all equal to the document's number, and an end-of-document token."""
    return token_file(prefix, [[offset + i] * 16 + [256] for i in range(count)])


def sampling(folder: Path, **data) -> Sampling:
    return Sampling(Data(**data), SEQ, seed=1, eod=256, vocab_size=257, rows=9999, cache=folder / "index")


def loaded(run_dir: Path, mesh: Mesh = ALONE, **changes) -> Loader:
    return build_datasets(data_config(run_dir, **changes), TOKENIZER, mesh)


def made(chosen: list[Source], samples: int, how: Sampling):
    """Return training samples, built without torch.distributed."""
    return datasets.first_rank_first(None, lambda: datasets.dataset(chosen, "train", samples, how))


def seen(samples, count=None) -> set[int]:
    """Return the numbers of the documents that occur in the samples."""
    tokens = [samples[i]["tokens"].tolist() for i in range(count or len(samples))]
    return {token for row in tokens for token in row} - {256}


class TestParts:
    @pytest.mark.shows("data-path")
    def test_data_path_selects_the_data(self, tmp_path) -> None:
        for offset in (0, 100):
            prefix = numbered(tmp_path / f"data{offset}", 9, offset)
            loader = loaded(tmp_path, data_path=prefix, split="1")
            assert seen(loader.parts["train"]) == set(range(offset, offset + 9))

    @pytest.mark.shows("seq-length")
    def test_samples_are_as_long_as_seq_length(self, tmp_path) -> None:
        prefix = numbered(tmp_path / "data", 100)
        for length in (SEQ, 2 * SEQ):
            loader = loaded(tmp_path, data_path=prefix, seq_length=length)
            assert next(loader.train(0)).tokens.shape == (2, length)

    @pytest.mark.shows("split")
    def test_split_divides_documents_by_its_proportions(self, tmp_path) -> None:
        prefix = numbered(tmp_path / "data", 100)
        loader = loaded(tmp_path, data_path=prefix, split="80,15,5")
        assert seen(loader.parts["train"]) == set(range(80))
        assert seen(loader.parts["validation"]) == set(range(80, 95))
        assert seen(loader.parts["test"]) == set(range(95, 100))
        half = loaded(tmp_path, data_path=prefix, split="1,1")
        assert seen(half.parts["validation"]) <= set(range(50, 100))
        assert not half.has("test")

    @pytest.mark.parametrize(
        ("split", "shares"),
        [
            ("969, 30, 1", [slice(0, 969), slice(969, 999), slice(999, 1000)]), ("1", [slice(0, 1000), None, None]),
            ([0.5, 0, 0.5], [slice(0, 500), None, slice(500, 1000)]),
            ("90/10", [slice(0, 900), slice(900, 1000), None]), ("1_0, 9e1", [slice(0, 100), slice(100, 1000), None]),
            ("1, 1, 1", [slice(0, 334), slice(334, 667), slice(667, 1000)]),
        ],
    )  # fmt: skip
    def test_proportions(self, split, shares) -> None:
        assert [share and share.sequences(1000) for share in sources.split_shares(split)] == shares

    def test_a_split_never_begins_before_the_first_document(self) -> None:
        """GPT-NeoX fails in an assertion here."""
        _, validation, test = sources.split_shares("0, 1, 1")
        assert (validation.sequences(3), test.sequences(3)) == (slice(0, 1), slice(1, 3))

    def test_separate_files(self, tmp_path) -> None:
        paths = {
            f"{part}_data_paths": [numbered(tmp_path / part, 9, 10 * i)]
            for i, part in enumerate(("train", "valid", "test"))
        }
        loader = loaded(tmp_path, **paths)
        assert seen(loader.parts["train"]) == set(range(9))
        assert seen(loader.parts["validation"]) == set(range(10, 19))
        assert seen(loader.parts["test"]) == set(range(20, 29))

    @pytest.mark.shows("eval-iters")
    def test_no_evaluation_needs_no_validation_data(self, tmp_path) -> None:
        prefix = numbered(tmp_path / "data", 100)
        assert loaded(tmp_path, data_path=prefix).has("validation")
        loader = loaded(tmp_path, data_path=prefix, eval_iters=0)
        assert loader.has("train") and not loader.has("validation") and not loader.has("test")
        assert loader.held_out("validation") is None

    def test_an_empty_evaluation_split_is_a_warning(self, tmp_path, capsys) -> None:
        prefix = numbered(tmp_path / "data", 1)
        loader = loaded(tmp_path, data_path=prefix)
        assert loader.has("train") and not loader.has("validation")
        pinned(capsys.readouterr().out)

    def test_little_text_is_repeated_as_often_as_training_needs(self, tmp_path) -> None:
        prefix = numbered(tmp_path / "data", 3)
        loader = loaded(tmp_path, data_path=prefix, split="1", train_iters=100)
        assert len(loader.parts["train"]) >= 400

    def test_data_made_anew_under_the_same_name_is_not_read_with_the_old_index(self, tmp_path) -> None:
        for count in (40, 20):
            prefix = numbered(tmp_path / "data", count)
            loader = loaded(tmp_path, data_path=prefix, split="1")
            assert seen(loader.parts["train"]) == set(range(count))


class TestBlending:
    def shares(self, folder, chosen, samples=400, **data) -> dict[int, float]:
        """Return how often each file is drawn from; all documents of a file have the same number."""
        found = made(chosen, samples, sampling(folder, **data))
        counts = Counter(int(found[i]["tokens"][0]) for i in range(samples))
        return {number: count / samples for number, count in counts.items()}

    @pytest.fixture
    def files(self, tmp_path) -> list[str]:
        return [token_file(tmp_path / f"f{n}", [[n] * 17] * (20 * n)) for n in (1, 2, 3)]

    def test_weights(self, tmp_path, files) -> None:
        chosen = [Source(file, weight=weight) for file, weight in zip(files, (5, 3, 2), strict=True)]
        assert self.shares(tmp_path, chosen) == pytest.approx({1: 0.5, 2: 0.3, 3: 0.2}, abs=0.005)

    def test_a_weight_of_zero_leaves_a_file_out(self, tmp_path, files) -> None:
        chosen = [Source(file, weight=weight) for file, weight in zip(files, (1, 0, 1), strict=True)]
        assert set(self.shares(tmp_path, chosen)) == {1, 3}

    def test_without_weights_every_token_counts_the_same(self, tmp_path, files) -> None:
        expected = {1: 20 / 120, 2: 40 / 120, 3: 60 / 120}
        assert self.shares(tmp_path, [Source(file) for file in files]) == pytest.approx(expected, abs=0.005)

    @pytest.mark.parametrize(("alpha", "shares"), [(1.0, (5 / 22, 8 / 22, 9 / 22)), (0.0, (5 / 12, 4 / 12, 3 / 12))])
    def test_weights_by_documents(self, tmp_path, files, alpha, shares) -> None:
        options = {"weight_by_num_documents": True, "weighted_sampler_alpha": alpha}
        found = self.shares(tmp_path, [Source(file, weight=1.0) for file in files], **options)
        assert found == pytest.approx(dict(zip((1, 2, 3), shares, strict=True)), abs=0.005)

    @pytest.mark.parametrize("samples", [1, 2, 7])
    def test_few_samples(self, tmp_path, files, samples) -> None:
        chosen = [Source(file, weight=1.0) for file in files]
        assert len(made(chosen, samples, sampling(tmp_path))) >= samples

    def test_how_a_blend_is_written(self) -> None:
        assert blend("a") == [("a", None)]
        assert blend("a, b") == [("a", None), ("b", None)]
        assert blend([0.3, "a", "0.7", "b"]) == [("a", 0.3), ("b", 0.7)]

    def test_lists_of_paths_without_weights_are_drawn_from_equally(self) -> None:
        chosen = sources.sources(Data(train_data_paths=["a", "b"], train_data_weights=None), PostTraining())
        assert [source.weight for source in chosen["train"]] == [1.0, 1.0]


class TestOrder:
    @pytest.fixture
    def samples(self, tmp_path):
        chosen = [Source(numbered(tmp_path / "data", 60))]
        return made(chosen, 48, sampling(tmp_path))

    def global_batches(
        self, samples, ranks: int, micro: int, consumed: int = 0, count: int = 3
    ) -> list[list[list[int]]]:
        """Return batches of 12 samples, assembled from all ranks."""
        loaders = [batches(samples, consumed, Axis(ranks, rank), micro) for rank in range(ranks)]
        steps = 12 // (ranks * micro)
        return [
            sorted(row for _ in range(steps) for loader in loaders for row in next(loader).tokens.tolist())
            for _ in range(count)
        ]

    @pytest.mark.parametrize(("ranks", "micro"), [(1, 4), (2, 2), (2, 6), (3, 1), (4, 3)])
    def test_a_global_batch_is_the_same_for_every_layout(self, samples, ranks, micro) -> None:
        assert self.global_batches(samples, ranks, micro) == self.global_batches(samples, 1, 12)

    def test_a_resumed_run_goes_on_where_it_was_on_other_ranks_too(self, samples) -> None:
        whole = self.global_batches(samples, 1, 12)
        assert self.global_batches(samples, 2, 3, consumed=12, count=2) == whole[1:]
        assert whole[0] != whole[1]

    @pytest.mark.shows("seed")
    def test_the_seed_determines_the_weights(self, tmp_path) -> None:
        chosen = [Source(numbered(tmp_path / "data", 60))]
        orders = []
        for seed in (1, 1, 2):
            how = Sampling(Data(), SEQ, seed, 256, 257, 9999, tmp_path / f"index{len(orders)}")
            found = made(chosen, 48, how)
            orders.append([found[i]["tokens"].tolist() for i in range(48)])
        assert orders[0] == orders[1] != orders[2]

    def test_after_the_last_sample_the_first_one_follows(self) -> None:
        indices = sample_indices(5, 4, Axis(), 3)
        assert [next(indices) for _ in range(2)] == [[4, 0, 1], [2, 3, 4]]

    @pytest.mark.parametrize("repeat", [False, True])
    def test_an_evaluation_continues_where_the_last_one_ended_or_repeats_it(self, tmp_path, repeat) -> None:
        options = {"data_path": numbered(tmp_path / "data", 100), "eval_interval": 2, "repeat_eval_samples": repeat}
        loader = loaded(tmp_path, **options)
        # 2 batches of 4 samples, in micro batches of 2
        evaluations = [
            [next(batches).tokens for _ in range(4)] for batches in map(loader.held_out, ["validation"] * 2, range(2))
        ]
        first, second = map(torch.cat, evaluations)
        assert torch.equal(first, second) == repeat
        samples = loader.parts["validation"]
        assert torch.equal(second, torch.stack([samples[i]["tokens"] for i in (range(8) if repeat else range(8, 16))]))

    @pytest.mark.shows("num-workers")
    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork, Python 3.12
    def test_num_workers_processes_read_ahead(self, tmp_path) -> None:
        prefix = numbered(tmp_path / "data", 100)
        for workers in (0, 1, 2):
            before = set(multiprocessing.active_children())  # those of other loaders may be about to end
            running = loaded(tmp_path, data_path=prefix, num_workers=workers).train(0)
            assert next(running).tokens.shape == (2, SEQ)
            assert len(set(multiprocessing.active_children()) - before) == workers
            del running

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork, Python 3.12
    def test_workers_do_not_change_the_batches(self, samples) -> None:
        plain, ahead = batches(samples, 5, Axis(2, 1), 2), batches(samples, 5, Axis(2, 1), 2, workers=2)
        for _ in range(4):
            ours, theirs = next(plain), next(ahead)
            assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.labels, theirs.labels)

    @pytest.mark.slow
    def test_stages_between_first_and_last_read_nothing(self, tmp_path) -> None:
        prefix = numbered(tmp_path / "data", 100)
        for stage, reads in ((0, True), (1, False), (2, True)):
            mesh = Mesh(pipe=Axis(3, stage))
            loader = loaded(tmp_path, mesh, data_path=prefix)
            assert (loader.train(0) is not None) == reads
            assert loader.has("validation")


class TestSamples:
    def test_labels_are_the_next_tokens(self, tmp_path) -> None:
        prefix = token_file(tmp_path / "data", [list(range(200))])
        batch = next(batches(made([Source(prefix)], 9, sampling(tmp_path)), 0, Axis(), 3))
        assert isinstance(batch, MicroBatch)
        assert batch.tokens.shape == batch.labels.shape == (3, SEQ)
        assert batch.tokens.dtype == batch.labels.dtype == torch.int64
        assert torch.equal(batch.labels, batch.tokens + 1)

    @pytest.mark.shows("eod-mask-loss")
    def test_eod_mask_loss_excludes_the_token_after_the_end_of_a_document(self, tmp_path) -> None:
        prefix = token_file(tmp_path / "data", [[1, 2, 3, 256]] * 40)
        plain = made([Source(prefix)], 9, sampling(tmp_path))
        assert not (next(batches(plain, 0, Axis(), 9)).labels == IGNORED).any()
        masked = made([Source(prefix)], 9, sampling(tmp_path, eod_mask_loss=True))
        batch = next(batches(masked, 0, Axis(), 9))
        assert torch.equal(batch.labels == IGNORED, batch.tokens == 256)
        assert (batch.labels == IGNORED).any()

    @pytest.mark.shows("data-impl")
    def test_data_impl_maps_files_or_reads_them(self, tmp_path) -> None:
        readers = {}
        for implementation in ("infer", "mmap", "cached", "lazy"):
            how = sampling(tmp_path, data_impl=implementation)
            prefix = numbered(tmp_path / "data", 40)
            assert seen(made([Source(prefix)], 80, how)) == set(range(40))
            readers[implementation] = type(how.files[prefix].bin_reader).__name__
        mapped, read = "_MMapBinReader", "_FileBinReader"
        assert readers == {"infer": mapped, "mmap": mapped, "cached": read, "lazy": read}

    @pytest.mark.shows("mmap-warmup")
    def test_mmap_warmup_reads_the_file_once(self, tmp_path, monkeypatch) -> None:
        through: list[Path] = []
        monkeypatch.setattr(datasets, "_read_through", through.append)
        prefix = numbered(tmp_path / "data", 40)
        for warm in (False, True):
            made([Source(prefix)], 9, sampling(tmp_path, mmap_warmup=warm))
            assert through == [Path(f"{prefix}.bin")] * warm


class TestProblems:
    def what(self, run_dir, **changes) -> str:
        return render(refused(loaded, run_dir, **changes))

    def test_every_missing_file(self, tmp_path) -> None:
        numbered(tmp_path / "half", 3)
        (tmp_path / "half.idx").unlink()
        pinned(self.what(tmp_path, data_path=f"{tmp_path}/absent,{tmp_path}/half"))

    def test_damaged_files(self, tmp_path) -> None:
        numbered(tmp_path / "data", 9)
        idx, tokens = (tmp_path / name for name in ("data.idx", "data.bin"))
        whole = idx.read_bytes()
        for content, told in {
            b"something else entirely": f"{idx} is not a Megatron index, which starts with MMIDIDX",
            whole[:9] + b"\2" + whole[10:]: (
                f"{idx} has version 2 and token type 8, but must have version 1 and type 8 (uint16) or 4 (int32)"
            ),
            whole[:-3]: f"{idx} is truncated: it has {len(whole) - 3} bytes, but should have {len(whole)}",
            whole[:41]: f"{idx} is truncated: it has 41 bytes, but should have {len(whole)}",  # within a length
        }.items():
            idx.write_bytes(content)
            assert f"data_path ({tmp_path}/data): {told} [data-file-damaged]\n" in self.what(
                tmp_path, data_path=f"{tmp_path}/data"
            )
        idx.write_bytes(whole)
        tokens.write_bytes(tokens.read_bytes()[:-2])
        told = f"{tokens} has {9 * 34 - 2} bytes, but should have {9 * 34} according to its index"
        assert told in self.what(tmp_path, data_path=f"{tmp_path}/data")

    def test_another_vocabulary(self, tmp_path) -> None:
        (tmp_path / "x.txt").write_text("some text")
        build([str(tmp_path / "x.txt")], Recipe("CharLevelTokenizer"), tmp_path / "data")
        pinned(self.what(tmp_path, data_path=f"{tmp_path}/data"))

    def test_nothing_to_train_on(self, tmp_path) -> None:
        prefix = numbered(tmp_path / "data", 2)
        pinned(self.what(tmp_path))
        pinned(self.what(tmp_path, data_path=prefix, split="1,99"))


@pytest.mark.parametrize(
    ("options", "goes_on"),
    [
        ({}, "starts over"),
        ({"sample_order": "megatron-core"}, "starts over"),
        ({"pack_impl": "unpacked"}, ""),
        ({"train_data_mixture": [{"weights": [1]}]}, ""),
        ({"train_data_max_epochs": 1}, "ends, because"),
    ],
)
def test_data_that_has_no_further_samples_says_so(tmp_path, capsys, options, goes_on: str) -> None:
    """Those of a run that leaves out samples: 30 more than the 40 that it was to read, of 42 in a pass."""
    prefix = numbered(tmp_path / "data", 20)
    paths = {f"{split}_data_paths": [prefix] for split in ("train", "valid", "test")}
    where = paths if "train_data_mixture" in options or "train_data_max_epochs" in options else {"data_path": prefix}
    loader = loaded(tmp_path, **where, split="1", train_batch_size=8, train_iters=5, **options)
    capsys.readouterr()
    before, after = loader.parts["train"], loader.reaching(70).parts["train"]
    told = capsys.readouterr().out
    assert goes_on in told and bool(told) == bool(goes_on)
    assert (len(after) >= 70) == (not goes_on)
    for index in range(40):
        assert after[index]["tokens"].tolist() == before[index]["tokens"].tolist()
    assert loader.reaching(40) is loader


def first_batches(folder: str) -> list[list[list[int]]]:
    """Return a rank's tokens of its first two batches, with a shared file system and with one per rank."""
    warnings.simplefilter("ignore")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = []
    for shared in (True, False):
        run_dir = Path(folder, "all" if shared else f"machine{rank}")
        options = {"data_path": [1, f"{folder}/a", 2, f"{folder}/b"], "use_shared_fs": shared}
        loader = build_datasets(data_config(run_dir, **options), TOKENIZER, Mesh(data=Axis(world, rank)), local_rank=0)
        found.append(
            [row for batch, _ in zip(loader.train(0), range(2), strict=False) for row in batch.tokens.tolist()]
        )
    return found


@pytest.mark.slow
def test_ranks_that_build_at_once_agree_with_one_process(tmp_path) -> None:
    for index, name in enumerate("ab"):
        numbered(tmp_path / name, 50, 100 * index)
    options = {"data_path": [1, f"{tmp_path}/a", 2, f"{tmp_path}/b"]}
    alone = loaded(tmp_path / "alone", **options).train(0)
    expected = [row for batch, _ in zip(alone, range(4), strict=False) for row in batch.tokens.tolist()]
    for first, second in zip(*run_ranks(first_batches, 2, str(tmp_path)), strict=True):
        assert first[:2] + second[:2] + first[2:] + second[2:] == expected
    for run_dir in ("all", "machine0", "machine1"):
        assert len(list((tmp_path / run_dir / "data" / "index").glob("*-blend-source.npy"))) == 3


def test_a_failure_of_the_first_rank_does_not_block_the_others(monkeypatch) -> None:
    arrived = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: arrived.append(1))
    with pytest.raises(ZeroDivisionError):
        datasets.first_rank_first(None, lambda: 1 // 0)
    assert arrived


def test_only_megatron_core_sees_a_single_rank_while_files_are_written(monkeypatch) -> None:
    """Other threads and DeepSpeed still see torch itself."""
    from megatron.core.datasets import blended_dataset, gpt_dataset

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    inside = datasets.first_rank_first(
        None, lambda: (torch.distributed.get_rank(), gpt_dataset.torch.distributed.get_rank())
    )
    assert inside == (3, 0)
    assert gpt_dataset.torch is blended_dataset.torch is torch
