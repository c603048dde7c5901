"""Errors of different kinds are told in one run, by every command that can refuse a run before it starts."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from neoxargs.cli import main
from tests.support import smallest

MODEL = smallest.YAML + "tokenizer_type: ByteLevelTokenizer\ntext_path: python-stdlib\n"
#: Id of a problem -> settings with which it is reported, whatever else is wrong.
FAULTS = {
    # values: the type, a key, a contradiction, what train.py lacks, a secret
    "type-mismatch": ["activation=gelo"],
    "unknown-key": ["frobnicate=1"],
    "heads-divide-hidden-size": ["hidden_size=66", "num_attention_heads=4"],
    "not-built": ["amp.enabled=true"],
    "secret-in-configuration": ["comet.api_key=ABCDEF"],
    # rules that wait for the ranks, and the hosts that determine these
    "batch-sizes-agree": ["train_batch_size=10", "gradient_accumulation_steps=3"],
    "filter-unknown-host": ["include=localhost@worker"],
    # files, folders, this machine
    "data-file-missing": ["text_path=/nonexistent"],
    "checkpoint-missing": ["load=/nonexistent"],
    "folder-not-writable": ["tensorboard_dir=/proc/tb"],
    "gpu-only": ["aio.use_gds=true"],
    "package-missing": ["use_wandb=true"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr("neoxargs.checks.machine.packages.is_missing", lambda package: package == "wandb")
    Path("my.yml").write_text(MODEL)


#: Whether this machine is one of the run's depends on the hosts.
OF_THIS_MACHINE = [("filter-unknown-host", "gpu-only"), ("filter-unknown-host", "package-missing")]
PAIRS = [pair for pair in combinations(FAULTS, 2) if pair not in OF_THIS_MACHINE]


def checked(settings: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[set[str], list[str]]:
    """The ids of errors that check reports, and what it does not check."""
    main(["check", "my.yml", "--json", *(f"--set={setting}" for setting in settings)])
    answer = json.loads(capsys.readouterr().out)
    errors = {problem["id"] for problem in answer["problems"] if problem["severity"] == "error"}
    return errors, answer["unchecked"]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_errors_are_told_at_once(one: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"--set={setting}" for setting in (*FAULTS[one], *FAULTS[other])]
    for words in (["check"], ["train.py"], ["train.py", "--dry-run"]):
        main([words[0], "my.yml", *words[1:], *settings])
        told = re.findall(r" \[([a-z0-9-]+)\]$", capsys.readouterr().err, re.MULTILINE)
        assert {one, other} <= set(told), words


#: Settings with several errors of one kind -> what the problems name.
SEVERAL = {
    "offloaded sections": (
        ["zero_optimization.stage=3"]
        + [f"zero_optimization.{part}.device=nvme" for part in ("offload_param", "offload_optimizer")],
        ["offload_param.nvme_path", "offload_optimizer.nvme_path"],
    ),
    "filters": (["include=a", "exclude=b", "num_nodes=2"], ["include and exclude", "num_nodes (2) and include"]),
    "unknown hosts": (["include=a@b"], ["unknown host: a", "unknown host: b"]),
    "hosts of an absent hostfile": (["include=a", "hostfile=/none"], ["unknown host: a", "hostfile /none does not"]),
    "the folders of a run": (["save=/proc/x", "load=/none"], ["checkpoint_factor", "(/proc/x)", "(/none)"]),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_errors_of_one_kind_are_told_at_once(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings, named = SEVERAL[kind]
    main(["check", "my.yml", *(f"--set={setting}" for setting in settings)])
    told = capsys.readouterr().err
    assert [name for name in named if name not in told] == []


@pytest.mark.parametrize("words", (["check"], ["plan"], ["plan", "--search"], ["train.py", "--dry-run"]))
def test_a_missing_file_hides_no_problem_of_the_others(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([words[0], "my.yml", "absent.yml", *words[1:], "--set=frobnicate=1", "--set=activation=gelo"])
    told = re.findall(r" \[([a-z0-9-]+)\]$", capsys.readouterr().err, re.MULTILINE)
    assert sorted(told) == ["file-missing", "type-mismatch", "unknown-key"]


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_brings_no_other(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(FAULTS[fault], capsys)[0] == {fault}


@pytest.mark.parametrize(("hosts", "other"), OF_THIS_MACHINE)
def test_a_check_that_an_error_prevents_is_said(hosts: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, left_out = checked([*FAULTS[hosts], *FAULTS[other]], capsys)
    assert found == {hosts}
    assert any("this machine" in each and "include" in each for each in left_out)


#: An error, another that it can cause or hide, settings with both, and what is said instead.
DEPENDENT = {
    "data that another tokenizer made": (
        "tokenizer_type=Unknown",
        "vocab_file=/nonexistent",
        "files",
        "tokenizer_type",
    ),
    "the length of the run": ("train_iters=abc", "eval_interval=1000", "folders", "train_iters"),
    "the number of hosts": ("include=localhost@worker", "global_num_gpus=3", "values", "include"),
}


@pytest.mark.parametrize("case", DEPENDENT)
def test_what_needs_a_wrong_value_is_left_out_and_said(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, other, kind, key = DEPENDENT[case]
    found, left_out = checked([wrong, other], capsys)
    assert len(found) == 1
    assert any(kind in each and key in each for each in left_out)


def test_nothing_is_left_out_of_a_configuration_without_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked([], capsys) == (set(), [])


def test_of_a_file_that_cannot_be_read_everything_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text("num_layers: [")
    found, left_out = checked([], capsys)
    assert found
    assert "everything else" in left_out[0]
