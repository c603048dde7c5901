"""Flags of Megatron-LM's forks, such as Megatron-DeepSpeed, and mixtures of experts in both."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest

from neoxargs.base.problems import Problems
from neoxargs.migrate.megatron.command import Megatron
from neoxargs.migrate.megatron.convert import convert_script
from neoxargs.migrate.result import Result
from neoxargs.migrate.sources import source_of
from neoxargs.resolve import File, complete, draft
from tests.support.snapshots import pinned

SIZES = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --lr 1e-3 --global-batch-size 8"


def migrated(flags: str) -> Result:
    return convert_script(File("run.sh", f"python pretrain_gpt.py {SIZES} {flags}"))


def check_values(flags: str, expected: dict[str, object]) -> None:
    config = complete(draft([File("new.yml", migrated(flags).text)]), 8)
    assert {name: config.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--train-iters 9 --num-key-value-heads 2", {"num_kv_heads": 2}),
        ("--train-iters 9 --attention-head-type multiquery", {"num_kv_heads": 1}),
        ("--train-iters 9 --normalization rmsnorm", {"norm": "rmsnorm", "rms_norm_epsilon": 1e-5}),
        ("--train-iters 9 --normalization rmsnorm --layernorm-epsilon 1e-6", {"rms_norm_epsilon": 1e-6}),
        ("--train-iters 9 --use_rms_norm --layernorm_epsilon 1e-6", {"norm": "rmsnorm", "rms_norm_epsilon": 1e-6}),
        ("--train-iters 9 --glu-activation geglu", {"activation": "geglu", "intermediate_size": 3 * 256}),
        ("--train-iters 9 --glu-activation swiglu --ffn-hidden-size 96", {"intermediate_size": 3 * 96}),
        ("--train-iters 9 --no-query-key-layer-scaling", {"apply_query_key_layer_scaling": False}),
        ("--train-iters 9 --eval-iters -1", {"eval_iters": 0}),
        # tokens: 8 samples of 32 tokens in one iteration
        ("--train-tokens 2560", {"train_iters": 10}),
        ("--train-tokens 2_560 --train-samples 160", {"train_iters": 10}),
        ("--train-samples 40 --train-tokens 2560", {"train_iters": 5}),
        ("--train-tokens 2560 --train-iters 4", {"train_iters": 4}),
        ("--train-iters 90 --train-tokens 2560", {"train_iters": 10}),
        ("--train-iters 9 --lr-decay-tokens 2048 --lr-warmup-tokens 512", {"lr_decay_iters": 8, "warmup": 0.25}),
        ("--train-iters 9 --lr-decay-tokens 2560 --lr-warmup-samples 8", {"warmup": 0.1}),
        ("--train-iters 9 --lr-decay-iters 4 --lr-warmup-samples 8", {"warmup": 0.25}),
    ],
)
def test_flags_of_forks(flags: str, expected: dict[str, object]) -> None:
    check_values(flags, expected)


def test_tokens_without_a_batch_size_are_to_do() -> None:
    script = "python pretrain_gpt.py --num-layers 4 --hidden-size 64 --seq-length 32 --train-tokens 2560"
    assert "# TODO: set train_iters (for --train-tokens 2560).\n" in convert_script(File("run.sh", script)).text


def test_a_full_validation_has_no_number_of_batches() -> None:
    result = migrated("--train-iters 9 --eval-iters -1 --full-validation")
    assert "eval_iters" not in result.text
    assert result.problems[0].what.startswith("--eval-iters -1 is left out, because deepy evaluates a fixed number")


def test_no_checkpoints_during_training() -> None:
    result = migrated("--train-iters 9 --save-interval 0")
    assert "checkpoint_factor" not in result.text
    assert result.problems[0].what.startswith("--save-interval 0 is left out, because without checkpoint_factor")


def test_arithmetic_in_a_here_document() -> None:
    script = f"""A=3
cat <<EOT > ds.json
{{"train_batch_size": $((A * (A + 1) * 8)), "steps_per_print": $((B * (A + 1)))}}
EOT
deepspeed pretrain_gpt.py {SIZES} --train-iters 9 --deepspeed_config ds.json"""
    result = convert_script(File("run.sh", script))
    assert "train_batch_size: 96\n" in result.text
    pinned([problem.what for problem in result.problems if problem.id == "migrate-variable-unset"])


EXPERTS = "--train-iters 9 --num-experts 8 "


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"moe_num_experts": 8, "moe_top_k": 2, "moe_router_type": "topk", "moe_expert_interval": 1}),
        ("", {"moe_normalize_expert_weights": True, "moe_token_dropping": False}),
        ("--moe-router-pre-softmax --moe-router-topk 4", {"moe_normalize_expert_weights": False, "moe_top_k": 4}),
        ("--moe-router-load-balancing-type sinkhorn", {"moe_router_type": "sinkhorn"}),
        ("--moe-router-load-balancing-type aux_loss", {"moe_router_type": "topk"}),
        ("--moe-expert-capacity-factor 1.5", {"moe_token_dropping": True, "moe_train_capacity_factor": 1.5}),
        # an expert's width replaces that of the dense layers, if there are none
        ("--ffn-hidden-size 200 --moe-ffn-hidden-size 48", {"intermediate_size": 48}),
        ("--moe-ffn-hidden-size 48 --ffn-hidden-size 200 --swiglu", {"intermediate_size": 3 * 48}),
        ("--swiglu --moe-ffn-hidden-size 48 --moe-layer-freq [1]*4", {"intermediate_size": 3 * 48}),
        ("--moe-ffn-hidden-size 48 --moe-shared-expert-intermediate-size 96", {"moe_num_shared_experts": 2}),
        ("--moe-shared-expert-intermediate-size 512", {"moe_num_shared_experts": 2}),  # the default width: 4 x 64
        ("--swiglu --moe-shared-expert-intermediate-size 384", {"moe_num_shared_experts": 3}),
        # Megatron-DeepSpeed
        ("--deepspeed", {"moe_top_k": 1, "moe_router_type": "topk", "moe_expert_interval": 2}),
        ("--deepspeed", {"moe_normalize_expert_weights": False, "moe_token_dropping": True}),
        ("--deepspeed --topk 2 --expert-interval 1", {"moe_normalize_expert_weights": True, "moe_expert_interval": 1}),
        ("--deepspeed --moe-loss-coeff 0.25", {"moe_aux_loss_coeff": 0.25}),
        ("--deepspeed --disable-moe-token-dropping --mlp-type standard", {"moe_token_dropping": False}),
        ("--deepspeed --mlp-type residual", {"moe_use_residual": True}),
    ],
)
def test_experts(flags: str, expected: dict[str, object]) -> None:
    check_values(EXPERTS + flags, expected)


@pytest.mark.parametrize("flags", [
    "--num-experts 8 8 16", "--num-experts 8 --moe-layer-freq 2 --moe-ffn-hidden-size 48",
    "--num-experts 8 --moe-ffn-hidden-size 48 --moe-shared-expert-intermediate-size 50",
    "--num-experts 8 --moe-shared-expert-intermediate-size 50",
    "--num-experts 8 --moe-router-load-balancing-type seq_aux_loss",
])  # fmt: skip
def test_experts_that_cannot_be_converted(flags: str) -> None:
    result = migrated("--train-iters 9 " + flags)
    (problem,) = result.problems
    pinned(problem)
    assert problem.what.split()[0] in result.text.splitlines()[1]  # a comment at the top of the new file


@pytest.mark.parametrize("number", [".inf", ".nan", "1e999", "1" + "0" * 400], ids=["inf", "nan", "float", "whole"])
def test_nothing_is_computed_from_a_number_that_no_flag_has(number: str) -> None:
    flags = "hidden-size ffn-hidden-size moe-router-topk num-layers rotary-scaling-factor mscale rope-scaling-factor"
    around = "--train-iters 9 --num-experts 8 --moe-ffn-hidden-size 48 --swiglu --mscale-all-dim 1 --use-rope-scaling"
    for flag in flags.split():
        with suppress(Problems):
            text = migrated(f"{around} --position-embedding-type yarn --{flag} {number}").text
            assert not re.search(r"^[^#]*: -?\.?(inf|nan)", text, re.MULTILINE), flag


def test_a_dense_model_has_no_settings_of_experts() -> None:
    assert "moe_top_k" not in migrated("--train-iters 9 --num-experts 1").text


def test_the_program_after_a_launcher_flag_is_not_its_value() -> None:
    script = f"torchrun --nnodes 2 --nproc-per-node 4 numactl -m my.pretrain_gpt {SIZES} --train-iters 9"
    result = convert_script(File("run.sh", script))
    assert {"num_nodes: 2", "num_gpus: 4", "num_layers: 4"} <= set(result.text.splitlines())
    assert result.problems == []


def test_a_flag_without_a_counterpart_needs_no_value() -> None:
    result = migrated("--train-iters 9 --log-throughput $A --embedding-paths $A --kv-channels $B")
    assert [problem.id for problem in result.problems] == [
        "migrate-flag-without-counterpart", "migrate-unknown-flag", "migrate-variable-unset"
    ]  # fmt: skip
    pinned(result.problems[2])
    assert result.text.count("# TODO") == 1


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--tokenizer-typ x", "did you mean --tokenizer-type?"),
        ("--log-intervall 5", "did you mean --log-interval?"),
        ("--overide-lr-scheduler", "did you mean --override-lr-scheduler"),
        ("--num-key-value-head 2", "did you mean --num-key-value-heads?"),
    ],
)
def test_the_correction_of_a_misspelt_flag(flag: str, hint: str) -> None:
    (problem,) = migrated(f"--train-iters 9 {flag}").problems
    assert problem.id == "migrate-unknown-flag"
    assert problem.hint.startswith(hint)


def test_a_script_with_a_misspelt_number_of_layers_is_recognised() -> None:
    flags = "--num-lyers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32"
    assert isinstance(source_of(File("run.sh", f"python pretrain_gpt.py {flags}")), Megatron)


@pytest.mark.parametrize("command", ["{} &> run.log", "eval '{} &> run.log'", "bash -c '{} > run.log'"])
def test_a_printed_command_is_not_a_second_model(command: str) -> None:
    start = f"python pretrain_gpt.py {SIZES} --train-iters 9"
    result = convert_script(File("run.sh", f'echo "{start} &> run.log"\n{command.format(start)}'))
    assert result.problems == []
    assert "train_iters: 9\n" in result.text


def test_a_command_that_is_only_printed_is_read() -> None:
    text = f"echo python pretrain_gpt.py {SIZES} --train-iters 9 | bash"
    assert "train_iters: 9\n" in convert_script(File("run.sh", text)).text


def test_a_misspelt_flag_of_the_launcher() -> None:
    script = f"srun --nodes 2 torchrun --node_rank 0 --nnode 2 --rdzv_id 7 pretrain_gpt.py {SIZES} --train-iters 9"
    (problem,) = convert_script(File("run.sh", script)).problems
    pinned(problem)
    assert problem.hint == "did you mean --nnodes?"


@pytest.mark.parametrize("end", ["", "\\ "])
def test_a_line_that_does_not_continue(end: str) -> None:
    script = f"python pretrain_gpt.py {SIZES} --train-iters 9 {end}\n    --save out --load out\n"
    problem = next(p for p in convert_script(File("run.sh", script)).problems if p.id == "migrate-line-not-continued")
    assert str(problem.where) == "run.sh:2:5"
    pinned(problem.what)


def test_a_file_with_only_flags_is_one_command() -> None:
    text = f"{SIZES} \\\n--train-iters 9"
    assert convert_script(File("run.sh", text)).problems == []
