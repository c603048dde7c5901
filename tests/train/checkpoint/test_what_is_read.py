"""A rank that resumes in another layout reads what it owns, and opens few files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import reduce
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neoxargs.train.checkpoint import inventory, relayout
from neoxargs.train.checkpoint.slices import Slice
from neoxargs.train.checkpoint.weights_by_name import OptimizerFile, SavedWeights
from neoxargs.train.deepspeed.optimizer_layout import OptimizerLayout, Piece, optimizer_layout
from neoxargs.train.parallel.layers import TensorShard, rank_slice
from neoxargs.train.process import mesh, setup
from tests.support.layouts import BF16, TENSOR
from tests.support.ranks import run_ranks
from tests.support.relayout import write
from tests.support.trials import Training, Trial, staged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WIDE = {"hidden_size": 64, "num_layers": 3}
SAVED = {"dp4 ZeRO-1": staged(1, WIDE), "dp4 ZeRO-1, bf16": Trial(WIDE, BF16 | {"zero_optimization": {"stage": 1}})}
LOADED = {
    "tp2 dp2": (Trial(WIDE | TENSOR), "dp4 ZeRO-1"),
    "tp2 dp2 ZeRO-1": (staged(1, WIDE | TENSOR), "dp4 ZeRO-1"),
    "dp4 ZeRO-3": (staged(3, WIDE), "dp4 ZeRO-1"),
    "tp2 dp2, bf16": (Trial(WIDE | TENSOR, BF16 | {"zero_optimization": {"stage": 1}}), "dp4 ZeRO-1, bf16"),
}


class Reads(TorchDispatchMode):
    """Notes the storages of the tensors that operators read, and the bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[torch.UntypedStorage, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        if not any(value.alias_info and not value.alias_info.is_write for value in schema.returns):  # not a view
            written = [argument.alias_info and argument.alias_info.is_write for argument in schema.arguments]
            read = [value for value, is_written in zip(args, written, strict=False) if not is_written]
            for tensor in filter(torch.is_tensor, tree_leaves(read)):
                self.noted.append((tensor.untyped_storage(), tensor.numel() * tensor.element_size()))
        return func(*args, **(kwargs or {}))

    def of(self, saved: SavedWeights) -> int:
        """Return the bytes that were read of the files of a checkpoint."""
        tensors = filter(torch.is_tensor, tree_leaves([saved.files, saved.optimizer_files]))
        storages = {tensor.untyped_storage()._cdata for tensor in tensors}
        return sum(size for storage, size in self.noted if storage._cdata in storages)


def owned(training: Training) -> int:
    """Return the bytes of this rank's weights, fp32 weights and Adam's two moments."""
    layout = optimizer_layout(training.engine.deepspeed)
    assert layout is not None
    weights = [] if layout.kind == "zero3" else [*training.engine.deepspeed.module.parameters()]
    # An optimizer without copies has the weights themselves.
    copies = sum(piece.length for piece in layout.pieces) * (2 if layout.kind == "whole" else 3)
    return sum(weight.numel() * weight.element_size() for weight in weights) + 4 * copies


def whole(self: SavedWeights, name: str, own: Slice, rows: range, *rest: Any) -> Tensor:
    """The fault: every weight is assembled before it is cut."""
    full = REAL(self, name, Slice(own.full), range(own.full[0]), *rest).clone()
    return reduce(rank_slice, own.shards, full)[rows.start : rows.stop]


REAL: Callable[..., Tensor] = SavedWeights.rows


def read(root: str, fault: bool) -> dict[str, tuple[int, int, int, int]]:
    """Return for each layout the bytes that this rank owns and has read, and the numbers of files that it opened."""
    process = setup.start("gloo", seed=1)
    found = {}
    for name, (trial, source) in LOADED.items():
        training, made = Training(trial, warmup=0.2, activation="swiglu", load=f"{root}/{source}"), []
        indices: list[Path] = []

        def content(path: Path, indices: list[Path] = indices) -> Any:
            indices.append(path)
            return CONTENT(path)

        class Kept(SavedWeights):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                made.append(self)  # noqa: B023

        with (
            patch.object(relayout, "SavedWeights", Kept),
            patch.object(inventory, "_content", content),
            patch.object(SavedWeights, "rows", whole if fault else REAL),
            Reads() as reads,
        ):
            training.load(process)
        found[name] = owned(training), reads.of(made[0]), len(made[0].files), len(indices)
        made.clear()
        mesh.destroy_groups()
    return found


CONTENT = inventory._content


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("saved"))
    run_ranks(write, 4, SAVED, root, timeout=200)
    return root


def test_four_ranks_read_what_they_own(checkpoints: str) -> None:
    ranks = run_ranks(read, 4, checkpoints, False, timeout=200)
    for name in LOADED:
        for owned_bytes, read_bytes, opened, _ in (rank[name] for rank in ranks):
            # More: parts of rows.
            assert owned_bytes <= read_bytes <= 1.1 * owned_bytes, name
            assert opened <= 5, name  # of the weights, and of four optimizer files
        # Each index is read by one rank, and a rank also looks at the one that would be its own.
        assert sum(rank[name][3] for rank in ranks) <= 4 + 4, name


def test_a_rank_that_assembles_weights_is_noticed(checkpoints: str) -> None:
    for rank in run_ranks(read, 4, checkpoints, True, timeout=200):
        for name, (owned_bytes, read_bytes, *_) in rank.items():
            assert read_bytes > 1.8 * owned_bytes, name


def weights_of_20b(tensor: int) -> dict[str, tuple[list[int], TensorShard | None]]:
    """Name -> the shape of the slice of a tensor parallel rank, and how it is cut: GPT-NeoX-20B."""
    hidden, found = 6144, {}

    def add(name: str, shape: list[int], dimension: int | None = None) -> None:
        shard = None if dimension is None else TensorShard(dimension, 1, 0, tensor)
        found[name] = Slice(shape, [shard] if shard else []).shape, shard

    add("embedding", [50432, hidden], 0)
    for layer in range(44):
        for norm in range(4):
            add(f"{layer}.norm.{norm}", [hidden])
        for part, rows, columns in (("qkv", 3, 1), ("dense", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            cut = 0 if part in ("qkv", "up") else 1
            add(f"{layer}.{part}.weight", [rows * hidden, columns * hidden], cut)
            add(f"{layer}.{part}.bias", [rows * hidden], 0 if cut == 0 else None)
    add("output", [50432, hidden], 0)
    return found


def partition(weights: dict[str, Any], rank: int, ranks: int) -> tuple[list[Piece], int]:
    """Return the pieces that a data parallel rank updates, as ZeRO-1 cuts the weights, and their number of elements."""
    sizes = {name: prod(shape) for name, (shape, _) in weights.items()}
    length = -(-sum(sizes.values()) // ranks)
    first, end, begin, pieces = rank * length, (rank + 1) * length, 0, []
    for name, size in sizes.items():
        low, high = max(begin, first), min(begin + size, end)
        if low < high:
            pieces.append(Piece(name, 0, low - first, low - begin, high - low))
        begin += size
    return pieces, length


class Simulated(SavedWeights):
    """A checkpoint of 8 x 128 ranks in bf16 with ZeRO-1, whose files have no contents."""

    TENSOR, DATA = 8, 128

    def __init__(self) -> None:
        inventories = []
        weights = weights_of_20b(self.TENSOR)
        for tensor in range(self.TENSOR):
            entries = {
                name: [f"mp_rank_{tensor:02d}", name, shape, shard and [*shard._replace(rank=tensor)]]
                for name, (shape, shard) in weights.items()
            }
            for data in range(self.DATA):
                inventories.append({
                    "kind": "zero-bf16", "dtype": "torch.bfloat16", "complete": True, "states": f"mp_rank_{tensor:02d}",
                    "optimizer": f"zero_pp_rank_{data}_mp_rank_{tensor:02d}", "weights": entries,
                    "pieces": partition(weights, data, self.DATA)[0],
                })  # fmt: skip
        self.length = partition(weights, 0, self.DATA)[1]
        self.shapes = {name: shape for name, (shape, _) in weights.items()}
        super().__init__(Path("simulated"), inventories)

    def _file(self, name: str) -> Any:
        if name not in self.files:
            self.files[name] = {key: torch.empty(shape, dtype=self.dtype) for key, shape in self.shapes.items()}
        return self.files[name]

    def optimizer_file(self, inventory: Any) -> OptimizerFile:
        name, flat = inventory["optimizer"], torch.empty(self.length)
        states = {0: {"step": 5, "exp_avg": flat, "exp_avg_sq": flat}}
        return self.optimizer_files.setdefault(name, OptimizerFile([flat], states, [], {}))


def test_a_rank_of_1024_reads_what_it_owns() -> None:
    """The checkpoint of 8 x 128 ranks is loaded by 4 x 256 ranks: what rank 100 of its replicas reads."""
    tensor, data, rank = 4, 256, 100
    with torch.device("meta"), Reads() as reads:
        saved, weights = Simulated(), weights_of_20b(tensor)
        pieces, length = partition(weights, rank, data)
        optimizer = SimpleNamespace(state=defaultdict(dict))
        layout = OptimizerLayout("zero-bf16", optimizer, [torch.empty(length)], pieces)
        for name, (shape, shard) in weights.items():
            weight: Any = torch.nn.Parameter(torch.empty(shape, dtype=torch.bfloat16), requires_grad=False)
            if shard:
                weight.tensor_shard = shard
            own = [piece for piece in pieces if piece.name == name]
            relayout._Loader(saved, layout, name, weight, own).load(with_optimizer=True)
    owned_bytes = sum(2 * prod(shape) for shape, _ in weights.values()) + 12 * length
    assert owned_bytes == pytest.approx(10.5e9, rel=0.01)
    read_bytes = reads.of(saved)
    assert owned_bytes <= read_bytes < 1.01 * owned_bytes
    # Two files of weights, and of each of the two tensor parallel ranks those of the elements that it owns, of about
    # 128: its partition is half as long as theirs.
    assert len(saved.files) == tensor // 2 and len(saved.optimizer_files) <= 6
