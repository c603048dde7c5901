"""The comparison behind every page: spellings, sizes, what no run reads, and secrets, which no page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.base.problems import Place, report
from neoxargs.cli import main
from neoxargs.config.config import Config
from neoxargs.migrate.neox.verify import verify
from neoxargs.registry import REGISTRY
from neoxargs.resolve import File, draft, resolve
from neoxargs.resolve.compare.apart import NOT_OF_THE_RUN, REPORTED_ELSEWHERE, SHOWN_BY_SHAPES, names
from neoxargs.resolve.compare.differences import KERNELS, SPELLINGS, differences, same_function
from neoxargs.runs.lockfile import lock_text
from neoxargs.targets.ranks import train_values
from tests.support import smallest
from tests.support.configure import configure
from tests.support.refused import refused

DIALECT = "dialect: neox-2026"
#: Settings with a secret, written %s. Masking the text of a message would hide only the first word of a list.
SECRETS = (
    "deepspeed_extra_args:\n  a_section:\n    api_key:\n    - first\n    - %s",
    "data_path: https://me:%s@host/tokens",
    "comet: {api_key: %s}",
)
OURS, THEIRS = "hunter2", "correct-horse"


def names_of(a: Config, b: Config, apart: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [each.names for each in differences(a, b, apart)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("split: 95,4,1", "split: [95, 4, 1]"),
        ("activation: swish", "activation: silu"),
        ("head_dim: 16", ""),
        ("expansion_factor: 4", "intermediate_size: 256"),
        ("zero_stage: 1", "zero_optimization: {stage: 1}"),
        ("geglu: true", "activation: geglu"),
    ],
)
def test_what_is_written_differently_is_no_difference(one: str, other: str) -> None:
    a, b = (configure(DIALECT, text) for text in (one, other))
    assert names_of(a, b) == []
    assert names_of(a, configure(DIALECT, "num_layers: 5")) != []


def test_a_setting_with_several_names_is_one_difference_under_the_name_that_is_set() -> None:
    a, b = configure("zero_stage: 1"), configure("zero_optimization: {stage: 2}")
    (found,) = [each for each in differences(a, b) if "zero_stage" in each.names]
    assert (found.names, found.values) == (("zero_stage", "zero_optimization.stage"), (1, 2))
    (found,) = [each for each in differences(b, configure()) if "zero_stage" in each.names]
    assert found.name == "zero_optimization.stage"
    assert not any("lr" in each for each in names_of(configure("lr: 0.1"), configure(), ("lr", "optimizer.params.lr")))


def test_what_no_run_reads_is_told_only_if_it_is_set() -> None:
    a, b, read = (configure(DIALECT, text) for text in ("rotary_pct: 0.5", "", "pos_emb: rotary"))
    (found,) = differences(a, b)
    assert (found.name, found.is_set, found.is_read) == ("rotary_pct", True, (False, False))
    (found,) = [each for each in differences(a, read) if each.name == "rotary_pct"]
    assert found.is_read == (False, True)
    old = configure(DIALECT.replace("2026", "2021"))
    assert old.get("deepspeed_activation_checkpointing") != b.get("deepspeed_activation_checkpointing")
    assert "deepspeed_activation_checkpointing" not in [each.name for each in differences(b, old)]


def test_other_kernels_compute_the_same_function() -> None:
    a, b = configure(DIALECT, "attention_config: [[[flash], all]]"), configure(DIALECT)
    assert names_of(a, b) == [("attention_config",)]
    assert list(differences(a, b, same=same_function)) == []


def test_a_value_that_is_not_known_is_not_compared() -> None:
    a, b = configure(DIALECT, "lr: 0.1"), configure(DIALECT)
    assert names_of(a, b) != []
    unknown = Config(b.values, b.sections, broken=frozenset({"lr", "optimizer.params.lr"}))
    assert names_of(a, unknown) == []


def test_every_name_in_a_table_is_a_parameter() -> None:
    tables = [names(table) for table in (NOT_OF_THE_RUN, REPORTED_ELSEWHERE, SHOWN_BY_SHAPES)]
    assert {*SPELLINGS, *KERNELS}.union(*tables) <= REGISTRY.parameters.keys()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two configurations that differ only in their secrets."""
    monkeypatch.chdir(tmp_path)
    for name, secret in (("a.yml", OURS), ("b.yml", THEIRS)):
        Path(name).write_text(smallest.YAML + "\n".join(SECRETS) % ((secret,) * len(SECRETS)))
    return "a.yml", "b.yml"


def _hidden(text: str, *expected: str) -> None:
    """Assert that a text names the settings that differ, but none of the secrets."""
    assert all(name in text for name in expected), text
    assert OURS not in text and THEIRS not in text


@pytest.mark.parametrize("option", [[], ["--json"], ["--at", "3"], ["--html", "page.html"]])
def test_diff_shows_no_secret(files: tuple[str, str], option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *files, *option]) == 1
    pages = [path.read_text() for path in Path().glob("*.html")]
    assert len(pages) == option.count("--html")
    for text in ["".join(capsys.readouterr()), *pages]:
        _hidden(text, "deepspeed_extra_args", "data_path", "comet.api_key", "***")


def test_a_check_of_a_run_that_continues_shows_no_secret(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("load/global_step10").mkdir(parents=True)
    Path("load/global_step10/config.json").write_text(json.dumps(train_values(resolve([files[0]], gpus=1))))
    for option in ([], ["--json"]):
        main(["check", files[1], "--set", "load=load", *option])
        text = "".join(capsys.readouterr())
        _hidden(text, "checkpoint-training-changed", "deepspeed_extra_args (was ", "data_path (was ")


def test_migrate_s_verification_shows_no_secret(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (draft([File(name, Path(name).read_text())]) for name in files)
    problems = refused(verify, before, after, 1, Place("a.yml", 0, 0))
    report(problems)
    for text in (capsys.readouterr().err, json.dumps([problem.to_json() for problem in problems])):
        _hidden(text, "deepspeed_extra_args would change from", "data_path would change", "comet.api_key would change")


def test_a_check_of_a_lock_shows_no_secret(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    secret = Path("a.yml").read_text()
    Path("a.yml").write_text(smallest.YAML)
    Path("run.lock.yml").write_text(lock_text(resolve(["a.yml"], gpus=1), "train.py", {}))
    Path("a.yml").write_text(secret)
    for option in ([], ["--json"]):
        main(["check", "run.lock.yml", *option])
        _hidden("".join(capsys.readouterr()), "data_path was", "deepspeed_extra_args was", "comet.api_key was", "***")
