"""Files that torch.save wrote are read without torch; what a hostile or damaged file says is not run."""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neoxargs.base.problems import Problems
from neoxargs.files.neox_checkpoint.optimizer import Part
from neoxargs.files.neox_checkpoint.pickles import Inert, TensorRef, read
from neoxargs.train.checkpoint.neox.tensors import read_parts, read_tensor
from tests.support.refused import refused
from tests.support.snapshots import pinned


class Call:
    """Pickles to a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def saved(folder: Path, value: Any) -> Path:
    file = folder / "mp_rank_00_model_states.pt"
    torch.save(value, file)
    return file


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3).t(), torch.arange(12)[4:8], torch.tensor(3.5),
        torch.randn(3, 5).bfloat16(), torch.randn(4).half(), torch.empty(0, 3), torch.ones(2, dtype=torch.bool),
        torch.nn.Parameter(torch.ones(2)),
    ],
)  # fmt: skip
def test_tensors_of_every_kind(tmp_path: Path, tensor: torch.Tensor) -> None:
    found = read(saved(tmp_path, {"a": torch.zeros(7), "b": tensor}))["b"]
    assert isinstance(found, TensorRef)
    assert torch.equal(read_tensor(found), tensor.detach())


def test_what_gpt_neox_stores_besides_tensors_is_plain_or_without_behaviour(tmp_path: Path) -> None:
    value = {
        "sizes": [OrderedDict(a=torch.Size([2, 3]))], "names": {"x"}, "numpy": np.random.get_state(),
        "args": argparse.Namespace(num_layers=2), "none": None,
    }  # fmt: skip
    found = read(saved(tmp_path, value))
    assert found["sizes"] == [{"a": (2, 3)}] and found["names"] == {"x"} and found["none"] is None
    assert isinstance(found["args"], Inert) and found["args"].attributes == {"num_layers": 2}
    assert isinstance(found["numpy"][1], Inert)


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "posix.system": lambda mark: Call(os.system, f"touch {mark}"),
    "builtins.eval": lambda mark: Call(eval, f"open({str(mark)!r}, 'w')"),
    "builtins.getattr": lambda mark: Call(getattr, "", "upper"),
    "subprocess.Popen": lambda mark: Call(subprocess.Popen, ["touch", str(mark)]),
    "torch._utils._rebuild_tensor": lambda mark: Call(torch._utils._rebuild_tensor, 1, 2),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name_and_nothing_runs(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    file = saved(tmp_path, {"iteration": HOSTILE[name](mark)})
    (problem,) = refused(read, file)
    assert problem.id == "checkpoint-file-refused" and f"{file} refers to {name}," in problem.what
    assert not mark.exists()


def test_an_object_of_the_file_cannot_point_to_another_file(tmp_path: Path) -> None:
    """A pickle may set the attributes of an object it has made; a TensorRef has none that can be set."""
    file = saved(tmp_path, {"a": torch.ones(2)})
    with zipfile.ZipFile(file) as archive:
        program = archive.read("mp_rank_00_model_states/data.pkl")
    tensor = program[program.index(b"ctorch._utils") : program.rindex(b"u.") if b"u." in program else -2]
    change = pickle.dumps({"file": "/etc/passwd"}, protocol=2)[2:-1]
    changed = tmp_path / "changed.pt"
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(changed, "w") as copy:
        for name in archive.namelist():
            new = (
                b"\x80\x02" + tensor.rstrip(b"s") + change + b"b." if name.endswith("data.pkl") else archive.read(name)
            )
            copy.writestr(name, new)
    pinned(refused(read, changed))


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def foreign_archive(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "hello")


def compressed(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", pickle.dumps({}))


def flipped_index(file: Path) -> None:
    """Flip a bit in the first entry of the archive's index."""
    data = bytearray(file.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 1] ^= 1
    file.write_bytes(bytes(data))


def flipped_program(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[data.index(b"_rebuild_tensor_v2") + 3] ^= 1
    file.write_bytes(bytes(data))


def older_format(file: Path) -> None:
    torch.save({}, file, _use_new_zipfile_serialization=False)


def text(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\n")


DAMAGE = {
    truncated: "it is truncated: the index at its end is missing",
    empty: "it is empty",
    foreign_archive: "it is a zip archive that was not written by torch.save",
    compressed: "it is compressed",
    flipped_index: "cannot be read",
    flipped_program: "they do not match the recorded checksum",
    older_format: "it is in the format of torch before 1.6",
    text: "it was not written by torch.save",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_a_problem_with_its_name(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    file = saved(tmp_path, {"a": torch.ones(300)})
    damage(file)
    (problem,) = refused(read, file)
    assert problem.id == "checkpoint-file-damaged"
    assert problem.what.startswith(f"{file} cannot be read") and DAMAGE[damage] in problem.what


def test_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    """As deepy writes its checkpoints, whose checksums are in files.json."""
    torch.serialization.set_crc32_options(False)
    try:
        file = saved(tmp_path, {"a": torch.arange(4)})
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_tensor(read(file)["a"]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("part", [False, True], ids=["whole tensor", "part of a vector"])
@pytest.mark.parametrize("byte", [0, 599, 1199])
def test_changed_bytes_of_a_tensor_are_damage(tmp_path: Path, part: bool, byte: int) -> None:
    """Whichever part of a vector is read: the checksum is that of the whole vector."""
    file = saved(tmp_path, {"a": torch.ones(300), "b": torch.ones(3)})
    refs = read(file)
    with file.open("r+b") as stream:
        stream.seek(refs["a"].storage.position(stream) + byte)
        stream.write(b"\x07")
    assert torch.equal(read_tensor(refs["b"]), torch.ones(3))
    with pytest.raises(Problems, match="do not match the recorded checksum") as raised:
        read_parts([Part(refs["a"], 100, 7)]) if part else read_tensor(refs["a"])
    assert raised.value.problems[0].id == "checkpoint-file-damaged"


def test_a_zero_checksum_is_compared_if_others_are_recorded(tmp_path: Path) -> None:
    file = saved(tmp_path, {"a": torch.ones(300)})
    with zipfile.ZipFile(file) as archive:
        crc = next(info.CRC for info in archive.infolist() if info.filename.endswith("data/0"))
    file.write_bytes(file.read_bytes().replace(crc.to_bytes(4, "little"), bytes(4)))
    pinned(refused(lambda: read_tensor(read(file)["a"])))


def test_a_file_under_the_name_of_another_one_is_refused(tmp_path: Path) -> None:
    names = ["layer_02-model_00-model_states.pt", "layer_03-model_00-model_states.pt"]
    torch.save({"a": torch.ones(2)}, tmp_path / names[0])
    (tmp_path / names[0]).rename(tmp_path / names[1])
    with pytest.raises(Problems, match=f"{names[1]} was saved as {names[0]}"):
        read(tmp_path / names[1])
    (tmp_path / names[1]).rename(tmp_path / "copy.pt")
    assert read(tmp_path / "copy.pt")


def test_a_file_that_is_shorter_than_its_index_says(tmp_path: Path) -> None:
    file = saved(tmp_path, {"a": torch.ones(300)})
    ref = read(file)["a"]
    with file.open("rb") as stream:
        start = ref.storage.position(stream)
    for size, why in ((start + 600, "it is truncated"), (start - 600, "its index of stored tensors is damaged")):
        os.truncate(file, size)
        with pytest.raises(Problems, match=why):
            read_tensor(ref)


def test_a_tensor_outside_of_its_storage_is_damage(tmp_path: Path) -> None:
    file = saved(tmp_path, torch.ones(4))
    with zipfile.ZipFile(file) as archive:
        names = {name: archive.read(name) for name in archive.namelist()}
    program = next(name for name in names if name.endswith("data.pkl"))
    assert names[program].count(b"K\x04\x85") == 1  # the shape (4,)
    names[program] = names[program].replace(b"K\x04\x85", b"K\x09\x85")
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    pinned(refused(read, file))


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    file = saved(tmp_path, {"a": torch.ones(2)})
    code = "import sys; from pathlib import Path; from neoxargs.files.neox_checkpoint.pickles import read; "
    code += "read(Path(sys.argv[1])); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code, str(file)], timeout=60).returncode == 0
