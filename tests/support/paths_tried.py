"""Trains pairs of runs that differ in one setting, on each path through DeepSpeed, and measures how they differ.

`neoxargs/resolve/compare/same_result.json` holds the result, from which `deepy diff` takes what it may promise, and
docs/same-result.md is written. bench/same_result.py measures all of it; tests/train/test_same_result.py a part.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neoxargs.base.problems import Problems
from neoxargs.checks.trainer import trainer_problems
from neoxargs.config.config import Config
from neoxargs.resolve import File, complete, draft
from neoxargs.resolve.compare import same_result
from neoxargs.resolve.compare.differences import differences, value_of
from neoxargs.resolve.compare.same_result import path_of
from neoxargs.targets.wire_format import parse_rank_arguments, script_arguments
from tests.support.finetuning import token_file
from tests.support.ranks import run_ranks

Values = dict[str, Any]
DATA = Path(same_result.__file__).with_suffix(".json")
#: What launchers set, and trackers without a network.
_ENVIRONMENT = {"WANDB_MODE": "offline", "CROSS_SIZE": "1", "CROSS_RANK": "0", "LOCAL_SIZE": str(4)}
#: A list or an object of JSON without others in it.
_INNERMOST = re.compile(r"[\[{][^\[\]{}]*[\]}]")
RANKS = 4
BASE: Values = {
    "dialect": "neox-2026", "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 16,
    "max_position_embeddings": 16, "tokenizer_type": "ByteLevelTokenizer", "padded_vocab_size": 320,
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "train_iters": 4, "lr": 0.01, "warmup": 0,
    "lr_decay_style": "cosine", "gradient_clipping": 1.0, "weight_decay": 0.1, "hidden_dropout": 0.1,
    "attention_dropout": 0.1, "eval_iters": 0, "num_workers": 0, "pipe_parallel_size": 0, "precision": "fp32",
}  # fmt: skip
ENGINES: list[Values] = [
    *({"zero_optimization.stage": stage} for stage in range(4)),
    *({"zero_optimization.stage": stage, "pipe_parallel_size": 2} for stage in range(2)),
]
FP32, BF16 = {"precision": "fp32", "optimizer.type": "Adam"}, {"precision": "bfloat16", "optimizer.type": "Adam"}
FP16: Values = {"precision": "fp16", "fp16.initial_scale_power": 8, "optimizer.type": "Adam"}
MUON = {"precision": "bfloat16", "optimizer.type": "Muon"}
TENSOR, CONTEXT = {"model_parallel_size": 2}, {"context_parallel_size": 2}
#: Paths on which every change of ALONE is tried, or those of USUAL.
PATHS: list[Values] = [engine | rest for engine in ENGINES for rest in (FP32, BF16, FP16, MUON)]
#: Paths on which TOGETHER is tried.
MORE_PATHS: list[Values] = [
    *(engine | BF16 for engine in ENGINES), {"optimizer.type": "Lion"}, FP32, ENGINES[1] | FP16, ENGINES[1] | MUON,
    *(ENGINES[1] | BF16 | more for more in (TENSOR, CONTEXT, {"moe_num_experts": 4})), BF16 | {"lora.rank": 4},
]  # fmt: skip


class Change(NamedTuple):
    """Another value of a setting, what both runs set so that it matters, and what must change with it."""

    name: str
    value: Any
    needs: Values = {}
    too: Values = {}


def changes(values: Values, needs: Values | None = None) -> list[Change]:
    return [Change(name, value, needs or {}) for name, value in values.items()]


Z = "zero_optimization."
RECOMPUTED = {"checkpoint_activations": True}
#: What decides who draws a random number is compared without random numbers.
NO_DROPOUT = {"hidden_dropout": 0, "attention_dropout": 0}
#: Tried one at a time, where `check` accepts it and a run reads it; these on every path.
USUAL = [
    Change(Z + "stage", 0),
    *changes({
        Z + "contiguous_gradients": False, Z + "reduce_scatter": False, Z + "reduce_bucket_size": 1500,
        Z + "allgather_bucket_size": 1500, Z + "overlap_comm": True, Z + "round_robin_gradients": True,
        Z + "offload_optimizer.device": "cpu", Z + "offload_param.device": "cpu",
        Z + "stage3_param_persistence_threshold": 0, "prescale_gradients": True, "gradient_predivide_factor": 2.0,
        "communication_data_type": "fp32", "checkpoint_activations": True, "fp16_lm_cross_entropy": True,
        "fp16.initial_scale_power": 10, "fp16.loss_scale": 64, "fp16.loss_scale_window": 2, "fp16.hysteresis": 1,
        "fp16.consecutive_hysteresis": True, "fp16.min_loss_scale": 2,
    }),
    *changes({"pipe_parallel_size": 0, "train_micro_batch_size_per_gpu": 2}, NO_DROPOUT),
    Change("model_parallel_size", 1, TENSOR | NO_DROPOUT),
]  # fmt: skip
#: On paths with Adam in fp32 and bf16.
ALONE = [
    *USUAL,
    *changes({
        Z + "use_multi_rank_bucket_allreduce": False, Z + "sub_group_size": 5000, Z + "stage3_prefetch_bucket_size": 0,
        Z + "stage3_model_persistence_threshold": 0, Z + "stage3_max_live_parameters": 0,
        Z + "stage3_max_reuse_distance": 0, Z + "stage3_use_all_reduce_for_fetch_params": True,
        Z + "stage3_allgather_sequential": True, Z + "ignore_unused_parameters": False,
        Z + "zero_hpz_partition_size": 2, Z + "memory_efficient_linear": False,
        Z + "override_module_apply": False, Z + "leaf_module.names": ["layers.0"],
        Z + "stage3_module_granularity_threshold": 1600, "fp32_allreduce": True,
        "attention_softmax_in_fp32": True, "apply_query_key_layer_scaling": True, "bf16.immediate_grad_update": True,
        "bf16.check_grad_overflow": False, "scaled_upper_triang_masked_softmax_fusion": True, "onnx_safe": True,
        "optimizer.params.torch_adam": True, "pipeline.activation_checkpoint_interval": 1,
    }),
    Change("make_vocab_size_divisible_by", 512, NO_DROPOUT | {"padded_vocab_size": None}),
    Change("checkpoint_activations", "selective"),
    *(Change("communication_data_type", kind) for kind in ("bf16", "fp16")),
    Change("scaled_masked_softmax_fusion", True, {"pos_emb": "alibi"}),
    Change("pipeline.pipe_partitioned", False, TENSOR, {"pipeline.grad_partitioned": False}),
    *changes({"checkpoint_num_layers": 2, "deepspeed_activation_checkpointing": False, "checkpoint_in_cpu": True,
              "pipeline.use_reentrant": False}, RECOMPUTED),
    *changes({"partition_activations": True}, RECOMPUTED | TENSOR),
    *changes({"contiguous_checkpointing": True, "activation_checkpointing.number_checkpoints": 4},
             RECOMPUTED | TENSOR | {"partition_activations": True}),
    *changes({"sequence_parallel": True}, TENSOR | NO_DROPOUT),
    Change("context_parallel_size", 1, CONTEXT | NO_DROPOUT),
    Change("context_parallel_style", "ring", CONTEXT | NO_DROPOUT),
    Change("context_parallel_style", "all_to_all", CONTEXT | {"context_parallel_style": "ring"} | NO_DROPOUT),
    *changes({"pipe_partition_method": "uniform", "padded_vocab_size": 384}, NO_DROPOUT),
    *changes({"moe_expert_parallel_size": 2, "enable_expert_tensor_parallelism": True},
             {"moe_num_experts": 4, "expert_interval": 1, **NO_DROPOUT}),
]  # fmt: skip
#: Tried all at once, because together they must change no bit. `{}` is a folder.
TOGETHER: Values = {
    # logs
    "log_interval": 1, "log_dir": "{}/logs", "tensorboard_dir": "{}/tensorboard", "log_grad_norm": True,
    "log_grad_pct_zeros": True, "log_param_norm": True, "log_optimizer_states": True, "log_gradient_noise_scale": True,
    "gradient_noise_scale_n_batches": 2, "gradient_noise_scale_cpu_offload": True, "peak_theoretical_tflops": 1.0,
    "use_wandb": True, "wandb_project": "p", "wandb_group": "g", "wandb_run_name": "n", "profile": True,
    "memory_profiling": True, "memory_profiling_path": "{}/memory",
    "profile_step_start": 1, "profile_step_stop": 2,
    "steps_per_print": 1, "wall_clock_breakdown": True, "memory_breakdown": True, "dump_state": True,
    "tensorboard.enabled": True, "tensorboard.output_path": "{}/events", "tensorboard.job_name": "j",
    "csv_monitor.enabled": True, "csv_monitor.output_path": "{}/csv", "csv_monitor.job_name": "j",
    "comms_logger.enabled": True, "comms_logger.prof_all": False, "comms_logger.prof_ops": ["all_reduce"],
    "comms_logger.verbose": True, "comms_logger.debug": True, "flops_profiler.enabled": True,
    "flops_profiler.recompute_fwd_factor": 1.0, "flops_profiler.profile_step": 2, "flops_profiler.module_depth": 1,
    "flops_profiler.top_modules": 2, "flops_profiler.detailed": False, "flops_profiler.output_file": "{}/flops",
    "timers.throughput.enabled": False, "timers.throughput.synchronized": False, "char_level_ppl": True,
    "vocabulary_size": 320, "mup_width_scale": 3, "git_hash": "abc", "user_script": "my.py", "run_dir": "{}/run",
    Z + "log_trace_cache_warnings": True, Z + "enable_sanity_checks": True,
    # files
    "save": "{}/save", "checkpoint_factor": 2, "checkpoint_scale": "log", "extra_save_iters": [1],
    "keep_last_n_checkpoints": 2, "keep_best_checkpoints": 1,
    "on_save_error": "continue", "save_in_background": True, "no_save_optim": True,
    "no_save_rng": True,
    "checkpoint_validation_with_forward_pass": True, "checkpoint.tag_validation": "FAIL",
    "checkpoint.checkpoint_serialization": False, "checkpoint.writer.type": "PYTHON",
    "checkpoint.writer.io_buffer_size": 65536, "checkpoint.writer.io_buffer_double": False,
    "checkpoint.writer.show_statistics": True, Z + "elastic_checkpoint": True,
    Z + "stage3_gather_16bit_weights_on_model_save": True, Z + "pipeline_loading_checkpoint": True,
    # evaluation
    "eval_interval": 1, "eval_iters": 2, "do_valid": True, "do_test": True, "repeat_eval_samples": True,
    "eval_prompts": ["some words"], "eval_results_prefix": "{}/answers",
    # reading and timing
    "num_workers": 1, "data_impl": "cached", "mmap_warmup": True, "use_shared_fs": False,
    "synchronize_each_layer": True, "profile_backward": True,
    "activation_checkpointing.synchronize_checkpoint_boundary": True, "activation_checkpointing.profile": True,
    # generation
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "maximum_tokens": 4, "prompt_end": ".", "prompt": "a",
    "num_samples": 2, "sample_output_file": "{}/samples", "return_logits": True, "recompute": True,
    "text_gen_type": "unconditional",
    # launch
    "log_level": "warning", "step_timeout": 500.0, "adlr_autoresume": True, "adlr_autoresume_interval": 1,
    "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "fork_ranks": True,
}  # fmt: skip
#: Both runs recompute layers, so that all of TOGETHER is read.
TOGETHER_NEEDS = RECOMPUTED
#: Why a setting is not tried here, for settings that are declared to change at most rounding.
NOT_TRIED = {
    "only GPUs have other kernels, buffers or libraries for it": (
        "attention_backend rope_fusion bias_dropout_fusion graph_harvesting distributed_backend deterministic "
        "mamba_selective_scan_fusion mamba_causal_conv_fusion rwkv_wkv_fusion "
        "optimizer.params.fused optimizer.params.foreach optimizer.params.capturable optimizer.params.differentiable "
        "optimizer.params.set_grad_none optimizer.legacy_fusion optimizer.params.cuda_aware "
        f"optimizer.params.comm_backend_name {Z}offload_param.pin_memory {Z}offload_optimizer.pin_memory "
        f"{Z}offload_optimizer.super_offload {Z}offload_optimizer.cpuadam_cores_perc "
        f"{Z}zero_quantized_weights {Z}zero_quantized_nontrainable_weights "
        f"{Z}zero_quantized_gradients {Z}zeropp_loco_param.err_beta {Z}zeropp_loco_param.reset_T"
    ),
    "it concerns drives": (
        f"{Z}offload_param.nvme_path {Z}offload_param.buffer_count {Z}offload_param.buffer_size "
        f"{Z}offload_param.max_in_cpu {Z}offload_optimizer.nvme_path {Z}offload_optimizer.buffer_count "
        f"{Z}offload_optimizer.pipeline_read {Z}offload_optimizer.pipeline_write {Z}offload_optimizer.fast_init "
        "aio.block_size aio.queue_depth aio.intra_op_parallelism aio.single_submit aio.overlap_events aio.use_gds"
    ),
    "it names a user's own files, tasks or folders": (
        "valid_data_paths validation test_data_paths valid_data_weights test_data_weights sample_input_file "
        "eval_prompts_file eval_tasks eval_tasks_interval eval_tasks_limit eval_tasks_path chat_template "
        "checkpoint.use_node_local_storage"
    ),
    "it concerns the fast writer of checkpoints, whose code must be compiled": (
        "checkpoint.writer.decoupled checkpoint.writer.data_parallel checkpoint.parallel_write.pipeline_stage"
    ),
    "it needs a program or service that is not installed": (
        "datastates_ckpt nebula.enabled nebula.persistent_storage_path nebula.persistent_time_interval "
        "nebula.num_of_version_in_retention wandb_team wandb_host wandb.enabled wandb.group wandb.team wandb.project "
        "use_comet comet_workspace comet_project comet_experiment_name comet_tags comet_others comet.enabled "
        "comet.samples_log_interval comet.project comet.workspace comet.api_key comet.experiment_name "
        "comet.experiment_key comet.online comet.mode deepspeed_mpi deepspeed_slurm"
    ),
    "it selects modules as leaf_module.names does, which is tried": (
        f"{Z}leaf_module.classes {Z}leaf_module.name_suffixes"
    ),
    "only runs with the same number of ranks are compared": "global_num_gpus",
    "the layers take minutes to compile": "compile_layers",
}


class Cell(NamedTuple):
    """What a setting was seen to change on a path."""

    name: str
    before: Any
    value: Any
    path: str
    largest: float


class Difference(NamedTuple):
    """How two runs differ: in losses as a share of what training changed, and in weights likewise."""

    losses: float
    weights: float
    """0 if the weights are divided in another way."""

    @property
    def largest(self) -> float:
        return max(self.losses, self.weights)


class Pairs(NamedTuple):
    """A run, and others to compare with it, by name."""

    base: Config
    others: dict[str, Config]


def write_data(folder: Path) -> None:
    """Write the token file that all runs read."""
    token_file(folder / "text", [list(b"some words to learn " * 10)] * 200, np.uint16)


def configured(values: Values, folder: Path) -> Config | None:
    """Resolve BASE with these values; None if `check` refuses them."""
    try:
        return resolved(values, folder)
    except Problems:
        return None


def resolved(values: Values, folder: Path) -> Config:
    """Resolve BASE with these values; raises what `check` refuses."""
    given = {
        name: value.replace("{}", str(folder)) if isinstance(value, str) else value for name, value in values.items()
    }
    given = {**BASE, "data_path": str(folder / "text"), "run_dir": str(folder / "base"), **given}
    words = [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
    config = complete(draft([File("my.yml", "{}\n")], words), RANKS)
    if problems := [each for each in trainer_problems(config) if each.severity == "error"]:
        raise Problems(problems)
    return config


def pair_together(path: Values, folder: Path, names: Iterable[str]) -> tuple[Pairs, list[str]]:
    """Return the pair of a path that differs in all these names that `check` accepts there, and those that differ."""
    changed, needs = {name: TOGETHER[name] for name in names}, path | TOGETHER_NEEDS
    while True:
        try:
            return Pairs(resolved(needs, folder), {"together": resolved(needs | changed, folder)}), list(changed)
        except Problems as stop:
            refused = {name for problem in stop.problems for name in problem.about} & {*changed}
            if not refused:
                raise
            changed = {name: value for name, value in changed.items() if name not in refused}


def measured(
    path: Values, folder: Path, names: Iterable[str] = (), fault: Callable[[], None] | None = None
) -> list[Cell]:
    """Return what each setting, or each of these, changes on a path if it is changed alone."""
    pairs, tried = pairs_alone(path, folder, names)
    found = run_ranks(compared, RANKS, pairs, fault, timeout=850)[0]
    return [
        Cell(change.name, before, change.value, here, found[name].largest)
        for name, (change, here, before) in tried.items()
    ]


def measured_optimizers(folder: Path, paths: Iterable[Values] = PATHS) -> list[Cell]:
    """Return what AdamW changes where Adam is set: `path_of` takes both for the same optimizer."""
    pairs = {}
    for path in [path for path in paths if path["optimizer.type"] == "Adam"]:
        base, other = (resolved(path | {"optimizer.type": kind}, folder) for kind in ("Adam", "AdamW"))
        pairs[path_of(base)] = Pairs(base, {path_of(base): other})
    found = run_ranks(compared, RANKS, pairs, timeout=400)[0]
    return [Cell("optimizer.type", "Adam", "AdamW", path, each.largest) for path, each in found.items()]


def unequal(
    path: Values, folder: Path, names: Iterable[str] = TOGETHER, fault: Callable[[], None] | None = None
) -> list[str]:
    """Return the names that change a bit, or that `check` refuses."""
    pair, changed = pair_together(path, folder, names)
    refused = [name for name in names if name not in changed]
    if not changed or run_ranks(compared, RANKS, {"": pair}, fault, timeout=300)[0]["together"].largest == 0:
        return refused
    if len(changed) == 1:
        return [*refused, *changed]
    half = len(changed) // 2
    parts = changed[:half], changed[half:]
    return [*refused, *(name for part in parts for name in unequal(path, folder, part, fault))]


def contradictions(table: Mapping[str, Any], cells: Iterable[Cell]) -> list[str]:
    """Return where the table is wrong: it has an equality that was not found, or rounding for more than that."""
    wrong = []
    for name, _, value, path, found in cells:
        written, limit = table["alone"][name]["to"][json.dumps(value)].get(path), same_result.rounding(path)
        if written is None:
            wrong.append(f"{name}: {value} with {path}: {found:.0e}, and not in the table")
        elif written == 0 != found or (written > limit) != (found > limit):
            wrong.append(f"{name}: {value} with {path}: {found:.0e}, in the table {written:.0e}")
    return wrong


def is_read_difference(name: str, one: Config, other: Config) -> bool:
    return any(name in each.names and any(each.is_read) for each in differences(one, other))


def pairs_alone(
    path: Values, folder: Path, names: Iterable[str] = ()
) -> tuple[dict[str, Pairs], dict[str, tuple[Change, str, Any]]]:
    """Return the pairs of a path by what both set, and for the name of each other run: change, path, value before."""
    pairs: dict[str, Pairs] = {}
    tried: dict[str, tuple[Change, str, Any]] = {}
    bases: dict[str, Config | None] = {}
    changes = ALONE if path.items() >= FP32.items() or path.items() >= BF16.items() else USUAL
    for change in [each for each in changes if not names or each.name in names]:
        key = str(change.needs)
        if key not in bases:
            bases[key] = configured(path | change.needs, folder)
        base, other = bases[key], configured(path | change.needs | change.too | {change.name: change.value}, folder)
        if base is None or other is None or not is_read_difference(change.name, base, other):
            continue
        name = f"{change.name}={change.value}"
        pairs.setdefault(key, Pairs(base, {})).others[name] = other
        tried[name] = change, path_of(base), value_of(base, change.name)
    return pairs, tried


class Trained(NamedTuple):
    """What a run computed: each step's loss and gradient norm, and the weights before the first step and at the end."""

    losses: list[float]
    norms: list[float]
    start: dict[str, Any]
    end: dict[str, Any]
    tensor_ranks: int
    """Among which the weights are divided; runs with other divisions are not compared by weights."""


def compared(pairs: Mapping[str, Pairs], fault: Callable[[], None] | None = None) -> dict[str, Difference]:
    """Train every run of train.py on this rank, and compare; the result is rank 0's. fault: is planted before."""
    import torch.distributed as dist

    if fault:
        fault()
    found = {}
    for pair in pairs.values():
        expected = trained(pair.base)
        for name, config in pair.others.items():
            here = trained(config, name)
            if dist.get_rank() == 0:
                found[name] = difference(expected, here)
    return found


def trained(config: Config, name: str = "") -> Trained:
    """Run train.py's whole run on this rank."""
    import gc
    from unittest.mock import patch

    import torch
    import torch.distributed as dist

    from neoxargs.train import run
    from neoxargs.train.deepspeed.optimizer_view import Holdings
    from neoxargs.train.engine import build as engine
    from neoxargs.train.process import setup
    from neoxargs.train.process.mesh import destroy_groups
    from neoxargs.train.track.tracker import Step, Tracker
    from tests.support.trials import allow_fp16

    class Recorder(Tracker):
        def on_step(self, step: Step) -> None:
            steps.append(step)

    def whole() -> dict[str, Any]:
        """Return all weights, joined in the order of the ranks, which is the order of their shards."""
        ranks: list[Any] = [None] * dist.get_world_size()
        shards = Holdings(built[0].deepspeed, built[1]).values()
        dist.all_gather_object(ranks, {name: x.double().clone() for name, x in shards.items()})
        return {name: torch.cat([rank[name] for rank in ranks if name in rank]) for rank in ranks for name in rank}

    def build(*arguments: Any) -> Any:
        built[:] = make(*arguments), arguments[-1]
        weights.append(whole())
        return built[0]

    def end() -> None:
        weights.append(whole())
        destroy_groups()

    steps: list[Step] = []
    weights: list[dict[str, Any]] = []
    built: list[Any] = []
    make, trackers = engine.build, run._trackers
    allow_fp16()
    try:
        with (
            patch.object(setup, "stop"),
            patch.object(engine, "build", build),
            patch.object(run, "destroy_groups", end),
            patch.object(run, "_trackers", lambda *given: [*trackers(*given), Recorder()]),
            patch.object(gc, "collect", lambda *_: 0),  # ZeRO-3 collects garbage in every forward pass
            patch.dict(os.environ, _ENVIRONMENT),
            # Workers of the data loader may be started.
            patch.dict(multiprocessing.current_process()._config, {"daemon": False}),  # type: ignore[attr-defined]
        ):
            setup.set_numerics(config)
            run.run(parse_rank_arguments(script_arguments(config)))
    except BaseException as error:
        raise AssertionError(f"{path_of(config)}: {name or 'both'}") from error
    finally:
        torch.use_deterministic_algorithms(False)
    built.pop(0).deepspeed.destroy()  # whose hooks of gradients would keep it
    gc.collect()
    losses, norms = [step.loss for step in steps], [step.grad_norm or 0.0 for step in steps]
    return Trained(losses, norms, weights[0], weights[1], config.parallel.model_parallel_size)


def difference(one: Trained, other: Trained) -> Difference:
    assert len(one.losses) == len(other.losses) == BASE["train_iters"]
    changed = max(one.losses) - min(one.losses)
    losses = max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)) / changed
    if all([*one.norms, *other.norms]):
        losses = max(losses, *(abs(a - b) / a for a, b in zip(one.norms, other.norms, strict=True)))
    shapes = [{name: x.shape for name, x in run.end.items()} for run in (one, other)]
    if shapes[0] != shapes[1] or one.tensor_ranks != other.tensor_ranks:
        return Difference(losses, 0.0)
    moved, apart = (
        sum(float((x - others[name]).square().sum()) for name, x in one.end.items()) ** 0.5
        for others in (one.start, other.end)
    )
    return Difference(losses, apart / moved)


def read_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return table


def write_table(table: Mapping[str, Any]) -> None:
    """Write the table, a line for each value and for each path."""
    not_tried = {reason: sorted(names.split()) for reason, names in NOT_TRIED.items()}
    table = {"alone": dict(sorted(table["alone"].items())), "together": table["together"], "not tried": not_tried}
    text = json.dumps(table, indent=1)
    DATA.write_text(_INNERMOST.sub(lambda found: " ".join(found[0].split()), text) + "\n", encoding="utf-8")


def with_cells(table: dict[str, Any], cells: Iterable[Cell]) -> dict[str, Any]:
    """Put cells into the table. What was larger on another machine, whose kernels add in another order, stays."""
    before_now = read_table()["alone"]
    for name, before, value, path, found in cells:
        row, key = table["alone"].setdefault(name, {"from": [], "to": {}}), json.dumps(value)
        row["from"] = sorted({*row["from"], json.dumps(before)})
        seen = before_now.get(name, {"to": {}})["to"].get(key, {}).get(path, 0.0)
        row["to"].setdefault(key, {})[path] = max(seen, float(f"{found:.0e}"))
    return table


HEAD = """\
<!-- Generated: run `UPDATE=1 pytest tests/resolve/compare/test_same_result.py` to regenerate this page. -->

# Which settings keep the result

[`deepy diff`](diff.md) says that a difference cannot change training, or can change rounding only, where a test shows
it for the engine, ZeRO stage, precision and optimizer of both runs. The test trains pairs of small runs that differ in
one setting, for {steps} steps with {ranks} ranks on CPUs, and compares losses, gradient norms and weights. It does not
cover GPU kernels and NCCL: where those can add numbers in another order, `diff` says that rounding can change, even if
no bit differs here. `python bench/same_result.py` measures everything again, in 20 minutes on two cores. With
`--check`, it compares with the table; `tests/train/test_same_result.py` compares a part of it.

A number is the largest relative difference of a loss or gradient norm, or of the weights as a share of what training
changes, on any machine that measured it: processors have kernels that add in different orders. In these runs, rounding
makes at most {fp32} in fp32 and {bf16} in bf16 and fp16. What is larger is in bold:
`diff` then says that the result can change. Without an optimizer, a name means Adam or AdamW. An empty cell was not
tried, because the setting is refused there or not read. Numbers and lists stand for other numbers and lists; of words,
only the listed ones were tried.

| Setting | Tried | {engines} |
|---|---|{lines}
"""
ENGINE_NAMES = [*(f"ZeRO-{stage}" for stage in range(4)), *(f"pipeline ZeRO-{stage}" for stage in range(2))]


def page() -> str:
    """Return the text of docs/same-result.md."""
    table, limits = read_table(), same_result.ROUNDING
    head = HEAD.format(
        ranks=RANKS, steps=BASE["train_iters"], fp32=limits["fp32"], bf16=limits["bf16"],
        engines=" | ".join(ENGINE_NAMES), lines="---|" * len(ENGINE_NAMES),
    )  # fmt: skip
    alone = [
        f"| `{name}` | {_codes(row['from'])} → {_codes([value])} | {_cells(cells)} |".replace("|mlp", "\\|mlp")
        for name, row in table["alone"].items()
        for value, cells in row["to"].items()
    ]
    together = table["together"]
    refused = [f"- `{path}`: {_codes(names)}" for path, names in together["paths"].items() if names]
    untried = [f"- {reason[0].upper()}{reason[1:]}: {_codes(names)}." for reason, names in table["not tried"].items()]
    paragraphs = [
        "## Settings that change no bit",
        f"All of these are changed at once: {_codes(together['names'])}.",
        f"The paths are {_codes(together['paths'])}. For a path that is not among them, its engine and stage, its "
        "precision, its optimizer and each other part must be in one of them.",
        *(["Refused there, and so not tried:", "\n".join(refused)] if refused else []),
        "The trainer does not read the launcher's settings, which therefore cannot change the result.",
        "## Not tried",
        "\n".join(untried),
    ]
    return head + "\n".join(alone) + "\n\n" + "\n\n".join(paragraphs) + "\n"


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _cells(cells: Mapping[str, float]) -> str:
    """Return a cell for each engine: `equal`, or what differs with each precision and optimizer."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in ENGINE_NAMES}
    for path, number in cells.items():
        engine, _, rest = path.partition("ZeRO-")
        stage, *parts = rest.split()
        text = "equal" if not number else f"**{number:g}**" if number > same_result.rounding(path) else f"{number:g}"
        words = " ".join(part for part in parts if part != "adam")
        found[f"{engine}ZeRO-{stage}"].setdefault(text, []).append(words)
    return " | ".join(
        "<br>".join(
            text if len(groups) == 1 and " " not in words[0] else f"{text}: {', '.join(words)}"
            for text, words in groups.items()
        )
        for groups in found.values()
    )
