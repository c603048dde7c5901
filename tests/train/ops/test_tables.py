"""Tensors that the layers of a model share: what is kept, and when it is built again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from neoxargs.train.ops.tables import Tables


def triangle(size: int) -> Tensor:
    return torch.ones(size, size).tril()


def test_the_largest_square_serves_shorter_sequences() -> None:
    tables, built = Tables(), []

    def build(size: int) -> Tensor:
        built.append(size)
        return triangle(size)

    for seq in (4, 8, 3, 8, 4):
        assert torch.equal(tables.square("triangle", seq, build), triangle(seq))
    assert built == [4, 8]
    assert len(tables._kept) == 1


def test_rows() -> None:
    tables, built = Tables(), []
    for seq in (4, 8, 3):
        (rows,) = tables.rows("numbers", seq, lambda size: built.append(size) or (torch.arange(size),))
        assert rows[:seq].tolist() == list(range(seq))
    assert built == [4, 8]


def test_what_is_derived_follows_its_source() -> None:
    tables, source = Tables(), torch.arange(4)

    def doubled(tensor: Tensor) -> Tensor:
        return tables.derived("doubled", tensor, lambda: tensor * 2)

    first = doubled(source)
    assert doubled(source) is first and doubled(source.detach()) is first
    assert doubled(source[:2]).tolist() == [0, 2]
    source += 1  # in place: the same memory, other contents
    assert doubled(source).tolist() == [2, 4, 6, 8]
    for start in range(5):  # a freed tensor's memory may be given to the next one, which must not be taken for it
        assert doubled(torch.arange(start, start + 4)).tolist() == [2 * (start + i) for i in range(4)]


class Filling(torch.nn.Module):
    """Asks for every kind of table."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()

    def forward(self, x: Tensor) -> Tensor:
        self.tables.square("triangle", 4, triangle)
        self.tables.derived("twice", x, lambda: x * 2)
        [angles] = self.tables.rows("angles", 2, lambda size: (torch.arange(size).cos(),))
        return x + angles[:2] + self.tables.get("one", lambda: torch.ones(2))


def test_a_model_that_is_exported_keeps_nothing() -> None:
    model = Filling()
    torch.export.export(model, (torch.ones(2),), strict=False)  # as torch.onnx.export does
    assert not model.tables._kept and not model.tables._derived


def test_a_compiled_layer_reads_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if torch's compiler says that it exports, as it did before torch 2.13."""
    model, graphs = Filling(), []
    model(torch.ones(2))
    compiled = torch.compile(model, backend=lambda graph, inputs: graphs.append(graph) or graph)
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    compiled(torch.ones(2))
    calls = [node.target for graph in graphs for node in graph.graph.nodes if node.op == "call_method"]
    assert graphs and calls == []
