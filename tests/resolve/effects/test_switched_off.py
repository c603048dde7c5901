"""Parameters that another one switches off are reported with their line, unless they are explicitly disabled."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import pytest

from neoxargs.base.problems import Problems
from neoxargs.checks.trainer import trainer_problems
from neoxargs.facts.layer_kinds import RECURRENT
from neoxargs.registry import REGISTRY
from neoxargs.resolve import complete, draft, read_files
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.effects.switched_off import SwitchedOff, table
from tests.support.configure import configure
from tests.support.paths import corpus_files, needs_corpus
from tests.support.snapshots import pinned

ADAM = "optimizer: {type: Adam, params: {lr: 0.001}}\n"
ONECYCLE = ADAM + "scheduler: {type: OneCycle, params: {cycle_min_lr: 0.0001, cycle_max_lr: 0.001%s}}\n"
ZERO = "pipe_parallel_size: 0\nzero_optimization: {stage: %s, %s}\n"


def warnings(text: str) -> list[str]:
    """Return the warnings about parameters that have an effect in other runs."""
    found = [problem.what for problem in trainer_problems(configure(text)) if problem.severity == "warning"]
    return [what for what in found if REGISTRY.parameters[what.partition(" (")[0]].effect != "none"]


PAIRS = "train_impl: rm\ndataset_impl: pairwise\npack_impl: unpacked\nz_loss: 0.01\n"
PAIRS += (
    "pos_train_data_paths: a\nneg_train_data_paths: b\npos_train_label_data_paths: c\nneg_train_label_data_paths: d\n"
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("precision: bfloat16\nloss_scale_window: 500", "loss_scale_window"),
        ("precision: fp32\nmin_scale: 2\nhysteresis: 3", "min_scale hysteresis"),
        ("precision: fp16\nloss_scale: 128\nhysteresis: 3", "hysteresis"),
        ("fp16: {enabled: true, loss_scale: 128, loss_scale_window: 7}", "fp16.loss_scale_window"),
        ("precision: fp16\nbf16: {check_grad_overflow: false}", "bf16.check_grad_overflow"),
        ("precision: fp32\nfp32_allreduce: true", "fp32_allreduce"),
        ("optimizer: {type: Muon, params: {torch_adam: true}}", "optimizer.params.torch_adam"),
        (ONECYCLE % "" + "warmup: 0.1\nlr_decay_iters: 50", "warmup lr_decay_iters"),
        (ONECYCLE % ", decay_lr_rate: 0.1", "scheduler.params.decay_lr_rate"),
        (ADAM + "scheduler: {type: WarmupLR}\nlr_decay_iters: 50", "lr_decay_iters"),
        (ADAM + "scheduler: {type: WarmupLR}\nload: x\noverride_lr_scheduler: true", "override_lr_scheduler"),
        ("override_lr_scheduler: true", "override_lr_scheduler"),
        ("lr_decay_style: constant\nmin_lr: 1e-6", "min_lr"),
        ("checkpoint_num_layers: 2", "checkpoint_num_layers"),
        ("synchronize_each_layer: true", "synchronize_each_layer"),
        ("context_parallel_style: ring", "context_parallel_style"),
        (ZERO % (1, "offload_optimizer: {pin_memory: false}"), "zero_optimization.offload_optimizer.pin_memory"),
        (
            ZERO % (1, "offload_optimizer: {device: cpu, nvme_path: /x}"),
            "zero_optimization.offload_optimizer.nvme_path",
        ),
        (ZERO % (1, "stage3_max_live_parameters: 5"), "zero_optimization.stage3_max_live_parameters"),
        (ZERO % (3, "round_robin_gradients: true"), "zero_optimization.round_robin_gradients"),
        ("zero_optimization: {overlap_comm: true}", "zero_optimization.overlap_comm"),
        ("pipe_parallel_size: 1\nzero_optimization: {stage: 1, overlap_comm: true}", "zero_optimization.overlap_comm"),
        ("tokenizer_type: ByteLevelTokenizer\nvocab_file: v\nmerge_file: m", "vocab_file merge_file"),
        ("aio: {queue_depth: 32}", "aio.queue_depth"),
        ("checkpoint: {writer: {type: python}}\naio: {queue_depth: 32}", "aio.queue_depth"),
        ("prescale_gradients: true\ngradient_predivide_factor: 2", "gradient_predivide_factor"),
        ("pos_emb: learned\nrotary_pct: 0.25", "rotary_pct"),
        ("pos_emb: rotary\nrpe_num_buckets: 8", "rpe_num_buckets"),
        ("norm: rmsnorm\nlayernorm_epsilon: 1e-6", "layernorm_epsilon"),
        ("init_method: small_init\noutput_layer_init_method: wang_init\ninit_method_std: 0.1", "init_method_std"),
        ("gpt_j_tied: true", "gpt_j_tied"),
        ("head_size: 8", "head_size"),
        ('attention_config: [[["rwkv"], "all"]]\nnorm_placement: both', "norm_placement"),
        ("param_sharing_style: spaced", "param_sharing_style"),
        ("weighted_sampler_alpha: 0.3", "weighted_sampler_alpha"),
        ("lora: {alpha: 32}", "lora.alpha"),
        ("adlr_autoresume_interval: 10", "adlr_autoresume_interval"),
        ("checkpoint_factor: 100\nkeep_last_n_checkpoints: 2", "checkpoint_factor keep_last_n_checkpoints"),
        ("finetune: true", "finetune"),
        ("wandb_project: mine", "wandb_project"),
        ("memory_profiling_path: here.pickle", "memory_profiling_path"),
        ("tensorboard: {output_path: here}", "tensorboard.output_path"),
        (PAIRS + "eval_interval: 5", "eval_interval"),
        (PAIRS + "checkpoint_validation_with_forward_pass: true", "checkpoint_validation_with_forward_pass"),
        ("flops_profiler: {profile_step: 3}", "flops_profiler.profile_step"),
    ],
)
def test_parameters_that_are_switched_off_are_reported(text: str, names: str) -> None:
    (what,) = warnings(text)
    values = what.partition(" no effect: ")[0].rpartition(" ")[0]
    assert [part.partition(" (")[0] for part in values.split(" and ")] == names.split()


@pytest.mark.parametrize(
    "text",
    [
        "precision: fp16\nloss_scale_window: 500",
        "fp16: {enabled: false, loss_scale_window: 500}",
        ONECYCLE % ", decay_lr_rate: 0.1, decay_step_size: 10",
        ADAM + "scheduler: {type: WarmupDecayLR}\nwarmup: 0.1\nlr_decay_iters: 50",
        "checkpoint_activations: false\ncheckpoint_num_layers: 2",
        "checkpoint_activations: true\ncheckpoint_num_layers: 2\npartition_activations: true",
        "checkpoint_activations: selective",
        "zero_optimization: {stage: 0, overlap_comm: true}",
        ZERO % (1, "offload_optimizer: {device: none, pin_memory: false}"),
        ZERO % (1, "overlap_comm: true, reduce_bucket_size: 5"),
        ZERO % (3, "offload_optimizer: {device: nvme, nvme_path: /x}") + "aio: {queue_depth: 32}",
        "checkpoint: {writer: {type: FAST}}\naio: {queue_depth: 32}",
        "checkpoint: {writer: {decoupled: true}}\naio: {queue_depth: 32}",
        "init_method: normal\noutput_layer_init_method: wang_init\ninit_method_std: 0.1",
        "pos_emb: rotary\nrotary_pct: 0.25",
        "tokenizer_type: HFTokenizer\nvocab_file: v",
        "save: x\ncheckpoint_factor: 100\nload: y\nfinetune: true",
        "use_wandb: false\nwandb_project: mine",
        PAIRS + "pos_valid_data_paths: a\nneg_valid_data_paths: b\neval_interval: 5",
        PAIRS.replace("train_impl: rm", "train_impl: dpo").replace("z_loss: 0.01", "eod_mask_loss: true"),
        "flops_profiler: {enabled: true, profile_step: 3}",
    ],
)
def test_parameters_with_an_effect_or_explicitly_disabled_are_not_reported(text: str) -> None:
    assert warnings(text) == []


def test_deepspeed_switches_overlapped_communication_off_in_a_pipeline() -> None:
    engine = Path(str(find_spec("deepspeed").origin)).parent / "runtime/engine.py"
    body = engine.read_text().partition("overlap_comm = self.zero_overlap_comm()")[2]
    assert "PipelineModule" in body.partition("overlap_comm = False")[0]


def test_values_are_compared_without_case() -> None:
    for row in table():
        for condition in row.when.values():
            values = [value for each in condition.values() for value in each] if isinstance(condition, dict) else []
            assert all(value == value.lower() for value in values if isinstance(value, str)), row.names
    wsd = "lr_decay_style: WSD\nlr_wsd_decay_iters: 10\nlr_wsd_decay_style: linear\n"
    assert warnings(wsd) == [] and warnings("lr_decay_style: cosine\nlr_wsd_decay_iters: 10\n")


def test_an_unknown_switch_switches_nothing_off() -> None:
    with pytest.raises(Unresolved) as stop:
        configure("checkpoint_activations: perhaps\ncheckpoint_num_layers: 2")
    assert not [problem for problem in trainer_problems(stop.value.certain) if problem.severity == "warning"]


def test_one_reason_is_one_warning_with_all_lines_and_a_hint() -> None:
    (problem,) = trainer_problems(configure("checkpoint_factor: 100\nseed: 1\nkeep_last_n_checkpoints: 2"))
    pinned(problem)
    assert [place.line for place in (problem.where, *problem.also) if place] == [1, 3]


@pytest.mark.parametrize("row", table(), ids=lambda row: row.reason)
def test_a_row_names_parameters_that_have_an_effect_elsewhere(row: SwitchedOff) -> None:
    assert all(switch in REGISTRY.parameters for switch in row.when)
    for word in row.names:
        found = [p for name, p in REGISTRY.parameters.items() if fnmatchcase(name, word)]
        assert any(p.effect not in ("none", "not built") for p in found), word


def test_rows_name_all_kinds_of_their_sort() -> None:
    """The table cannot refer to the registry or to the kinds of layers."""
    (momentum,) = [row for row in table() if row.names == {"momentum"}]
    types = REGISTRY.parameters["optimizer.params.momentum"].used_by_types
    assert momentum.when == {"optimizer.type": {"is not": [*types]}}
    (width,) = [row for row in table() if "num_kv_heads" in row.names]
    assert width.when == {"attention_config": {"only": [*RECURRENT]}}


@needs_corpus
def test_reasons_found_in_published_configurations() -> None:
    """All of these warnings were reviewed and are correct."""
    found = set()
    for path in corpus_files():
        try:
            config = complete(draft(read_files([path])), 8)
        except Problems:
            continue
        found |= {what.what.partition("no effect: ")[2] for what in trainer_problems(config)}
    whys = {row.reason for row in table()}
    assert found & whys <= {
        "no checkpoint is saved because save is not set", "no checkpoint is loaded because load is not set",
        "use_wandb is off", "pos_emb is not rotary", "with lr_decay_style constant, the learning rate does not decay",
        "train_data_paths, valid_data_paths and test_data_paths already define the splits",
        "attention_config has no layers with attention and feed-forward",
        "rwkv layers have norms and initial values of their own, and attention_config has no other layers",
        "with a pipeline (pipe_parallel_size of 1 or more), only bf16 gradients are reduced before its end",
        "sm3 and Rprop have no weight decay",
    }  # fmt: skip
