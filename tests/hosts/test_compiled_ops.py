"""Which C++ ops a run needs, and whether they are compiled or can be."""

import os
from pathlib import Path

import pytest

from neoxargs.checks.machine import hardware
from neoxargs.hosts import compiled_ops
from tests.support.configure import config_of
from tests.support.snapshots import pinned

OFFLOAD = {"zero_optimization.offload_optimizer.device": "cpu"}


@pytest.mark.parametrize(
    ("values", "device", "expected"),
    [
        ({}, "cpu", []),
        ({"optimizer.type": "Adam"}, "cuda", []),
        (OFFLOAD, "cpu", ["cpu_adam"]),
        ({**OFFLOAD, "optimizer.type": "AdamW"}, "cuda", ["cpu_adam"]),
        ({**OFFLOAD, "optimizer.params.torch_adam": True}, "cpu", []),
        ({**OFFLOAD, "optimizer.type": "Adagrad"}, "cuda", ["cpu_adagrad"]),
        ({**OFFLOAD, "optimizer.type": "Lion"}, "cuda", []),
        ({"optimizer.type": "cpu_adam"}, "cpu", ["cpu_adam"]),
        ({"optimizer.type": "Lion"}, "cpu", []),
        ({"optimizer.type": "OneBitAdam"}, "cpu", []),
        ({"zero_optimization.offload_param.device": "nvme"}, "cuda", ["async_io"]),
    ],
)
def test_what_a_configuration_needs(values, device, expected):
    assert hardware.ops_to_compile(config_of(**values), device) == expected


def test_a_missing_compiler_is_reported_with_what_to_install(tmp_path):
    environ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path), "CXX": "no-compiler"}
    adam, io = compiled_ops.uncompilable(["cpu_adam", "async_io"], environ)
    pinned(adam)
    pinned(io)


def test_missing_headers_are_reported_with_the_compilers_message(tmp_path, monkeypatch):
    compiler = tmp_path / "c++"  # as g++ speaks where libaio-dev is not installed
    compiler.write_text(
        "#!/bin/sh\ngrep -q libaio.h || exit 0\n"
        "echo 'In file included from x:' >&2\necho '<stdin>:3:10: fatal error: libaio.h: No such file' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    environ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path), "CXX": str(compiler)}
    (io,) = compiled_ops.uncompilable(["cpu_adam", "async_io"], environ)
    assert io.what.endswith("this machine: <stdin>:3:10: fatal error: libaio.h: No such file")


def test_a_compiled_op_needs_no_compiler(tmp_path):
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "cpu_adam.so").touch()
    compiled_ops.record_installation(tmp_path / "cpu_adam")
    environ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path), "CXX": "no-compiler"}
    assert list(compiled_ops.uncompilable(["cpu_adam"], environ)) == []


def test_every_op_is_one_that_deepspeed_has():
    builders = pytest.importorskip("deepspeed.ops.op_builder").__path__[0]
    sources = "".join(path.read_text() for path in Path(builders).rglob("*.py"))
    for op in {op for pair in hardware.OPS.values() for op in pair if op} | {"async_io"}:
        assert f'NAME = "{op}"' in sources, op
