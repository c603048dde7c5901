"""Tests skip with a reason if the simulated GPU is not available."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import simulated_gpu
from tests.support.ranks import run_ranks
from tests.support.simulated_gpu import compiling


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing has been compiled, and no compiler can be found."""
    monkeypatch.setattr(compiling, "library", compiling.library.__wrapped__)
    monkeypatch.setattr(compiling, "version", lambda _: f"{compiling.TESTED_TORCH}+cpu")
    monkeypatch.setattr(compiling, "torch_folder", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


def test_no_compiler() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"no C\+\+ compiler for the simulated GPU"):
        run_ranks(print, 1, on=simulated_gpu.MACHINE)


def test_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "version", lambda _: "9.1.0")
    with pytest.raises(compiling.Unavailable, match=rf"made for torch {compiling.TESTED_TORCH}, not 9\.1\.0"):
        compiling.library()


def test_torch_for_gpus(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").touch()
    with pytest.raises(compiling.Unavailable, match="needs torch's build for CPUs"):
        compiling.library()


def test_source_that_does_not_compile_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho some fault >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(RuntimeError, match=r"does not compile\n.*\n.*some fault"):
        compiling.library()


def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\necho once >> {tmp_path}/calls\nwhile [ $1 != -o ]; do shift; done\n: > $2\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert compiling.library() == compiling.library()
    assert (tmp_path / "calls").read_text() == "once\n"
