"""Read a file that torch.save wrote, without torch and without running anything that the file names.

A pickle is a program: it can name any function of any module, and unpickling calls it. Here every name is looked up in
a short list. Tensors become a `TensorRef`, which says where in the file their elements are; the few classes that
GPT-NeoX and DeepSpeed store become objects without behaviour; every other name is refused.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.regular_files import is_special
from neoxargs.files.checkpoints.checksums import BLOCK, DAMAGED

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
#: Names of a GPT-NeoX checkpoint's files without `.pt`. torch.save names the folder in the archive after the file.
CHECKPOINT_FILE = re.compile(
    r"layer_\d+-model_\d+-model_states|(?:(?:bf16_)?zero_pp_rank_\d+_)?mp_rank_\d+_?(?:model|optim)_states"
)
#: The local header of a file in a zip archive, up to the lengths of its two fields of variable length.
_LOCAL_HEADER = struct.Struct("<4s22xHH")


class Storage(NamedTuple):
    """An entry of an archive with the elements of tensors."""

    file: Path
    header: int
    """Offset of the entry's header in the file."""
    size: int
    """Bytes of its contents."""
    crc32: int | None
    """Its recorded checksum; None if the archive has no checksums."""

    def position(self, file: IO[bytes]) -> int:
        """Return the offset of the first byte in the open file."""
        # From the local header, because torch pads its extra field to align storages, and the archive's index does not
        # say how much.
        file.seek(self.header)
        signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size).ljust(_LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise unreadable(self.file, "its index of stored tensors is damaged")
        return self.header + _LOCAL_HEADER.size + int(name) + int(extra)


class TensorRef(NamedTuple):
    """A tensor in a file: its storage and its place in that storage."""

    storage: Storage
    dtype: str
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
        steps = zip(self.shape, self.stride, strict=True)
        return 1 + sum((size - 1) * step for size, step in steps) if self.numel else 0

    @property
    def file(self) -> Path:
        return self.storage.file

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow one another in the storage, in the order of the tensor."""
        return self.stride == tuple(prod(self.shape[dimension + 1 :]) for dimension in range(len(self.shape)))

    def elements(self, start: int, count: int) -> bytes:
        """Return `count` elements of the storage, from the tensor's first one + `start` on; fewer if it is truncated.

        Their checksum is not compared: it is that of the whole storage.
        """
        with self.file.open("rb") as file:
            file.seek(self.storage.position(file) + (self.start + start) * self.itemsize)
            return file.read(count * self.itemsize)


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


class _TypedStorage(NamedTuple):
    """The description of a storage in a pickle."""

    storage: Storage
    dtype: str
    itemsize: int
    numel: int


class _Refused(Exception):
    """A name that is not on the list."""


def read(file: Path) -> Any:
    """Return what torch.save wrote to a file; raise Problems if it is damaged or contains a forbidden name."""
    try:
        with _archive(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            # torch.save puts everything into one folder, which it names after the file.
            program = next((name for name in members if name.endswith("/data.pkl") and name.count("/") == 1), None)
            if program is None:
                raise unreadable(file, "it is a zip archive that was not written by torch.save")
            # Elements are read at their offset in the file, which is only possible without compression.
            if members[program].compress_type != zipfile.ZIP_STORED:
                raise unreadable(file, "it is compressed")
            _require_name(file, program.removesuffix("/data.pkl"))
            # torch.save writes 0 everywhere if it computes no checksums, as in deepy's checkpoints.
            has_checksums = any(info.CRC for info in members.values())
            if not has_checksums:
                del members[program].CRC  # without the attribute, zipfile does not compare it
            with archive.open(members[program]) as stream:
                value = _Reader(stream, file, members, program.removesuffix("data.pkl"), has_checksums).load()
                while stream.read(BLOCK):  # zipfile compares the checksum at the end
                    pass
                return value
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


def _archive(file: Path) -> zipfile.ZipFile:
    if is_special(file):  # to open a pipe could wait forever
        raise OSError("it is a pipe or a device, not a regular file")
    return zipfile.ZipFile(file)


def _require_name(file: Path, saved_as: str) -> None:
    """Raise Problems if a file of a checkpoint was saved under the name of another one, as torch.save records."""
    if CHECKPOINT_FILE.fullmatch(saved_as) and CHECKPOINT_FILE.fullmatch(file.stem) and saved_as != file.stem:
        what = f"{file} was saved as {saved_as}{file.suffix}, so it has the contents of a different layer or rank"
        hint = "copy the checkpoint again from its original location; if the file was renamed on purpose, save it again"
        hint += f" with torch.save under its new name, {file.name}"
        raise Problems(Problem(what, hint=hint, id="checkpoint-file-renamed", about=("load",)))


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
        return DAMAGED
    if start == b"PK\x03\x04":
        return "it is truncated: the index at its end is missing"
    if not start:
        return "it is empty"
    if start[:1] == b"\x80":
        return "it is in the format of torch before 1.6; load the file with a newer torch and save it again"
    return "it was not written by torch.save"


class _Reader(pickle.Unpickler):
    """Unpickles plain data and TensorRefs."""

    def __init__(
        self, stream: IO[bytes], file: Path, members: dict[str, zipfile.ZipInfo], root: str, has_checksums: bool
    ) -> None:
        super().__init__(stream, encoding="utf-8")
        self.file, self.members, self.root, self.has_checksums = file, members, root, has_checksums

    def find_class(self, module: str, name: str) -> Any:
        # From Python 2's names, which torch.save writes.
        module, name = NAME_MAPPING.get((module, name), (module, name))
        module = IMPORT_MAPPING.get(module, module)
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if (module, name) in INERT:
            return type(name, (Inert,), {})
        if (module, name) not in _KNOWN:
            raise _Refused(f"{module}.{name}")
        return _KNOWN[module, name]

    # torch's pickles name a storage by ("storage", class, key, device, number of elements); its bytes are in
    # data/<key>.
    def persistent_load(self, pid: Any) -> _TypedStorage:
        kind, (dtype, itemsize), key, _, numel = pid
        info = self.members[f"{self.root}data/{key}"]
        if kind != "storage" or info.compress_type != zipfile.ZIP_STORED or info.file_size < numel * itemsize:
            raise ValueError("storage")
        crc32 = info.CRC if self.has_checksums else None
        return _TypedStorage(Storage(self.file, info.header_offset, info.file_size, crc32), dtype, itemsize, numel)


# Replaces torch's _rebuild_tensor_v2(storage, offset, shape, stride, ...).
def _tensor(of: _TypedStorage, start: int, shape: Sequence[int], stride: Sequence[int], *_: Any) -> TensorRef:
    ref = TensorRef(of.storage, of.dtype, start, tuple(shape), tuple(stride), of.itemsize)
    # A hostile file could otherwise refer to bytes outside of its storage.
    if min(start, *ref.shape, *ref.stride, 0) < 0 or start + ref.span > of.numel:
        raise ValueError("tensor")
    return ref


# Replaces torch's _rebuild_parameter(data, requires_grad, hooks).
def _first(value: Any, *_: Any) -> Any:
    return value


#: Module and name -> its replacement.
_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
}
