"""An axis without effect, added to a copy as docs/extending.md says, changes no loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkout import copied, insert, run
from tests.support.paths import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ADDED = {
    "neoxargs/registry/parallel.py": (
        "    world_size: Count = param(derived=True",
        "    depth_parallel_size: Count = param(1, ours=True)\n"
        '    """Number of consecutive data parallel ranks of a group."""\n\n',
    ),
    "neoxargs/train/process/mesh.py": (
        "    expert: Axis = ALONE\n", "    depth: Axis = ALONE\n    depth_data: Axis = ALONE\n",
    ),
}  # fmt: skip
TEST = '''"""The axis has groups, and nothing communicates over them."""

from __future__ import annotations

import torch.distributed as dist

from neoxargs.train.process.mesh import build_mesh, destroy_groups
from tests.support.ranks import run_ranks
from tests.support.small_gpt import small
from tests.support.trials import Trial, curves


def neighbours() -> list[list[int]]:
    found = []
    for tensor in (1, 2):
        mesh = build_mesh(small(depth_parallel_size=2, model_parallel_size=tensor))
        found.append(dist.get_process_group_ranks(mesh.depth.group))
        assert (mesh.depth.size, mesh.depth_data.size) == (2, 2 // tensor)
        destroy_groups()
    return found


def test_its_groups() -> None:
    ranks = run_ranks(neighbours, 4)
    assert [alone for alone, _ in ranks] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [tensor for _, tensor in ranks] == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_losses_are_equal() -> None:
    found = curves({2: {"without": Trial(), "with": Trial({"depth_parallel_size": 2})}}, 3)
    assert found["with"] == found["without"]
'''


def test_an_axis_without_effect(tmp_path: Path) -> None:
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    section = page.partition("\n## An axis of parallelism\n")[2].partition("\n## ")[0]
    assert " two files" in section and len(ADDED) == 2
    folder = copied(tmp_path / "checkout")
    for name, (at, lines) in ADDED.items():
        assert name.removeprefix("neoxargs/") in section
        insert(folder / name, at, lines, "")
    mesh = folder / "neoxargs/train/process/mesh.py"
    insert(mesh, '"context": parallel.context_parallel_size', "", ', "depth": parallel.depth_parallel_size')
    (folder / "tests/train/process/test_axis.py").write_text(TEST)
    tests = ["tests/train/process/test_axis.py", "tests/train/process/test_mesh.py"]
    run(folder, "-m", "pytest", "-n", "2", *tests)
