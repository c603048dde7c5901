"""The digests and versions that a run.lock.yml records."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from neoxargs.runs import fingerprints
from tests.support.configure import configure

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_file_of_the_run_is_recorded_under_its_parameter() -> None:
    for name in ("a.idx", "a.bin", "b.idx", "b.bin", "vocab.json"):
        Path(name).write_text(name)
    found = fingerprints.files(
        configure("data_path: [0.5, a, 0.5, b]\nvocab_file: vocab.json\nmerge_file: missing.txt")
    )
    assert {name: [file["path"] for file in files] for name, files in found.items()} == {
        "data_path": ["a.idx", "a.bin", "b.idx", "b.bin"],
        "vocab_file": ["vocab.json"],
    }
    assert found["vocab_file"][0]["sha256"] == hashlib.sha256(b"vocab.json").hexdigest()


@pytest.mark.parametrize(("suffix", "whole"), [("idx", True), ("bin", False)])
def test_large_files_are_sampled(suffix: str, whole: bool) -> None:
    path = Path(f"a.{suffix}")
    Path("a.idx").touch()

    def digest(at: int | None) -> object:
        with path.open("wb") as file:
            file.truncate(24 * MIB)
            if at is not None:
                file.seek(at)
                file.write(b"x")
        return next(
            file for file in fingerprints.files(configure("data_path: a"))["data_path"] if file["path"] == str(path)
        )

    before = digest(None)
    assert isinstance(before, dict)
    assert before.get("sampled", False) is not whole
    assert digest(0) != before
    assert digest(24 * MIB - 1) != before
    assert (digest(MIB + MIB // 4) != before) is whole  # between the first two blocks


def test_code_is_that_of_the_package_and_the_script() -> None:
    Path("my.py").write_text("1")
    before = fingerprints.code("my.py")
    Path("my.py").write_text("2")
    after = fingerprints.code("my.py")
    assert before["script"] != after["script"]
    assert before["neoxargs"] == after["neoxargs"] == fingerprints.package_digest()
    assert fingerprints.code("missing.py")["script"] is None


def test_packages_and_hardware() -> None:
    assert {"python", "torch", "deepspeed", "megatron_core"} <= fingerprints.packages().keys()
    assert {"machine", "processor", "cores", "gpus", "driver"} == fingerprints.hardware().keys()
