"""Records behave like frozen dataclasses."""

from __future__ import annotations

import pickle

import pytest

from neoxargs.base.record import Record, as_dict, field, replace


class Point(Record):
    x: int
    y: int = 0
    name: str = field(kw_only=True)
    tags: tuple[str, ...] = ()

    @property
    def sum(self) -> int:
        return self.x + self.y


class Solid(Point):
    z: int = 5


def test_values_by_position_by_name_and_by_default() -> None:
    point = Point(1, 2, name="a")
    assert (point.x, point.y, point.name, point.tags, point.sum) == (1, 2, "a", (), 3)
    assert Point(x=1, name="a") == Point(1, 0, name="a")
    assert as_dict(Solid(1, name="b")) == {"x": 1, "y": 0, "name": "b", "tags": (), "z": 5}
    assert repr(point) == "Point(x=1, y=2, name='a', tags=())"


def test_equality_and_hash_are_those_of_class_and_values() -> None:
    assert len({Point(1, name="a"), Point(1, 0, name="a"), Point(1, name="b")}) == 2
    assert Point(1, name="a") != Solid(1, name="a")
    assert Point(1, name="a") != (1, 0, "a", ())


def test_a_copy_with_changes() -> None:
    solid = Solid(1, name="a", z=7)
    changed = replace(solid, y=3)
    assert type(changed) is Solid and (changed.y, changed.z, solid.y) == (3, 7, 0)
    assert pickle.loads(pickle.dumps(changed)) == changed


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {"name": "a"}), ((1,), {}), ((1,), {"name": "a", "x": 2}), ((1,), {"name": "a", "w": 2}), ((1,) * 5, {})],
)
def test_missing_repeated_and_unknown_fields_are_errors(values, named) -> None:
    with pytest.raises(TypeError, match="Point has the fields x, y, name, tags"):
        Point(*values, **named)


def test_records_are_immutable() -> None:
    with pytest.raises(AttributeError, match="Point is immutable"):
        Point(1, name="a").x = 2
