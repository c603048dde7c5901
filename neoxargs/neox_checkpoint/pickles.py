"""Read a file that torch.save wrote, without torch and without running anything that the file names.

A pickle is a program: it can name any function of any module, and unpickling calls it. Here every name is looked up in
a short list. Tensors become a `TensorRef`, which says where in the file their elements are; the few classes that
GPT-NeoX and DeepSpeed store become objects without behaviour; every other name is refused.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

from neoxargs.problems import Problem, Problems

#: Class of a storage in torch -> type of its elements and their size in bytes.
STORAGES = {
    "FloatStorage": ("float32", 4), "DoubleStorage": ("float64", 8), "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2), "LongStorage": ("int64", 8), "IntStorage": ("int32", 4),
    "ShortStorage": ("int16", 2), "CharStorage": ("int8", 1), "ByteStorage": ("uint8", 1), "BoolStorage": ("bool", 1),
}  # fmt: skip
#: Classes and functions that GPT-NeoX's checkpoints name besides tensors. Only their arguments and attributes are kept.
INERT = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("argparse", "Namespace"), ("torch", "device"),
    *(("torch", name) for name in ("float32", "float16", "bfloat16", "float", "half")),
    *(("deepspeed.runtime.fp16.loss_scaler", name) for name in ("LossScaler", "DynamicLossScaler")),
    *(("deepspeed.pt.loss_scaler", name) for name in ("LossScaler", "DynamicLossScaler")),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"), ("deepspeed.utils.tensor_fragment", "fragment_address"),
    ("deepspeed.runtime.zero.offload_config", "OffloadDeviceEnum"), ("pathlib", "PosixPath"),
    ("_io", "BytesIO"),  # Transformer Engine's state of fp8, which is empty
}  # fmt: skip
#: The local header of a file in a zip archive, up to the lengths of its two fields of variable length.
_LOCAL_HEADER = struct.Struct("<4s22xHH")


class TensorRef(NamedTuple):
    """A tensor in a file: the position of its storage and its place in that storage."""

    file: Path
    dtype: str
    header: int
    """Offset of the storage's header in the file."""
    start: int
    """Offset of the first element in the storage, in elements."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def span(self) -> int:
        """Number of elements from the first to the last one, including those between them."""
        return (
            1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)) if self.numel else 0
        )

    def position(self, file: IO[bytes]) -> int:
        """Return the offset of the first element in the open file, in bytes."""
        # From the local header, because torch pads its extra field to align storages, and the archive's index does not
        # say how much.
        file.seek(self.header)
        signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size).ljust(_LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise unreadable(self.file, "its index of stored tensors is damaged")
        name, extra = int(name), int(extra)
        return self.header + _LOCAL_HEADER.size + name + extra + self.start * self.itemsize


class Inert:
    """Stands for an object of a class of another program: `args` and `attributes`, no behaviour."""

    args: tuple[Any, ...]
    attributes: dict[str, Any]

    def __new__(cls, *args: Any, **_: Any) -> Inert:
        made = object.__new__(cls)
        made.__dict__.update(args=args, attributes={})
        return made

    def __setstate__(self, state: Any) -> None:
        self.__dict__["attributes"] = dict(state) if isinstance(state, dict) else {}


class _Storage(NamedTuple):
    """The description of a storage in a pickle, with its place in the archive."""

    dtype: str
    itemsize: int
    header: int
    numel: int


class _Refused(Exception):
    """A name that is not on the list."""


def read(file: Path) -> Any:
    """Return what torch.save wrote to a file; raise Problems if it is damaged or contains a forbidden name."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            # torch.save puts everything into one folder, which it names after the file.
            program = next((name for name in members if name.endswith("/data.pkl") and name.count("/") == 1), None)
            if program is None:
                raise unreadable(file, "it is a zip archive that was not written by torch.save")
            # Elements are read at their offset in the file, which is only possible without compression.
            if members[program].compress_type != zipfile.ZIP_STORED:
                raise unreadable(file, "it is compressed")
            if not members[program].CRC:  # torch.save writes 0 if it computes no checksums, as in deepy's checkpoints
                del members[program].CRC  # without the attribute, zipfile does not compare it
            with archive.open(members[program]) as stream:
                return _Reader(stream, file, members, program.removesuffix("data.pkl")).load()
    except Problems:
        raise
    except _Refused as refused:
        raise _refusal(file, str(refused)) from None
    except zipfile.BadZipFile as error:
        raise unreadable(file, _why_no_archive(file, error)) from None
    except OSError as error:
        raise unreadable(file, error.strerror or str(error)) from None
    except Exception as error:  # a damaged pickle can raise any exception
        raise unreadable(file, f"its contents are damaged ({type(error).__name__})") from None


def unreadable(file: Path, why: str) -> Problems:
    """Return the problem of a damaged or foreign file."""
    hint = "copy the checkpoint again from its original location, or set iteration to choose another checkpoint"
    return Problems(Problem(f"{file} cannot be read: {why}", hint=hint, id="checkpoint-file-damaged", about=("load",)))


def _refusal(file: Path, name: str) -> Problems:
    what = f"{file} refers to {name}, which is not a class that GPT-NeoX stores; no code in the file was executed"
    hint = "do not load this file with other programs either, unless you trust whoever wrote it"
    return Problems(Problem(what, hint=hint, id="checkpoint-file-refused", about=("load",)))


def _why_no_archive(file: Path, error: zipfile.BadZipFile) -> str:
    with file.open("rb") as stream:
        start = stream.read(4)
    if "CRC" in str(error):
        return "its contents are damaged: they do not match the recorded checksum"
    if start == b"PK\x03\x04":
        return "it is truncated: the index at its end is missing"
    if not start:
        return "it is empty"
    if start[:1] == b"\x80":
        return "it is in the format of torch before 1.6; load the file with a newer torch and save it again"
    return "it was not written by torch.save"


class _Reader(pickle.Unpickler):
    """Unpickles plain data and TensorRefs."""

    def __init__(self, stream: IO[bytes], file: Path, members: dict[str, zipfile.ZipInfo], root: str) -> None:
        super().__init__(stream, encoding="utf-8")
        self.file, self.members, self.root = file, members, root

    def find_class(self, module: str, name: str) -> Any:
        module, name = NAME_MAPPING.get(
            (module, name), (module, name)
        )  # from Python 2's names, which torch.save writes
        module = IMPORT_MAPPING.get(module, module)
        found = self._known(module, name)
        if found is None:
            raise _Refused(f"{module}.{name}")
        return found

    def _known(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if (module, name) in INERT:
            return type(name, (Inert,), {})
        make = _KNOWN.get((module, name))
        return make(self.file) if make else None

    # torch's pickles name a storage by ("storage", class, key, device, number of elements); its bytes are in
    # data/<key>.
    def persistent_load(self, pid: Any) -> _Storage:
        kind, (dtype, itemsize), key, _, numel = pid
        info = self.members[f"{self.root}data/{key}"]
        if kind != "storage" or info.compress_type != zipfile.ZIP_STORED or info.file_size < numel * itemsize:
            raise ValueError("storage")
        return _Storage(dtype, itemsize, info.header_offset, numel)


def _rebuild_in(file: Path) -> Callable[..., TensorRef]:
    def rebuild(storage: _Storage, start: int, shape: Sequence[int], stride: Sequence[int], *_: Any) -> TensorRef:
        ref = TensorRef(
            file, storage.dtype, storage.header, start, tuple(shape), tuple(stride), storage.itemsize
        )  # fmt: skip
        # A hostile file could otherwise refer to bytes outside of its storage.
        if min(start, *ref.shape, *ref.stride, 0) < 0 or start + ref.span > storage.numel:
            raise ValueError("tensor")
        return ref

    return rebuild


# Replaces torch's _rebuild_parameter(data, requires_grad, hooks).
def _first(value: Any, *_: Any) -> Any:
    return value


#: Module and name -> a function that returns the replacement for it in a file.
_KNOWN: dict[tuple[str, str], Callable[[Path], Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_in,
    ("torch._utils", "_rebuild_parameter"): lambda _: _first,
    ("torch", "Size"): lambda _: tuple,
    ("collections", "OrderedDict"): lambda _: OrderedDict,
    ("builtins", "set"): lambda _: set,
}
