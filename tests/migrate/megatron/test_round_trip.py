"""What a script says is in the new file, whatever deepy's own defaults, and is said again by `--emit megatron`."""

from __future__ import annotations

import pytest

from neoxargs.base.files import Text
from neoxargs.migrate.megatron.convert import convert_script
from neoxargs.migrate.result import Result
from neoxargs.resolve import File, draft
from neoxargs.resolve.derive import complete
from neoxargs.targets.megatron import megatron_flags
from neoxargs.targets.megatron_unsupported import dropped_settings
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

SIZES = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 64 "
    "--micro-batch-size 2 --train-iters 9 --lr 0.001 --data-path d --vocab-file v --merge-file m"
)
EXPERTS = "--num-experts 8 --moe-router-topk 2 --moe-layer-freq 1"


def converted(flags: str, before: str = "") -> Result:
    return convert_script(Text("run.sh", f"{before}python pretrain_gpt.py {SIZES} {flags}"))


@pytest.mark.parametrize(
    "flags",
    [
        "--bf16 --swiglu --ffn-hidden-size 192 --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-06",
        "--fp16 --initial-loss-scale 4096 --hysteresis 4 --loss-scale-window 500 --clip-grad 0.5",
        "--fp16 --loss-scale 512.0",
        "--position-embedding-type rope --rotary-percent 0.5 --rotary-base 5000 --untie-embeddings-and-output-weights",
        "--group-query-attention --num-query-groups 2 --qk-layernorm --init-method-std 0.01",
        "--lr-decay-style WSD --lr-wsd-decay-iters 3 --lr-warmup-fraction 0.1 --min-lr 0.0001 --weight-decay 0.1",
        "--optimizer lion --lion-beta1 0.9 --lion-beta2 0.95",
        "--optimizer sgd --sgd-momentum 0.8",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        "--use-distributed-optimizer --calculate-per-token-loss",
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
        f"{EXPERTS} --moe-router-pre-softmax --moe-expert-capacity-factor 1.25 --moe-aux-loss-coeff 0.02",
        f"{EXPERTS} --moe-ffn-hidden-size 128 --moe-shared-expert-intermediate-size 256 --moe-z-loss-coeff 0.001",
        "--num-experts 8 --moe-router-topk 1 --moe-layer-freq 2 --moe-router-load-balancing-type sinkhorn",
        "--eval-interval 5 --eval-iters 3 --save out --save-interval 4 --load in --seed 7 --split 90,9,1",
        "--attention-dropout 0.0 --hidden-dropout 0.2 --window-size 8,0",
    ],
)
def test_flags_are_said_again(flags: str) -> None:
    result = converted(flags)
    assert result.to_do == []
    config = complete(draft([File("new.yml", result.text)]), 8)
    assert ids(dropped_settings(config)) == []
    emitted = " ".join(megatron_flags(config)) + " "
    for flag in flags.removeprefix("--").split(" --"):
        name = flag.replace("moe-ffn-hidden-size", "ffn-hidden-size")  # deepy's experts are as wide as other layers
        assert f"--{name} " in emitted, emitted


def value(result: Result, name: str) -> object:
    """Return the value of a run of the new file."""
    return complete(draft([File("new.yml", result.text)]), 8).get(name)


@pytest.mark.parametrize("more", ["", "--moe-expert-capacity-factor 1.25", "--moe-router-load-balancing-type sinkhorn"])
def test_every_layer_has_experts_without_a_flag_that_says_otherwise(more: str) -> None:
    result = converted(f"--num-experts 8 --moe-router-topk 1 {more}")
    assert value(result, "moe_expert_interval") == 1


@pytest.mark.parametrize(
    ("flags", "stage"),
    [
        ("--use-distributed-optimizer", 1),
        ("--use-megatron-fsdp", 3),
        ("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer", 3),
        ("--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads --use-megatron-fsdp", 2),
        ("--use-torch-fsdp2", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
        ("--data-parallel-sharding-strategy optim", 0),
    ],
)
def test_what_is_sharded_does_not_depend_on_the_order_of_the_flags(flags: str, stage: int) -> None:
    result = converted(flags)
    assert value(result, "zero_optimization.stage") == stage
    assert len(result.problems) == (stage == 0)


def test_the_checkpoint_to_load() -> None:
    assert value(converted("--load in --ckpt-step 500"), "iteration") == 500
    assert value(converted("--load in --deepspeed --load-tag global_step7"), "iteration") == 7
    for flags in ("--load in --pretrained-checkpoint base", "--deepspeed --load-tag best"):
        pinned(converted(flags).to_do)


@pytest.mark.parametrize(
    "flags",
    ["--tokenizer-type TikTokenizer --tokenizer-model t.json", "--dataloader-type cyclic", "--kitchen-config-file k"],
)
def test_what_deepy_does_otherwise_is_at_the_top_of_the_new_file(flags: str) -> None:
    pinned(converted(flags).to_do)


def test_a_script_without_a_learning_rate() -> None:
    script = f"python pretrain_gpt.py {SIZES.replace('--lr 0.001', '')}"
    pinned(convert_script(Text("run.sh", script)).to_do)


JSON = 'cat <<EOT > ds.json\n{"train_batch_size": 16, %s}\nEOT\n'
GIVEN = "--fp16 --deepspeed --deepspeed_config ds.json --loss-scale 12 --clip-grad 0.7 --zero-stage 2"


def test_with_deepspeed_its_json_alone_decides() -> None:
    result = converted(GIVEN, JSON % '"fp16": {"enabled": true, "initial_scale_power": 12}')
    found = [value(result, name) for name in ("fp16.loss_scale", "fp16.initial_scale_power", "zero_optimization.stage")]
    assert found == [0, 12, 0]
    assert value(result, "gradient_clipping") == 0.0  # DeepSpeed's default
    assert len(result.problems) == 3
    pinned(result.problems[0])
    without_file = converted(GIVEN)
    assert not {"gradient_clipping", "stage", "loss_scale"} & {*without_file.text.replace(":", " ").split()}


@pytest.mark.parametrize(("flags", "section"), [("--fp16", "bf16"), ("--bf16", "fp16")])
def test_a_precision_that_the_json_contradicts(flags: str, section: str) -> None:
    script = JSON % f'"{section}": {{"enabled": true}}'
    [problem] = refused(converted, f"{flags} --deepspeed --deepspeed_config ds.json", script)
    pinned(problem)
