"""Tensors that the layers of a model share: what is kept, and when it is built again."""

from __future__ import annotations

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


def test_a_model_that_is_exported_keeps_nothing(monkeypatch) -> None:
    tables = Tables()
    monkeypatch.setattr("neoxargs.train.ops.tables._is_exporting", lambda: True)
    tables.square("triangle", 4, triangle), tables.get("one", lambda: 1), tables.rows("two", 2, lambda _: ())
    tables.derived("three", torch.arange(3), lambda: 3)
    assert not tables._kept and not tables._derived
