"""Rules about ranks, data, activations and programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.facts.data import path_list, split_proportions
from neoxargs.resolve import rules
from neoxargs.resolve.effects.no_effect import no_effect_warnings
from tests.support.configure import configure
from tests.support.refused import refused
from tests.support.snapshots import pinned


def test_ranks() -> None:
    config = configure("{pipe_parallel_size: 2, model_parallel_size: 2}", gpus=8)
    parallel = config.parallel
    assert (parallel.world_size, parallel.global_num_gpus, parallel.is_pipe_parallel) == (8, 8, True)
    assert configure("pipe_parallel_size: 1").parallel.is_pipe_parallel
    assert not configure("pipe_parallel_size: 0").parallel.is_pipe_parallel
    assert configure("global_num_gpus: 8", gpus=8).parallel.world_size == 8


def test_a_world_size_in_a_file_has_no_effect() -> None:
    config = configure("world_size: 3", gpus=8)
    assert config.parallel.world_size == 8
    (warning,) = [problem for problem in no_effect_warnings(config, ()) if problem.about == ("world_size",)]
    pinned(warning)


@pytest.mark.parametrize("value", ["10000", "[5, 10]"])
def test_save_iters_of_an_old_file_has_no_effect(value: str) -> None:
    config = configure(f"{{save: out, checkpoint_factor: 4, extra_save_iters: [1], save_iters: {value}}}")
    assert config.checkpoint.extra_save_iters == [1]
    (warning,) = no_effect_warnings(config, ())
    reason = "checkpoint_factor and extra_save_iters determine when checkpoints are saved"
    assert (warning.what, warning.hint) == (f"save_iters ({value}) has no effect: {reason}", "remove save_iters")


def test_a_model_parallel_size_of_0_means_1():
    assert configure("model_parallel_size: 0").parallel.model_parallel_size == 1


def test_one_mistake_in_the_layout_is_one_problem() -> None:
    assert (
        len(refused(configure, "model_parallel_size: 3", gpus=3)) == 2
    )  # heads and the hidden size do not divide by 3


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("969, 30, 1", [969, 30, 1]),
        ("90/10", [90, 10]),
        ("100", [100]),
        ([0.9, 0.1], [0.9, 0.1]),
        ("1,2,3,4", None),
        ("most", None),
        ("5,-1", None),
        ("inf, 1", None),
        ("", None),
    ],
)
def test_proportions(split: str | list[float], expected: list[float] | None) -> None:
    assert split_proportions(split) == expected


def test_paths_are_a_list_or_one_string() -> None:
    assert path_list("a, b") == path_list(["a", "b"]) == ["a", "b"]
    assert path_list(None) == []


def test_datasets_have_equal_weights_by_default() -> None:
    data = configure("{train_data_paths: [a, b], valid_data_paths: c, test_data_paths: [d]}").data
    assert (data.train_data_weights, data.valid_data_weights, data.test_data_weights) == ([1, 1], [1], [1])
    assert configure("{pos_train_data_paths: [a, b]}").data.train_data_weights == [1, 1]
    assert configure("data_path: a").data.train_data_weights is None


def test_the_number_of_checkpoints_in_a_contiguous_buffer() -> None:
    lines = "checkpoint_activations: true, contiguous_checkpointing: true, partition_activations: true"
    assert configure(f"{{{lines}}}").activation_checkpointing.number_checkpoints == 4
    assert configure(f"{{{lines}, checkpoint_num_layers: 3}}").activation_checkpointing.number_checkpoints == 2
    assert configure("checkpoint_activations: true").activation_checkpointing.number_checkpoints is None


def test_programs() -> None:
    assert configure().generation.text_gen_type == "unconditional"
    assert configure("sample_input_file: prompts.txt").generation.text_gen_type == "input-file"
    assert configure().logging.run_dir == "runs"
    assert configure("{save: out, checkpoint_factor: 10}").logging.run_dir == "out"
    assert configure("{deepspeed_slurm: true, launcher: slurm}").runner.force_multi
    assert not configure("launcher: slurm").runner.force_multi


def test_weights_that_are_removed_are_not_told() -> None:
    assert not configure("{weight_by_num_documents: true, train_data_weights: null}").warnings


@pytest.mark.parametrize(
    "text",
    [
        "{zero_optimization: {stage: 1}, pipe_parallel_size: 2}",
        "{zero_optimization: {stage: 3}, pipe_parallel_size: 0}",
        "{zero_optimization: {stage: 3, offload_param: {device: cpu}}}",
        "{autotuning: {enabled: true}, zero_optimization: {stage: [0, 1]}}",
        "deepspeed_extra_args: {zero_allow_untested_optimizer: true, comms_logger: {enabled: true}}",
        "{save: out, extra_save_iters: [5]}",
        "{train_data_paths: [a, b], train_data_weights: [0, 1], valid_data_paths: c, test_data_paths: d}",
        "{save: out, checkpoint_factor: 1.5, checkpoint_scale: log}",
    ],
)
def test_valid_combinations_in_a_run(text: str) -> None:
    assert configure(text).warnings == []


def test_a_seed_is_one_that_numpy_accepts() -> None:
    assert configure("seed: 4294967295").training.seed == 2**32 - 1
    pinned(refused(configure, "seed: 4294967296"))


def test_every_module_of_rules_is_registered() -> None:
    modules = {module.stem for module in Path(rules.__file__).parent.glob("*.py") if "\n@check\n" in module.read_text()}
    assert modules <= {subject.__name__.rpartition(".")[2] for subject in rules.SUBJECTS}


def test_each_mistake_in_a_set_of_validation_is_a_problem_at_its_key() -> None:
    text = "validation:\n  web: web\n  a b: web\n  c: {data_path: c, wait: 2}\n  d: 3\nsplit: 9, 0, 1"
    found = [(problem.id, problem.where and problem.where[1:3]) for problem in refused(configure, text)]
    assert found == [("validation-names-its-sets", place) for place in ((3, 3), (4, 3), (4, 3), (5, 3))]


@pytest.mark.parametrize("text", [
    "validation: {}", "validation: {}\ntrain_data_paths: web",
    "validation: {a: web}\ntrain_data_paths: web\nvalid_label_data_paths: web_label",
    "validation: {a: web}\ntrain_data_paths: web\ntrain_label_data_paths: x\nvalid_label_data_paths: web_label",
])  # fmt: skip
def test_one_mistake_about_validation_is_one_problem(text: str) -> None:
    assert len(refused(configure, text)) == 1


@pytest.mark.parametrize(("text", "warned"), [
    ("do_valid: false", True), ("split: '9,0,1'", True), ("split: '9'", True), ("validation: {a: web}", False),
    ("{split: '9,0,1', validation: {a: web}}", False), ("split: '8,1,1'", False),
])  # fmt: skip
def test_best_checkpoints_without_validation_data(text: str, warned: bool) -> None:
    kept = {"save": "out", "checkpoint_factor": 10, "eval_interval": 10, "eval_iters": 1, "data_path": "web"}
    best = {"keep_best_checkpoints": 1, "keep_last_n_checkpoints": 1}
    found = configure(text, json.dumps(kept | best)).warnings
    assert ("keep-best-checkpoints-has-validation-data" in {each.id for each in found}) == warned


def test_an_attention_kernel_by_another_programs_name() -> None:
    (problem,) = refused(configure, "attention_backend: flash")
    assert [edit.text for edit in problem.edits] == ["sdpa"]
