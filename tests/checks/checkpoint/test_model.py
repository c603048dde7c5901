"""A checkpoint of another model is an error before the ranks start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problem
from neoxargs.checks.all import fit_of_checkpoint
from neoxargs.checks.checkpoint.model import (
    changed_training,
    checkpoint_to_read,
    loaded_checkpoint,
    other_base_shapes,
    other_data,
    other_model,
    skipped_checkpoints,
    unlearned_positions,
)
from neoxargs.config.config import Config
from neoxargs.files.checkpoints.optimizer_state import other_optimizer
from neoxargs.files.token_files.checksums import known_digests
from neoxargs.files.token_files.index import digest
from neoxargs.targets.ranks import train_values
from neoxargs.train.checkpoint.rank_files import RankFiles
from neoxargs.train.checkpoint.saving import _write_config
from tests.support import smallest
from tests.support.configure import recorded, smallest_run
from tests.support.finetuning import token_file
from tests.support.snapshots import pinned


def told(folder: Path, text: str = "", **saved: Any) -> list[Problem]:
    """Of the smallest run, which loads a checkpoint of iteration 10 with these values."""
    recorded(folder, saved)
    config = resolved(folder, text)
    return list(other_model(config, loaded_checkpoint(config)))


def resolved(folder: Path, text: str = "") -> Config:
    return smallest_run(f"load: {folder}\n{text}")


@pytest.mark.parametrize("text", ["", "finetune: true\n", "iteration: 10\n"])
def test_another_width_is_refused_at_its_line(tmp_path: Path, text: str) -> None:
    [problem] = told(tmp_path, text, hidden_size=8192)
    assert (problem.severity, problem.id) == ("error", "checkpoint-other-model")
    assert "8192 in the checkpoint" in problem.what and str(tmp_path / "global_step10") in problem.what
    assert problem.where and problem.where.text.startswith("hidden_size")


def test_base_shapes_with_other_contents_are_refused(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.yml"
    shapes.write_text("a: [64]\n")
    config = resolved(tmp_path, f"use_mup: true\nbase_shapes_file: {shapes}\n")
    written = _write_config_of(config, tmp_path / "global_step10")
    (tmp_path / "elsewhere.yml").write_text(shapes.read_text())
    same = resolved(tmp_path, f"use_mup: true\nbase_shapes_file: {tmp_path}/elsewhere.yml\n")
    assert [*other_base_shapes(config, written), *other_base_shapes(same, written), *other_data(config, written)] == []
    shapes.write_text("a: [128]\n")
    [problem] = other_base_shapes(config, written)
    assert problem.severity == "error" and f"base_shapes_file ({shapes}) has other contents" in problem.what
    assert problem in fit_of_checkpoint(config)


def _write_config_of(config: Config, checkpoint: Path) -> Path:
    checkpoint.mkdir()
    _write_config(RankFiles(checkpoint), config)
    return checkpoint


def test_shared_layers_of_another_number_are_refused(tmp_path: Path) -> None:
    assert [problem.about[0] for problem in told(tmp_path, param_sharing_style="spaced")] == ["param_sharing_style"]


def test_the_same_model_and_a_run_without_a_checkpoint_are_fine(tmp_path: Path) -> None:
    values = dict(line.split(": ") for line in smallest.YAML.splitlines() if line.startswith(("num_l", "hidden_size")))
    assert len(values) == 2
    assert told(tmp_path, **{name: int(value) for name, value in values.items()}) == []
    assert told(tmp_path, "iteration: 20\n", hidden_size=8192) == []


#: Otherwise the names that a file sets would decide which defaults apply.
DIALECT = "dialect: neox-2026\n"


def of_run(folder: Path, before: str, now: str) -> tuple[list[str], list[Problem], list[Problem]]:
    """What is told of a run that continues the checkpoint of the smallest run with other values.

    Returns the parameters with an error, and the warnings about the model and about the training.
    """
    checkpoint = recorded(folder, train_values(resolved(folder, DIALECT + before)))
    config = resolved(folder, DIALECT + now)
    model = list(other_model(config, checkpoint))
    reading = [problem for problem in fit_of_checkpoint(config) if problem.id.startswith("checkpoint-")]
    assert [problem.about for problem in reading] == [problem.about for problem in model]  # as generate.py tells it
    errors = [problem.about[0] for problem in model if problem.severity == "error"]
    return errors, [problem for problem in model if problem.severity == "warning"], _told_of_training(config)


def _told_of_training(config: Config) -> list[Problem]:
    return list(changed_training(config, loaded_checkpoint(config)))


MOE = "moe_num_experts: 4\nmoe_top_k: 2\nmoe_router_type: topk\n"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("", "num_kv_heads: 2\n", ["num_kv_heads"]),
        ("", "activation: relu\ngpt_j_residual: true\n", ["gpt_j_residual", "activation"]),
        ("activation: relu\n", "", ["activation"]),
        ("", "norm: rmsnorm\n", ["norm"]),
        ("", "pos_emb: rotary\n", ["pos_emb"]),
        ("", "no_weight_tying: true\n", ["no_weight_tying"]),
        ("", "use_bias_in_mlp: false\n", ["use_bias_in_mlp"]),
        ("activation: swiglu\n", "activation: swiglu\nintermediate_size: 512\n", ["intermediate_size"]),
        ("", "head_dim: 32\n", ["head_dim"]),
        (MOE, f"{MOE}moe_num_shared_experts: 1\n", ["moe_num_shared_experts"]),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, before: str, now: str, expected: list[str]) -> None:
    assert of_run(tmp_path, before, now) == (expected, [], [])


def test_a_longer_learned_position_table_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path, train_values(resolved(tmp_path)))
    longer = smallest_run(f"load: {tmp_path}\n", smallest.YAML.replace("32", "64"))
    [problem] = other_model(longer, loaded_checkpoint(longer))
    assert problem.about[0] == "max_position_embeddings"


ROTARY = "pos_emb: rotary\n"
SCALED = f"{ROTARY}rope_scaling: {{{{rope_type: {{}}, factor: 2}}}}\n"
ORIGINAL = SCALED.replace("2}", "2, original_max_position_embeddings: 8}")


@pytest.mark.parametrize(
    ("text", "length", "changed", "beyond"),
    [
        (ROTARY, 64, False, True),
        (ROTARY, 16, False, False),
        (f"{ROTARY}max_position_embeddings: 64\n", 64, False, False),
        (SCALED.format("linear"), 64, False, False),
        (SCALED.format("linear"), 128, False, True),
        (SCALED.format("dynamic"), 128, True, False),
        (SCALED.format("yarn"), 16, True, False),
        (ORIGINAL.format("yarn"), 64, False, True),
        ("pos_emb: alibi\n", 64, False, False),
    ],
)
def test_samples_of_another_length_than_the_models(
    tmp_path: Path, text: str, length: int, changed: bool, beyond: bool
) -> None:
    recorded(tmp_path, train_values(smallest_run(text.replace("max_position_embeddings: 64\n", ""))))
    other = smallest.YAML.replace("seq_length: 32\nmax_position_embeddings: 32", f"seq_length: {length}")
    config = smallest_run(f"load: {tmp_path}\n{text}", other)
    names = [problem.about[0] for problem in other_model(config, checkpoint_to_read(config))]
    assert names == ["max_position_embeddings"] * changed
    told = [problem.id for problem in (*config.warnings, *unlearned_positions(config))]
    assert told.count("rotary-positions-reach-seq-length") == beyond


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (ROTARY, f"{ROTARY}rotary_emb_base: 50000\n", ["rotary_emb_base"]),
        (ROTARY, f"{ROTARY}rope_scaling: {{rope_type: linear, factor: 2}}\n", ["rope_type", "factor"]),
        ("", "layernorm_epsilon: 1e-3\n", ["layernorm_epsilon"]),
        ("", "sliding_window_width: 8\n", ["sliding_window_width"]),
        (MOE, MOE.replace("top_k: 2", "top_k: 1"), ["moe_top_k"]),
    ],
)
def test_values_that_models_adapt_to_are_a_warning(tmp_path: Path, before: str, now: str, expected: list[str]) -> None:
    errors, [warning], training = of_run(tmp_path, before, now)
    assert (errors, training, warning.id) == ([], [], "checkpoint-model-changed")
    assert [name.rpartition(".")[2] for name in warning.about[:-1]] == expected
    assert warning.where and expected[0] in warning.where.text


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("activation: silu\n", "activation: swish\n"),
        ("", "attention_config: [[[flash], all]]\n"),
        ("", "head_dim: 16\nintermediate_size: 256\n"),
        ("", "rms_norm_epsilon: 0.5\nrotary_pct: 0.25\nmoe_top_k: 1\n"),  # nothing reads them
        ("", "init_method: xavier_uniform\nscaled_upper_triang_masked_softmax_fusion: true\n"),
        ("", "model_parallel_size: 1\nmake_vocab_size_divisible_by: 64\nzero_optimization: {stage: 1}\n"),
        ("", "lr_decay_iters: 10\ncheckpoint_factor: 5\neval_interval: 3\nlog_interval: 2\n"),
    ],
)
def test_what_means_the_same_is_not_told(tmp_path: Path, before: str, now: str) -> None:
    assert of_run(tmp_path, before, now) == ([], [], [])


TRAINING = (
    "seed: 7\nweight_decay: 0.3\nhidden_dropout: 0.2\ngradient_accumulation_steps: 3\n"
    "text_path: other.txt\nsplit: 80,10,10\n"
)


def test_changes_of_training_are_told_in_one_warning(tmp_path: Path) -> None:
    assert of_run(tmp_path, "split: 95,4,1\n", "split: [95, 4, 1]\n") == ([], [], [])
    errors, model, [warning] = of_run(tmp_path, "text_path: text.txt\n", TRAINING)
    assert (errors, model, warning.id, warning.severity) == ([], [], "checkpoint-training-changed", "warning")
    for told_value in ("seed (was 1234, now 7)", "text_path (was text.txt, now other.txt)", "now 0.2)", "now 0.3)"):
        assert told_value in warning.what
    names = {"train_batch_size", "hidden_dropout", "weight_decay", "text_path", "split", "seed", "load"}
    assert {*warning.about} == names
    assert of_run(tmp_path, "", f"{TRAINING}finetune: true\n")[2] == []


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("loss_average: tokens\n", ["loss_average"]),
        ("precision: bfloat16\n", ["precision"]),
        ("float32_matmul_precision: high\n", ["float32_matmul_precision"]),
        ("z_loss: 1e-4\n", ["z_loss"]),
        ("deepspeed_extra_args: {some_key: 1}\n", ["deepspeed_extra_args"]),
        ("eval_iters: 3\neval_interval: 5\nmax_skipped_steps: 7\n", []),
    ],
)
def test_whatever_changes_the_result_of_steps_is_told(tmp_path: Path, now: str, expected: list[str]) -> None:
    errors, model, told = of_run(tmp_path, "", now)
    assert (errors, model) == ([], [])
    assert [[name for name in problem.about if name != "load"] for problem in told] == ([expected] if expected else [])


VALIDATED = "train_data_paths: [a]\nvalid_data_paths: [b]\ntest_data_paths: [c]\n"


def test_other_validation_data_is_told(tmp_path: Path) -> None:
    [warning] = of_run(tmp_path, VALIDATED, VALIDATED.replace("[b]", "[d]"))[2]
    assert "valid_data_paths" in warning.what and "train_data_paths" not in warning.what


def test_another_objective_is_a_setting_of_training(tmp_path: Path) -> None:
    now = "train_impl: dpo\ndataset_impl: pairwise\npack_impl: unpacked\n"
    now += "pos_train_data_paths: [a]\nneg_train_data_paths: [b]\n"
    assert of_run(tmp_path, "", f"{now}finetune: true\n") == ([], [], [])
    lost, warning = of_run(tmp_path, "", now)[2]
    assert (lost.id, lost.severity, warning.id) == ("reference-model-lost", "error", "checkpoint-training-changed")
    assert [problem.id for problem in of_run(tmp_path, now, "")[2]] == ["checkpoint-training-changed"]


def test_an_older_record_without_values_is_not_compared(tmp_path: Path) -> None:
    assert told(tmp_path, "activation: relu\nhidden_dropout: 0.2\n", unknown_name=1) == []


def skipped(folder: Path, text: str = "") -> list[Problem]:
    config = resolved(folder, text)
    return list(skipped_checkpoints(config, loaded_checkpoint(config)))


def test_checkpoints_that_are_skipped_are_warned_of(tmp_path: Path) -> None:
    for iteration in (10, 20):
        recorded(tmp_path, {}, iteration)
    (tmp_path / "latest").write_text("global_step20")
    assert skipped(tmp_path) == []
    (tmp_path / "global_step20" / "config.json").unlink()
    [damaged] = skipped(tmp_path)
    pinned(damaged)
    (tmp_path / "latest").write_text("global_step99")
    [missing, _] = skipped(tmp_path)
    assert missing.severity == "warning"
    pinned(missing)
    assert skipped(tmp_path, "iteration: 10\n") == []


@pytest.mark.parametrize(
    ("theirs", "text", "refused"),
    [
        ("Adam", "optimizer: {type: Lion}\n", True),
        ("Lion", "", True),
        ("AdamW", "", False),
        ("Lion", "no_load_optim: true\n", False),
        ("Lion", "finetune: true\n", False),
        ("Lion", "lora: {rank: 8}\n", False),  # which cannot continue a whole model in any case
    ],
)
def test_the_state_of_another_optimizer_is_refused(tmp_path: Path, theirs: str, text: str, refused: bool) -> None:
    told(tmp_path, optimizer={"type": theirs})
    config = resolved(tmp_path, text)
    found = [problem.id for problem in other_optimizer(config, loaded_checkpoint(config))]
    assert found == ["checkpoint-other-optimizer"] * refused


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_checkpoint_knows_the_whole_contents_of_its_data_also_after_a_move(tmp_path: Path, suffix: str) -> None:
    text = token_file(tmp_path / "text", [[1, 2, 3]] * 100_000)
    checkpoint = tmp_path / "global_step1"
    checkpoint.mkdir()
    known = {suffix: digest.to_json() for suffix, digest in known_digests(text).items()}
    (checkpoint / "data.json").write_text(json.dumps({text: known, "b": {".bin": {"bytes": 4}}}))
    documents = [[1, 2, 3]] * 100_000
    other = token_file(tmp_path / "b", [[1]])

    def told(*names: str) -> list[str]:
        config = resolved(tmp_path, f"data_path: [{', '.join(names)}]\n")
        return [problem.what.partition(" since")[0] for problem in other_data(config, checkpoint)]

    assert told(text, other) == []
    moved = token_file(tmp_path / "moved", documents)
    assert told(moved, other) == []
    documents[50_000] = [1, 2, 4] if suffix == ".bin" else [1, 2]
    token_file(tmp_path / "moved", documents)
    assert told(moved, other) == [f"the contents of {moved} have changed"]
    (tmp_path / "moved.checksums.json").unlink()  # of other programs, only the size is known until a run has read it
    assert told(moved, other) == [f"the contents of {moved} have changed"] * (suffix == ".idx")
    assert told(moved) == []  # another number of files: nothing says which is which


def test_token_files_with_other_contents_are_a_warning(tmp_path: Path) -> None:
    text = token_file(tmp_path / "text", [[1, 2, 3]])
    checkpoint = tmp_path / "global_step1"
    checkpoint.mkdir()
    (checkpoint / "data.json").write_text(json.dumps({text: digest(text), "absent": "0"}))
    config = resolved(tmp_path)
    assert list(other_data(config, checkpoint)) == []
    token_file(tmp_path / "text", [[1, 2, 4]])
    [problem] = other_data(config, checkpoint)
    assert (problem.severity, problem.id) == ("warning", "checkpoint-training-changed")
    assert problem.what.startswith(f"the contents of {text} have changed since the checkpoint to be loaded (")
