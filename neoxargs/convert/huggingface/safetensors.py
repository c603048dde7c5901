"""Read and write safetensors files one tensor at a time, for models of any size.

The safetensors package writes a file only from tensors that are all in memory, so this module has its own writer. The
format is the header's length, a JSON header with names, types, shapes and offsets, and the data
(https://github.com/huggingface/safetensors, README). Reading uses the package, which reads lazily.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.files.checkpoints.checksums import ChecksumFile, Digest

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class Spec(NamedTuple):
    """Name, shape and type of a tensor that will be written."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """In bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Writer:
    """Writes tensors in the order of `specs`: `with Writer(folder, specs, limit) as writer: writer.add(tensor)`.

    limit: maximum bytes of tensors in one file; a larger tensor gets a file of its own. Several files get an index.
    """

    def __init__(self, folder: Path, specs: Sequence[Spec], limit: int) -> None:
        self.folder, self.specs, self.shards = folder, list(specs), _shards(specs, limit)
        self.file: ChecksumFile | None = None
        #: Name of a file that has been written -> its digest.
        self.digests: dict[str, Digest] = {}
        self.waiting = self._steps()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            assert next(self.waiting, None) is None, "a tensor is missing"
            self._write_index()
        elif self.file:
            self.file.file.close()

    def add(self, tensor: Tensor) -> None:
        """Write the next tensor of `specs`, cast to its type. It must be on the CPU and have the announced shape."""
        spec = next(self.waiting)
        assert tuple(tensor.shape) == spec.shape, (spec.name, tensor.shape, spec.shape)
        assert self.file is not None
        # As bytes, because numpy has no bfloat16.
        self.file.write(tensor.to(spec.dtype).contiguous().view(torch.uint8).numpy().data)

    def _steps(self) -> Iterator[Spec]:
        """Yield the specs in order; before the first spec of a file, open the file and write its header."""
        for number, shard in enumerate(self.shards, 1):
            self.file = ChecksumFile(self.folder / self._name(number))
            self.file.write(_header(shard))
            yield from shard
            self.digests[self._name(number)] = self.file.finish()

    def _name(self, number: int) -> str:
        count = len(self.shards)
        return SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"

    def _write_index(self) -> None:
        if len(self.shards) > 1:
            where = {spec.name: self._name(number) for number, shard in enumerate(self.shards, 1) for spec in shard}
            index = {"metadata": {"total_size": sum(spec.size for spec in self.specs)}, "weight_map": where}
            (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(specs: Sequence[Spec], limit: int) -> list[list[Spec]]:
    shards: list[list[Spec]] = [[]]
    size = 0
    for spec in specs:
        # A file has at least one tensor, however large.
        if shards[-1] and size + spec.size > limit:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.size
    return shards


def _header(shard: Sequence[Spec]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in shard:
        start, end = end, end + spec.size
        table[spec.name] = {"dtype": TYPES[spec.dtype], "shape": spec.shape, "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned to 8 bytes
    return len(text).to_bytes(8, "little") + text


class Reader:
    """Reads the tensors of a Hugging Face folder by name.

    Raises Problems if there are none, or a file cannot be read. Importing compares files with their digests before.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Any] = {}
        self.where: dict[str, Path] = {}
        for file in self._files():
            for name in self._open(file).keys():  # noqa: SIM118 - safe_open has keys(), but is not iterable
                self.where[name] = file

    def read(self, name: str) -> Tensor:
        return self._open(self.where[name]).get_tensor(name)  # type: ignore[no-any-return]

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor; raise Problems if it is not one of TYPES."""
        kind = self._open(self.where[name]).get_slice(name).get_dtype()
        dtype = next((dtype for dtype, code in TYPES.items() if code == kind), None)
        if dtype is None:
            what = f"{self.where[name]}: {name} has type {kind}, but must have type {listed(TYPES.values())}"
            hint = "convert the weights to float32, float16 or bfloat16"
            raise Problems(Problem(what, hint=hint, id="huggingface-weight-type"))
        return dtype

    def _files(self) -> list[Path]:
        index = self.folder / INDEX
        if index.exists():
            try:
                names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise Problems(
                    Problem(f"{index} is not a valid weight index: {error!r}", id="huggingface-index-unreadable")
                ) from error
            return [self.folder / name for name in sorted(names)]
        if (self.folder / SINGLE).exists():
            return [self.folder / SINGLE]
        hint = "to write safetensors files, load the model with transformers and call model.save_pretrained(FOLDER)"
        raise Problems(
            Problem(f"{self.folder} has neither {SINGLE} nor {INDEX}", hint=hint, id="huggingface-weights-missing")
        )

    def _open(self, file: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        if file.name not in self.files:
            try:
                self.files[file.name] = safe_open(file, "pt")
            except (OSError, SafetensorError) as error:
                raise Problems(
                    Problem(f"{file} cannot be read: {error}", id="huggingface-weights-unreadable")
                ) from error
        return self.files[file.name]
