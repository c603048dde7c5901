"""What a source is asked: a new one is a class and a row of SOURCES, and every verb that reads sources knows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.problems import Place
from neoxargs.resolve import Text
from neoxargs.tools import migrate
from neoxargs.tools.migrate.result import Change, Result, new_file
from neoxargs.tools.migrate.source import Options, Source


class Properties(Source):
    """`model.layers = 4`, a form that nobody has."""

    name = "properties"
    describes = "a file of properties"

    def recognises(self, text: Text) -> bool:
        return text.name.endswith(".properties")

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        (text,) = texts
        return new_file(text.text.replace("model.layers =", "num_layers:"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(migrate, "SOURCES", (*migrate.SOURCES, Properties()))
    monkeypatch.setattr("neoxargs.tools.migrate.cli.SOURCES", migrate.SOURCES)
    Path("my.properties").write_text("model.layers = 4\n")


def test_a_new_source_is_recognised_and_converted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "my.properties"]) == 0
    assert capsys.readouterr().out == "num_layers: 4\n"
    assert main(["migrate", "my.properties", "--from", "properties", "-o", "new.yml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == Path("new.yml").read_text() == "num_layers: 4\n"


def test_check_knows_a_new_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "my.properties"]) == 1
    assert (
        "my.properties reads like a file of properties [file-of-another-program]\n  = deepy migrate my.properties"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "problem", "id"),
    [
        (["--choose", "2"], "--choose has no meaning for a file of properties", "migrate-option-without-meaning"),
        (["--var", "A=1"], "--var is for a script that starts Megatron-LM", "migrate-option-without-meaning"),
        (["--to", "neox-2021"], "--to neox-2021 is for GPT-NeoX's YAML", "migrate-option-without-meaning"),
        (["--write"], "--write needs -o FILE", "migrate-write-without-output"),
        (["my.properties"], "one file at a time becomes YAML", "migrate-several-files"),
    ],
)
def test_options_that_a_source_does_not_read(
    words: list[str], problem: str, id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.properties").write_text("")
    words = ["other.properties"] if words == ["my.properties"] else words
    assert main(["migrate", "my.properties", *words, "--json"]) == 1
    (answer,) = json.loads(capsys.readouterr().out)["problems"]
    assert (answer["what"][: len(problem)], answer["id"]) == (problem, id)


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        ("my.yml", "--num-layers", "neox"),
        ("run.sh", "python pretrain_gpt.py --num-layers 4", "megatron"),
        ("ds.json", '{"train_batch_size": 4}', "deepspeed"),
        ("ds.json", '{"train_batch_size" 4}', "deepspeed"),
        ("my.json", '{"num_layers": 4}', "neox"),
        ("run.sh", "python train.py", "neox"),
        ("my.properties", "model.layers = 4", "properties"),
    ],
)
def test_which_source_a_file_is(name: str, text: str, source: str) -> None:
    assert migrate.source_of(Text(name, text)).name == source


def test_a_change_as_a_line() -> None:
    assert str(Change(Place("my.yml", 3, 1), "gas: 2", "", "retired")) == "my.yml:3:1: gas: 2 → left out (retired)"
