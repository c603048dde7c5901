"""Files are found, read and parsed into trees with places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from neoxargs.base.shipped import CONFIGS
from neoxargs.resolve.yaml import compose as composing
from neoxargs.resolve.yaml.nodes import Mapping, Scalar
from neoxargs.resolve.yaml.read import File, read_files
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned


def load(text: str) -> Any:
    return File("my.yml", text).mapping().to_python()


def what(text: str) -> str:
    return "\n".join(problem.what for problem in refused(lambda: File("my.yml", text).mapping()))


def place(text: str) -> str:
    return str(refused(lambda: File("my.yml", text).mapping())[0].where).partition(":")[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    for name in ("125M.yml", "local.yaml", "tune.json", "both.yml", "both.json"):
        (tmp_path / "configs" / name).write_text(f"# configs/{name}\nseed: 1\n")
    (tmp_path / "my.yml").write_text("# my.yml\nseed: 1\n")
    (tmp_path / "configs" / "125M").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "directory", "found"),
    [
        ("my.yml", None, "my.yml"),
        ("my", None, "my.yml"),
        ("configs/125M.yml", None, "configs/125M.yml"),
        ("125M", "configs", "configs/125M.yml"),  # not the folder of the same name
        ("125M.yml", "configs", "configs/125M.yml"),
        ("local", "configs", "configs/local.yaml"),
        ("tune", "configs", "configs/tune.json"),
        ("both", "configs", "configs/both.yml"),
        ("my", "configs", "my.yml"),
        ("configs/125M", "configs", "configs/125M.yml"),
    ],
)
def test_names_are_looked_up(here: Path, path: str, directory: str | None, found: str) -> None:
    (text,) = read_files([path], directory)
    assert text.name == found
    assert text.text.startswith(f"# {found}\n")


@pytest.mark.parametrize("text", ["\ufeffseed: 1\n", "seed: 1\r\nlr: 2\r\n", "---\nseed: 1\n...\n", "{seed: 1,}"])
def test_valid_forms(here: Path, text: str) -> None:
    (here / "form.yml").write_bytes(text.encode())
    (found,) = read_files(["form"])
    assert found.mapping().to_python()["seed"] == 1


@pytest.mark.parametrize("tabs", ['{\n\t"a":\t1,\n\t"b": [1,\t2]\n}\n', '{"a": 1,\t"b": [1, 2]\t}'])
def test_json_with_tabs(tabs: str) -> None:
    assert load(tabs) == {"a": 1, "b": [1, 2]}


def test_python_spellings_in_braces() -> None:
    assert load('{"a": True, "b": {"c": None, "d": False,},}') == {"a": True, "b": {"c": None, "d": False}}


def test_places_are_those_of_the_file() -> None:
    tree = File("my.yml", "# first\nzero-optimization:\n  stage: 1  # one\n").mapping()
    section = tree.entries[0]
    assert (str(section.place), section.key) == ("my.yml:2:1", "zero-optimization")
    assert isinstance(section.value, Mapping)
    stage = section.value.entries[0].value
    assert isinstance(stage, Scalar)
    assert stage.place == ("my.yml", 3, 10, "  stage: 1  # one", 1)


def test_quotes_make_text() -> None:
    assert load('{a: "1", b: \'1e3\', c: 1e3, d: "null"}') == {"a": "1", "b": "1e3", "c": 1000.0, "d": "null"}


def test_blocks_of_text() -> None:
    assert load("a: |\n  1\nb: >\n  x\n  y\nc: 1\n  2\n") == {"a": "1\n", "b": "x y\n", "c": "1 2"}


def test_aliases_repeat_values() -> None:
    assert load("a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}


def test_keys_of_the_mapping_override_merge_keys() -> None:
    text = "a: &a {x: 1, y: 1, z_z: 1}\nb: &b {x: 2, w: 2}\nc: {<<: [*a, *b], y: 3, z-z: 3}\nd: {<<: *a}\n"
    loaded = load(text)
    assert loaded["c"] == {"y": 3, "z-z": 3, "x": 1, "w": 2}
    assert loaded["d"] == loaded["a"]


def test_a_quoted_merge_sign_is_a_key() -> None:
    assert load('{"<<": 1}') == {"<<": 1}


def test_depth_is_limited_before_python_or_c_runs_out_of_stack() -> None:
    pinned(what("a: " + "[" * 100_000))
    assert load("a: " + "[" * 31 + "]" * 31)["a"] != 1


def test_a_missing_comma_is_reported_at_the_end_of_the_value() -> None:
    text = '{\n  "a": [1, 2]\n  # about b\n\n  "b": 2\n}\n'
    pinned(what(text))
    assert place(text) == "2:13"


def test_a_configuration_in_markdown_is_found() -> None:
    text = "# Report\nIt fails: why?\n```yaml\na: 1\nb: 2\n```\nand **more**: [\n"
    pinned(what(text))
    assert place(text) == "4:1"


@pytest.mark.parametrize("text", [
    '{\n  "a": {\n    "b": {\n      "c": 1\n  },\n  "d": 2,\n}\n',
    '{\n  "a": {\n  "b": {\n  "c": 1\n  },\n  "d": 2,\n}\n', '{\n"a": {\n"b": 1,\n}\n',
    '{\n  "a: 1,\n  "b": 2,\n}', '{\n  "a": "x,\n  # 5" wide\n  "b": 2,\n}', '{\n  "a": 1;\n  "b": 2\n}',
    '{\n  "a": 1,\n  ...\n  "b": 2\n}', '{\n  "a": ["b",\n    "c",]],\n}', '{\n  "a": ${A},\n}',
    "---------- arguments ----------\n  lr ..... 0.1...updated\n",
    '<<<<<<< HEAD\n{\n  "a": 1,\n=======\n  "a": 2,\n>>>>>>> x\n}',
])  # fmt: skip
def test_what_is_missing_is_reported_at_its_place(text: str) -> None:
    pinned((place(text), what(text)))


def test_several_syntax_problems_are_reported_at_once() -> None:
    sentences = what("a: !!str 1\n1: x\na: 2\n")
    assert sentences.count("\n") == 2


def test_pyyaml_without_its_c_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composing, "_LOADER", yaml.SafeLoader)
    assert load('{\n\t"a":\t1e-4}') == {"a": 1e-4}
    assert load("a: [1, {b: x}]\n") == {"a": [1, {"b": "x"}]}
    pinned(what("a:\n\tb: 1"))
    assert what("a: [1, 2\nb: 2\n").startswith("a `,` or the closing `]` is missing")
    pinned(what('a: "x\n'))
    pinned(what("a: {b: 1"))


@pytest.mark.parametrize(
    ("data", "place", "byte"),
    [
        (b"\xef\xbb\xbfseed: 1\nlr: \xe9\n", "2:5", "0xe9"),  # after a byte order mark
        (b"\xef\xbb", "1:1", "0xef"),  # half of one
        ("# größer\n".encode() + b"# \xfc", "2:3", "0xfc"),
    ],
)
def test_a_byte_that_is_not_utf8_has_its_place(data: bytes, place: str, byte: str, tmp_path: Path) -> None:
    (tmp_path / "my.yml").write_bytes(data)
    (problem,) = refused(read_files, [str(tmp_path / "my.yml")])
    assert problem.where and f"{problem.where.line}:{problem.where.column}" == place
    assert problem.what == f"byte {byte} is not valid UTF-8"


@pytest.mark.parametrize(
    "name", ["quickstart", "quickstart.yml", "configs/quickstart.yml", "pythia-160m", "models/pythia-160m"]
)
def test_a_shipped_configuration_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = read_files([name])
    assert text.name == str(CONFIGS / ("quickstart.yml" if "quick" in name else "models/pythia-160m.yml"))


def test_a_users_file_has_priority_over_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart.yml").write_text("num_layers: 1")
    assert read_files(["quickstart"])[0].name == "quickstart.yml"


def test_with_a_directory_shipped_files_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ids(refused(read_files, ["quickstart"], tmp_path)) == ["file-missing"]


@pytest.mark.parametrize("name", ["small", "small.yml"])
def test_a_file_of_a_subfolder_is_suggested_by_its_name(tmp_path: Path, name: str) -> None:
    for folder in ("models", "other", ".hidden"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ("small.yml" if folder != "other" else "tall.yml")).write_text("num_layers: 1")
    (tmp_path / "smell.yml").write_text("num_layers: 1")
    assert [problem.hint for problem in refused(read_files, [name], tmp_path)] == ["did you mean models/small.yml?"]


@pytest.mark.parametrize(
    "written", [r"a \ud83d\uDE00", r"\\\ud83d\ude00 \u00e9", r"\\ud83d\\ude00", r"\ud83d\ude00\ud83d\ude01"]
)
def test_json_with_surrogate_pairs_is_read_as_json_reads_it(written: str) -> None:
    text = f'{{"comment": "{written}", "num_layers": 2}}'
    assert File("my.json", text).mapping().to_python() == json.loads(text)


def test_a_missing_folder_is_said_once_for_several_files(here: Path) -> None:
    assert ids(refused(read_files, ["125M", "local"], "config")) == ["directory-missing"]
