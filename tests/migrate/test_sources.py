"""The source interface: a new source is a class and a row of SOURCES, and works in `migrate` and `check`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Place
from neoxargs.cli import main
from neoxargs.migrate import sources as migrate
from neoxargs.migrate.result import Change, Result, new_file
from neoxargs.migrate.source import Options, Source
from tests.support.snapshots import pinned


class Properties(Source):
    """A made-up format, `model.layers = 4`."""

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
    monkeypatch.setattr("neoxargs.migrate.command.SOURCES", migrate.SOURCES)
    Path("my.properties").write_text("model.layers = 4\n")


def test_a_new_source_is_recognised_and_converted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "my.properties"]) == 0
    assert capsys.readouterr().out == "num_layers: 4\n"
    assert main(["migrate", "my.properties", "--from", "properties", "-o", "new.yml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == Path("new.yml").read_text() == "num_layers: 4\n"


def test_check_knows_a_new_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "my.properties"]) == 1
    pinned(capsys.readouterr().err, "[file-of-another-program]")


def test_an_option_that_only_other_sources_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "my.properties", "--var", "A=1", "--json"]) == 1
    (answer,) = json.loads(capsys.readouterr().out)["problems"]
    assert answer["what"].startswith("--var applies only to a Megatron-LM script")


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
        ("a.yaml", "deepspeed_config:\n  zero_stage: 3\nnum_machines: 3\n", "accelerate"),
        ("a.yml", "num_layers: 4\ndeepspeed_config: ds.json\n", "neox"),
        ("a.yml", "deepspeed_config: [\n", "neox"),
    ],
)
def test_the_source_of_a_file(name: str, text: str, source: str) -> None:
    assert migrate.source_of(Text(name, text)).name == source


def test_a_change_as_a_line() -> None:
    assert str(Change(Place("my.yml", 3, 1), "gas: 2", "", "retired")) == "my.yml:3:1: gas: 2 → removed (retired)"
