"""What `deepy check` says of a GPT-NeoX checkpoint that `load` names: with its place, without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.base.problems import Problem
from neoxargs.checks.checkpoint import neox as neox_checkpoint_module
from neoxargs.checks.checkpoint.neox import neox_base_shapes, neox_checkpoint
from neoxargs.resolve import resolve
from tests.support.neox_files import YAML, Run, weights, write
from tests.support.snapshots import pinned


@pytest.fixture
def run() -> Run:
    moments = dict.fromkeys(("exp_avg", "exp_avg_sq"), weights())
    return Run(weights(), 4, 4, moments, order="per_head", parallel_residual=True, optimizer="zero1", tensor=2, data=2)


def problems(folder: Path, *changes: str) -> list[Problem]:
    file = folder / "my.yml"
    file.write_text(YAML.replace("load: theirs", f"load: {folder / 'theirs'}"))
    return list(neox_checkpoint(resolve([file], changes, gpus=2 if "model_parallel_size=2" in changes else 1)))


def test_what_is_taken_over_is_listed_at_load(tmp_path: Path, run: Run) -> None:
    write(run, tmp_path / "theirs" / "global_step3")
    (problem,) = problems(tmp_path)
    pinned(problem)


@pytest.mark.parametrize("rows", [256, 320, 384, 512])
def test_rows_that_are_dropped_or_added(tmp_path: Path, run: Run, rows: int) -> None:
    write(run, tmp_path / "theirs" / "global_step3")
    (problem,) = problems(tmp_path, "tokenizer_type=CharLevelTokenizer" if rows == 512 else f"padded_vocab_size={rows}")
    pinned([line for line in problem.what.splitlines() if "vocabulary:" in line])


def test_changed_bytes_are_an_error_before_the_launch(tmp_path: Path, run: Run, monkeypatch: Any) -> None:
    folder = write(run, tmp_path / "theirs" / "global_step3")
    file = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    (problem,) = problems(tmp_path)
    assert (problem.id, problem.severity) == ("checkpoint-file-damaged", "error")
    pinned(problem)
    monkeypatch.setattr(neox_checkpoint_module, "AT_MOST", 1000)
    (problem,) = problems(tmp_path)
    pinned(problem, "checksums: not")


def line_of(folder: Path, start: str, *changes: str) -> str:
    """Return the line of the warning that begins with these words; "" if there is none."""
    found = problems(folder, *changes)
    return next((line.strip() for line in found[-1].what.splitlines() if line.strip().startswith(start)), "")


@pytest.mark.parametrize(
    ("parallel", "bias", "said"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_an_attention_that_gpt_neox_left_out_is_named(tmp_path: Path, parallel: bool, bias: bool, said: bool) -> None:
    model = {name: value for name, value in weights().items() if bias or not (".mlp." in name and "bias" in name)}
    run = Run(model, 4, 4, order="per_head", parallel_residual=parallel)
    write(run, tmp_path / "theirs" / "global_step3")
    changes = (f"use_bias_in_mlp={bias}", f"gpt_j_residual={parallel}", "finetune=true")
    line = line_of(tmp_path, "different model", *changes)
    assert line.startswith("different model: with gpt_j_residual and without biases in the MLP") == said


def test_biases_that_differ_between_ranks_are_named(tmp_path: Path) -> None:
    run = Run(weights(), 4, 4, order="per_head", tensor=2)
    folder = write(run, tmp_path / "theirs" / "global_step3")
    changes = ("gpt_j_residual=false", "finetune=true")
    assert line_of(tmp_path, "different biases", *changes) == ""
    pinned(line_of(tmp_path, "different biases", *changes, "sequence_parallel=true", "model_parallel_size=2"))
    file = folder / "layer_03-model_01-model_states.pt"
    tensors = torch.load(file)
    tensors["attention.dense.bias"] += 1
    torch.save(tensors, file)
    pinned(line_of(tmp_path, "different biases", *changes))


def test_what_gpt_neox_does_with_mup_is_said(tmp_path: Path, run: Run) -> None:
    write(run, tmp_path / "theirs" / "global_step3")
    changes = ("use_mup=true", "base_shapes_file=shapes", "finetune=true")
    pinned(line_of(tmp_path, "different model", *changes))


@pytest.mark.parametrize("suffix", ["", ".0"])
@pytest.mark.parametrize("name", ["sequential.2.input_layernorm.weight", "tied_modules.embed.word_embeddings.weight",
                                  "6.final_linear.weight"])  # fmt: skip
def test_gpt_neox_s_base_shapes_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    (tmp_path / f"shapes{suffix}").write_text(f"{name}:\n- 64\n- null\n")
    (tmp_path / "my.yml").write_text(YAML.replace("load: theirs\n", ""))
    given = ["use_mup=true", f"base_shapes_file={tmp_path}/shapes"]
    (problem,) = neox_base_shapes(resolve([tmp_path / "my.yml"], given, gpus=1))
    assert problem.id == "base-shapes-of-gpt-neox"
    pinned(problem)
    (tmp_path / f"shapes{suffix}").write_text("embedding.word_embeddings.weight:\n- null\n- 64\n")
    assert not list(neox_base_shapes(resolve([tmp_path / "my.yml"], given, gpus=1)))


def test_without_optimizer_state_it_says_what_to_set(tmp_path: Path, run: Run) -> None:
    run.optimizer = "none"
    write(run, tmp_path / "theirs" / "global_step3")
    error, listed = problems(tmp_path)
    assert error.severity == "error" and error.id == "checkpoint-without-optimizer"
    assert str(error.where).endswith("my.yml:19:1") and error.hint.startswith("set finetune: true to load only")
    (listed,) = problems(tmp_path, "finetune=true")
    pinned(listed, "not restored")


def test_another_model_is_an_error_at_the_parameter(tmp_path: Path, run: Run) -> None:
    write(run, tmp_path / "theirs" / "global_step3")
    (problem,) = problems(tmp_path, "num_layers=3")
    assert (problem.hint.split(",")[0], problem.severity) == ("set num_layers: 2", "error")


def test_another_schedule_is_an_error(tmp_path: Path, run: Run) -> None:
    write(run, tmp_path / "theirs" / "global_step3")
    found = problems(tmp_path, "lr_decay_iters=40")
    assert [problem.id for problem in found] == ["checkpoint-other-lr-schedule", "checkpoint-of-gpt-neox"]
    pinned(found[0])
    assert len(problems(tmp_path, "lr_decay_iters=40", "override_lr_scheduler=true")) == 1


def test_what_shapes_do_not_show_is_compared_with_the_saved_configuration(tmp_path: Path, run: Run) -> None:
    folder = write(run, tmp_path / "theirs" / "global_step3")
    (folder / "configs").mkdir()
    (folder / "configs" / "my.yml").write_text(YAML.replace("dialect: neox-2026\n", "") + "rotary_pct: 0.25\n")
    (warning, _) = problems(tmp_path)
    assert warning.severity == "warning" and warning.id == "checkpoint-other-model"
    assert warning.what.endswith("rotary_pct (saved 0.25, here 1.0)")
    (error,) = problems(tmp_path, "gpt_j_residual=false")
    assert error.severity == "error" and error.hint == "set gpt_j_residual: true"
    unread = ("rotary_pct=0.25", "rms_norm_epsilon=0.5")
    assert [problem.id for problem in problems(tmp_path, *unread)] == ["checkpoint-of-gpt-neox"]
    (warning, _) = problems(tmp_path, "rotary_pct=0.25", "rope_scaling={rope_type: linear, factor: 2}")
    assert "rope_scaling.factor (saved None, here 2" in warning.what


def test_weights_only_in_zero3_s_partitions(tmp_path: Path) -> None:
    folder = tmp_path / "theirs" / "global_step3"
    folder.mkdir(parents=True)
    (folder / "zero_pp_rank_0_mp_rank_00_model_states.pt").touch()
    (problem,) = problems(tmp_path)
    pinned(problem)
    assert "zero_to_fp32.py" in problem.hint


def test_the_command_reads_it_without_torch_and_refuses_hostile_files(tmp_path: Path, run: Run) -> None:
    folder = write(run, tmp_path / "theirs" / "global_step3")
    problems(tmp_path)
    command = [sys.executable, "-X", "importtime", "deepy.py", "check", str(tmp_path / "my.yml"), "--gpus", "1"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "[checkpoint-of-gpt-neox]" in shown.stderr and "| torch\n" not in shown.stderr and shown.returncode == 0

    class Call:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/mark",)

    torch.save({"iteration": Call()}, folder / "mp_rank_01_model_states.pt")
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "mp_rank_01_model_states.pt refers to posix.system" in shown.stderr and "Traceback" not in shown.stderr
    assert not (tmp_path / "mark").exists()
