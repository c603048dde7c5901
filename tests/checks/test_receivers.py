"""Keys that a version of DeepSpeed does not have are errors at their places; `diff` says what an upgrade changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.base.problems import render
from neoxargs.checks.receivers import LAST_WITH_ONEBIT, missing_keys, receiver_problems
from neoxargs.cli import main
from neoxargs.hosts.assumed import assumed_nodes
from neoxargs.registry import receivers
from neoxargs.runs.run_spec import RunSpec
from tests.support.configure import SHAPE, configure
from tests.support.paths import CONFIGS
from tests.support.snapshots import pinned

MICS = "zero_optimization: {stage: 3, mics_shard_size: 4}"


def run_of(text: str, version: str = "", **assumed: str) -> RunSpec:
    config = configure(text)
    versions = {"deepspeed": version, **assumed} if version else assumed
    return RunSpec(config, assumed_nodes(8, config.runner), assumed=versions)


def test_a_key_that_a_version_removed_is_an_error_at_its_place() -> None:
    went = receivers.removed_in("zero_optimization.mics_shard_size")
    assert receiver_problems(run_of(MICS, "0.19.6")) == []
    (problem,) = receiver_problems(run_of(MICS, went))
    pinned(problem)


def test_a_key_that_a_version_does_not_have_yet_is_an_error_at_its_place() -> None:
    text = "zero_optimization: {stage: 1, save_muon_momentum_buffer_in_memory: true}"
    (problem,) = receiver_problems(run_of(text, "0.18.0"))
    pinned(problem)


def test_newer_deepspeed_has_no_one_bit_optimizers() -> None:
    text = "{onebitadam: true, lr: 0.001}"
    assert receiver_problems(run_of(text, LAST_WITH_ONEBIT)) == []
    (problem,) = receiver_problems(run_of(text, "0.19.7"))
    pinned(problem)


def test_a_torch_that_megatron_core_is_too_new_for() -> None:
    oldest = receivers.oldest_torch("megatron-core", "0.16.1")
    assert receiver_problems(run_of("{}", torch=oldest, deepspeed="0.19.3")) == []
    pinned(render(receiver_problems(run_of("{}", torch="2.5.1", deepspeed="0.19.3"))))


def test_keys_of_extra_arguments_are_compared() -> None:
    (problem,) = missing_keys(configure("deepspeed_extra_args: {elasticity: {enabled: true}}"), "0.19.8")
    assert problem.about == ("deepspeed_extra_args",)


@pytest.mark.parametrize("version", receivers.versions())
def test_every_version_has_what_a_plain_configuration_sends(version: str) -> None:
    assert list(missing_keys(configure(), version)) == []


def test_check_assumes_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yml"
    file.write_text(MICS)
    versions = ["--deepspeed", "0.19.8", "--torch", "2.15"]
    words = [str(CONFIGS / "quickstart.yml"), str(file), "--set", "pipe_parallel_size=0", "--gpus", "4", "--json"]
    assert main(["check", *words, *versions]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert {"deepspeed-key-missing", "package-untested"} <= {each["id"] for each in problems}


def test_diff_of_two_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yml"
    offload = "zero_optimization: {stage: 3, mics_shard_size: 4, offload_optimizer: {device: cpu}}"
    file.write_text("\n".join([*(f"{key}: {value}" for key, value in SHAPE.items()), offload]))
    assert main(["diff", "--deepspeed", "0.18.0..0.19.8", str(file), "--gpus", "4", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [each["about"] for each in answer["problems"]] == [["zero_optimization.mics_shard_size"]]
    changed = {row["name"]: (row["a"], row["b"]) for row in answer["defaults"]}
    assert changed["zero_optimization.offload_optimizer.pin_memory"] == (False, True)
    assert main(["diff", "--deepspeed", "0.19.8..0.19.8", str(CONFIGS / "quickstart.yml"), "--gpus", "4"]) == 0
    assert "nothing changes" in capsys.readouterr().out


def test_a_dry_run_assumes_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yml"
    file.write_text("\n".join([*(f"{key}: {value}" for key, value in SHAPE.items()), "graph_harvesting: true"]))
    words = ["train.py", str(file), "--dry-run", "--gpus", "4", "--deepspeed"]
    for version, code in (("0.19.6", 0), ("0.19.8", 1)):
        assert main([*words, version]) == code
        assert ("deepspeed-key-missing" in capsys.readouterr().err) == bool(code)
