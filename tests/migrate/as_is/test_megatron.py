"""A Megatron-LM script: flags, values, and what validate_args refuses."""

from __future__ import annotations

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, render
from neoxargs.migrate.as_is.files import checked
from neoxargs.registry.other_keys import keys
from tests.support.reference import read
from tests.support.snapshots import pinned

GOOD = """\
torchrun --nproc_per_node 8 pretrain_gpt.py \\
  --tensor-model-parallel-size 2 \\
  --num-layers 12 --hidden-size 768 --num-attention-heads 12 \\
  --seq-length 1024 --max-position-embeddings 1024 \\
  --micro-batch-size 4 --global-batch-size 64 \\
  --lr 1.5e-4 --min-lr 1e-5 --train-iters 1000 --lr-decay-style cosine --lr-warmup-fraction 0.01 \\
  --save out --save-interval 100 --bf16 --data-path a
"""


def check(text: str, gpus: int | None = None, **versions: str) -> list[Problem]:
    found = checked(Text("run.sh", text), versions, gpus)
    assert found and found.program.name == "Megatron-LM"
    return [*found.problems]


def test_a_good_script_has_no_problems() -> None:
    assert check(GOOD) == check(GOOD, 16) == check(GOOD, megatron="0.12.0") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--num-layers 12", "--num_layers 12"),
        ("--lr-warmup-fraction", "--lr-warmup-fracton"),
        ("--lr-warmup-fraction 0.01", "--lr-warmup-fraction 0.01 --lr-warmup-iters 5"),
        ("--bf16", "--bf16 true"),
        ("--bf16", "--bf16 --fp16"),
        ("--train-iters 1000", "--train-iters 1e3"),
        ("--train-iters 1000", "--train-iters"),
        ("--train-iters 1000", "--train-iters 1000 --train-samples 9"),
        ("cosine", "cosin"),
        ("cosine", "WSD"),
        ("--lr-warmup-fraction 0.01", "--lr-warmup-iters 1000"),
        ("--bf16", "--bf16 --weight-decay-incr-style linear --start-weight-decay 0.3 --end-weight-decay 0.1"),
        ("--bf16", "--bf16 --rampup-batch-size 16 16 100000"),
        ("--train-iters 1000", "--train-samples 64000 --rampup-batch-size 30 32 1000"),
        ("--train-iters 1000", "--train-samples 64000 --rampup-batch-size 32,32,1000"),
        ("--num-attention-heads 12", "--num-attention-heads 11"),
        ("--hidden-size 768", "--hidden-size 760"),
        ("--seq-length 1024", "--seq-length 2048"),
        ("--min-lr 1e-5", "--min-lr 1e-3"),
        ("--global-batch-size 64", "--global-batch-size 62"),
        ("--global-batch-size 64", "--global-batch-size 24"),
        ("model-parallel-size 2", "model-parallel-size 3"),
        ("--save-interval 100", ""),
        ("--hidden-size 768", ""),
        ("--bf16", "--bf16 --recompute-granularity full"),
        ("--bf16", "--bf16 --recompute-granularity selective --recompute-method block"),
        ("--num-layers 12", "--num-layers 13 --pipeline-model-parallel-size 2"),
        ("--bf16", "--bf16 --recompute-granularity full --recompute-method uniform --recompute-activations"),
        ("--num-layers 12",
         "--num-layers 12 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2"),
        ("--seq-length 1024", ""),
        ("--num-layers 12", "--num-layers 12 --pipeline-model-parallel-size 4 --num-experts 8 "
         "--expert-model-parallel-size 8 --disable-bias-linear --sequence-parallel"),
    ],
)  # fmt: skip
def test_planted_mistakes_are_errors(old: str, new: str) -> None:
    found = check(GOOD.replace(old, new, 1))
    assert [problem.severity for problem in found][:1] == ["error"], render(found)
    pinned(render(found))
    # Another program can have other flags and rules.
    assert all(each.severity == "warning" for each in check(GOOD.replace(old, new, 1).replace("pretrain_gpt", "train")))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--num-layers 12", "--num-layers $LAYERS"),
        ("--num-layers 12", "--num-layers 13 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 7"),
        ("--hidden-size 768", "--hidden-size 760 --kv-channels 64"),
        ("--save-interval 100", "$SAVE_ARGS"),
        ("--train-iters 1000", "--train-samples 64000 --rampup-batch-size 32 32 1000"),
        ("--bf16", "--bf16 --weight-decay-incr-style linear --start-weight-decay 0.03 --end-weight-decay 0.1"),
        ("cosine", "WSD --lr-wsd-decay-iters 100"),
        ("--bf16", "--bf16 --deepspeed --zero-stage 1 --no-pipeline-parallel"),
        ("--train-iters 1000", "--train-samples 1000 --lr-warmup-iters 0"),
        ("--bf16", "--bf16 --external-cuda-graph"),
    ],
)
def test_what_cannot_be_known_or_is_allowed_is_no_error(old: str, new: str) -> None:
    assert [each for each in check(GOOD.replace(old, new, 1)) if each.severity == "error"] == []


def test_versions_and_repeated_flags() -> None:
    text = GOOD.replace("--bf16", "--bf16 --use-mcore-models --encoder-tensor-model-parallel-size 1 --seed 1 --seed 2")
    text = text.replace("--bf16", "--bf16 --my-own-flag 3 --sequence-parallel").replace(
        "parallel-size 2", "parallel-size 1"
    )
    pinned(
        render(
            [*check(text), *check(text, megatron="0.19.0"), *check(GOOD + " --attention-backend x", megatron="0.6.0")]
        )
    )


@pytest.mark.parametrize(
    ("flags", "last"),
    [
        ("--batch-size 4", "1.0"),
        ("--warmup 0.01", "1.0"),
        ("--model-parallel-size 8", "1.0"),
        ("--min-scale 1", "1.0"),
        ("--checkpoint-activations", "2.6"),
        ("--override-lr-scheduler", "2.6"),
        ("--DDP-impl local", "0.2.0"),
        ("--layernorm-epsilon 1e-5", "0.2.0"),
        ("--use-custom-fsdp", "0.13.0"),
        ("--ckpt-format zarr", "0.15.0"),
    ],
)
def test_flags_and_choices_that_were_removed(flags: str, last: str) -> None:
    text = GOOD.replace("--bf16", f"--bf16 {flags}")
    pinned(render(check(text)))
    now, then = (
        {each.where for each in found if each.id == "other-program-key-version"}
        for found in (check(text), check(text, megatron=last))
    )
    assert now and not now & then


@pytest.mark.parametrize(
    ("flags", "is_sure"),
    [
        ("--tp-comm-overlap", False),
        ("--overlap-param-gather", False),
        ("--use-torch-fsdp2", False),
        ("--num-experts 8 --expert-model-parallel-size 3 --disable-bias-linear", True),
        ("--num-experts 8 --expert-model-parallel-size 2", False),
        ("--context-parallel-size 4 --seq-length 1020", True),
        ("--num-query-groups 5 --group-query-attention", True),
        ("--position-embedding-type mrope", False),
        ("--weight-decay-incr-style cosine", False),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", True),
        ("--mock-data", False),
    ],
)
def test_what_megatron_asserts_of_its_arguments(flags: str, is_sure: bool) -> None:
    """Nobody wrote these conditions down here: they are read from its source.

    is_sure: whether flags in words that are not known cannot make it right.
    """
    found = [each for each in check(f"{GOOD} {flags}\n".replace("\n ", " ")) if each.severity == "error"]
    assert found
    pinned(render(found))
    unknown = [each for each in check(f"{GOOD} $MORE {flags}\n".replace("\n ", " ")) if each.severity == "error"]
    assert bool(unknown) == is_sure


def test_the_flags_are_those_of_the_parser() -> None:
    """What the syntax tree says of the newest version is what its parser says of itself, a few days later."""
    newer = {name for name in read("megatron_lm_options.json") if name not in keys("megatron")}
    assert len(newer) < 40, sorted(newer)
    for name, row in read("megatron_lm_options.json").items():
        kind = keys("megatron")[name].type if name in keys("megatron") else ""
        if name in keys("megatron") and not keys("megatron")[name].computed and "|" not in kind and kind != "many":
            if name in ("--muon-tp-mode", "--rl-generation-lag", "--use-cpu-initialization"):
                continue  # changed since, or null in place of false
            default = keys("megatron")[name].off if kind == "switch" else keys("megatron")[name].default
            assert row["default"] in (str(default), repr(default)), name
            assert row["dest"] == (keys("megatron")[name].dest or name[2:].replace("-", "_"))
        if kind and "any" not in kind and row["action"] in ("_StoreTrueAction", "_StoreFalseAction", "_StoreAction"):
            assert (kind == "switch") == (row["action"] != "_StoreAction"), name
