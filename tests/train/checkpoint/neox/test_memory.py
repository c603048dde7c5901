"""Reading for one rank of a checkpoint with the shapes of GPT-NeoX-20B needs little more than what the rank keeps."""

from __future__ import annotations

import io
import pickle
import struct
import threading
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.train.checkpoint.neox.weights import NeoxWeights
from tests.support.ranks import run_ranks
from tests.support.small_gpt import small

#: GPT-NeoX-20B, of which each of 4 stages has 11 layers; here each has 2.
HIDDEN, HEADS, LAYERS, ROWS, TENSOR, STAGES = 6144, 64, 8, 50432, 2, 4
BYTES = 2
LAYER = BYTES * 12 * HIDDEN * HIDDEN


def sparse(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write what torch.save writes, with holes of zeros instead of the elements of the tensors.

    torch.save of small tensors gives the pickle and the names; the sizes in it are replaced.
    """
    tensors = {name: torch.empty(shape, dtype=torch.float16, device="meta") for name, shape in shapes.items()}
    program = _program(tensors)
    entries: list[tuple[bytes, int, int]] = []
    with file.open("wb") as stream:
        for name, content, size in [("x/data.pkl", program, len(program))] + [
            (f"x/data/{number}", b"", BYTES * tensor.numel()) for number, tensor in enumerate(tensors.values())
        ]:
            entries.append((name.encode(), stream.tell(), size))
            crc = zipfile.crc32(content)
            stream.write(struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 33, crc, size, size, len(name), 0))
            stream.write(name.encode() + content)
            stream.seek(size - len(content), io.SEEK_CUR)
        start = stream.tell()
        for name_, offset, size in entries:
            crc = zipfile.crc32(program) if offset == 0 else _checksum_of_zeros(size)
            head = struct.pack(
                "<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 33, crc, size, size, len(name_), 0, 0, 0, 0, 0, offset
            )
            stream.write(head + name_)
        end = stream.tell()
        count = len(entries)
        stream.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, end - start, start, 0))


@cache
def _checksum_of_zeros(size: int) -> int:
    found, block = 0, bytes(1 << 20)
    for start in range(0, size, len(block)):
        found = zlib.crc32(block[: size - start], found)
    return found


def _program(tensors: dict[str, torch.Tensor]) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, Stored):
                return ("storage", torch.HalfStorage, str(value.number), "cpu", value.size)
            return None

    class Stored:
        def __init__(self, number: int, size: int) -> None:
            self.number, self.size = number, size

    class Rebuilt:
        def __init__(self, number: int, tensor: torch.Tensor) -> None:
            self.number, self.tensor = number, tensor

        def __reduce__(self) -> Any:
            stored = Stored(self.number, self.tensor.numel())
            arguments = (stored, 0, tuple(self.tensor.shape), self.tensor.stride(), False, {})
            return torch._utils._rebuild_tensor_v2, arguments

    buffer = io.BytesIO()
    value = {name: Rebuilt(number, tensor) for number, (name, tensor) in enumerate(tensors.items())}
    Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue()


def checkpoint(folder: Path) -> None:
    """Write the weights of all ranks, as published."""
    folder.mkdir()
    for rank in range(TENSOR):
        rows, wide = ROWS // TENSOR, 4 * HIDDEN // TENSOR
        norm = {
            f"{name}.{kind}": (HIDDEN,)
            for name in ("input_layernorm", "post_attention_layernorm")
            for kind in ("weight", "bias")
        }
        layer = norm | {
            "attention.query_key_value.weight": (3 * HIDDEN // TENSOR, HIDDEN),
            "attention.query_key_value.bias": (3 * HIDDEN // TENSOR,),
            "attention.dense.weight": (HIDDEN, HIDDEN // TENSOR), "attention.dense.bias": (HIDDEN,),
            "mlp.dense_h_to_4h.weight": (wide, HIDDEN), "mlp.dense_h_to_4h.bias": (wide,),
            "mlp.dense_4h_to_h.weight": (HIDDEN, wide), "mlp.dense_4h_to_h.bias": (HIDDEN,),
        }  # fmt: skip
        layers: dict[int, dict[str, tuple[int, ...]]] = dict.fromkeys(range(2, LAYERS + 2), layer)
        layers[0], layers[LAYERS + 4] = (
            {"word_embeddings.weight": (rows, HIDDEN)},
            {"final_linear.weight": (rows, HIDDEN)},
        )
        layers[LAYERS + 3] = {"norm.weight": (HIDDEN,), "norm.bias": (HIDDEN,)}
        for number, shapes in layers.items():
            sparse(folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt", shapes)
    for number in range(TENSOR * STAGES):
        torch.save({"iteration": 150000, "module": None}, folder / f"mp_rank_{number:02d}_model_states.pt")


def read_stage(folder: str, stage: int) -> tuple[int, int]:
    """Read what one rank of a stage keeps; return the bytes it keeps, and by how much its memory grew at most."""
    config = small(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_kv_heads=HEADS, pos_emb="rotary",
        intermediate_size=4 * HIDDEN, gpt_j_residual=True, no_weight_tying=True,
    )  # fmt: skip
    contents = Contents.at(Path(folder), None)
    assert contents is not None
    weights = NeoxWeights(contents, config)
    kept, grown = [], Growth()
    with grown:
        for name in weights.slices:
            if name.startswith(tuple(f"layers.{stage * 2 + layer}." for layer in range(2))):
                full = weights.full_tensor(name)
                dimension = 1 if name.endswith(("dense.weight", "4h_to_h.weight")) else 0
                kept.append(full.chunk(TENSOR, dimension)[0].clone() if "layernorm" not in name else full)
    return sum(x.numel() * BYTES for x in kept), grown.most


class Growth:
    """Watches the memory of this process in a thread, also while a tensor is being read."""

    def __init__(self) -> None:
        self.process, self.most, self.done = psutil.Process(), 0, threading.Event()
        self.before = self.process.memory_info().rss
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.002):
            self.most = max(self.most, self.process.memory_info().rss - self.before)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_rank_needs_at_most_one_layer_more_than_its_share(tmp_path: Path) -> None:
    checkpoint(tmp_path / "global_step150000")
    kept, most = run_ranks(read_stage, 1, str(tmp_path / "global_step150000"), 1, timeout=250)[0]
    share = 2 * LAYER // TENSOR
    assert abs(kept - share) < 0.01 * share
    assert most < kept + LAYER
    assert most > kept  # the memory was watched
