"""`migrate` writes no guess: what a script leaves open is said in the new file, with exit code 1, or refused.

With exit code 0, the new file passes `deepy check`.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml

from neoxargs.base.files import Text
from neoxargs.cli import main
from neoxargs.migrate.megatron.convert import convert_script
from neoxargs.migrate.result import Result
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

SIZES = (
    "--lr 1e-3 --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--micro-batch-size 2 --train-iters 9"
)


def migrated(flags: str, program: str = "pretrain_gpt.py") -> Result:
    return convert_script(Text("run.sh", f"python {program} {SIZES} {flags}"))


def settings(flags: str) -> dict[str, object]:
    values: dict[str, object] = yaml.safe_load(migrated(flags).text)
    return values


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def exit_code(script: str) -> int:
    """Migrate a script, and check the new file if that is said to be complete."""
    Path("run.sh").write_text(script)
    code = main(["migrate", "run.sh", "-o", "new.yml", "--write"])
    if code == 0:
        assert "# TODO" not in Path("new.yml").read_text()
        assert main(["check", "new.yml", "--gpus", "8"]) == 0
    return code


# -- the program -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        "pretrain_bert.py", "./pretrain_t5.py", "`pwd`/pretrain_prefix_lm.py", "tasks/main.py", "pretrain_retro.py",
        "$DIR/examples/multimodal/train.py", "pretrain_mamba.py", "pretrain_hybrid.py", "pretrain_vlm.py",
        "-m examples.mimo.pretrain_mimo", "tools/run_text_generation_server.py", "finetune_t0.py", "pretrain_ict.py",
        "tools/checkpoint/convert.py", "pretrain_vision_dino.py", "-m torch.distributed.run pretrain_bert.py",
        "bind_cores.py pretrain_bert.py",
    ],
)  # fmt: skip
def test_a_program_for_other_models_is_refused(program: str) -> None:
    assert ids(refused(migrated, "", program)) == ["migrate-other-program"]


@pytest.mark.parametrize(
    "program", ["pretrain_gpt.py", "/home/bert/pretrain_gpt.py", "pretrain_gpt2.py", "-m megatron.pretrain_gpt"]
)
def test_the_programs_of_a_gpt(program: str) -> None:
    assert migrated("", program).to_do == []


def test_another_program_is_to_be_compared() -> None:
    result = migrated("", "finetune.py")
    pinned(result.to_do)
    assert exit_code(f"python finetune.py {SIZES}") == 1


# -- flags -----------------------------------------------------------------------------------------------------------


def test_both_precisions_are_refused() -> None:
    pinned(refused(migrated, "--bf16 --fp16"))


@pytest.mark.parametrize(
    ("flags", "left_out"),
    [
        ("--bf16 --fp8-format hybrid", "--fp8-format hybrid (deepy does not support fp8 or fp4)"),
        ("--reset-iteration", "--reset-iteration (deepy starts the count of iterations again only with finetune: true"),
        ("--use-checkpoint-args", "--use-checkpoint-args (in Megatron-LM, the checkpoint then determines the model"),
        ("--spec a b", "--spec a b (another kind of model, or of training, is trained with it)"),
        ("--kd --load-teacher x", "--kd (deepy distils no teacher's knowledge into a model)"),
        ("--goldfish 3", "--goldfish 3 (it is not a Megatron-LM flag)"),
    ],
)
def test_a_flag_that_changes_the_run_is_not_left_out_silently(flags: str, left_out: str) -> None:
    assert any(left_out in line for line in migrated(flags).to_do)
    assert "fp8" not in "\n".join(line for line in migrated(flags).text.splitlines() if not line.startswith("#"))
    assert exit_code(f"python pretrain_gpt.py {SIZES} {flags}") == 1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--num-query-groups 2", None),
        ("--group-query-attention --num-query-groups 2", 2),
        ("--num-query-groups 2 --group-query-attention", 2),
        ("--num-key-value-heads 2", 2),
        ("--group-query-attention", None),
    ],
)
def test_grouped_queries(flags: str, expected: int | None) -> None:
    assert settings(flags).get("num_kv_heads") == expected
    # Megatron-LM's default number of groups has changed
    assert any("set num_kv_heads" in line for line in migrated(flags).to_do) == (flags == "--group-query-attention")


@pytest.mark.parametrize(
    ("flags", "kind", "file"),
    [
        ("--tokenizer-type GPT2BPETokenizer --tokenizer-model m --vocab-file v", "GPT2BPETokenizer", "v"),
        ("--tokenizer-type SentencePieceTokenizer --vocab-file v --tokenizer-model m", "SPMTokenizer", "m"),
        ("--vocab-file v --tokenizer-model m --tokenizer-type HuggingFaceTokenizer", "HFTokenizer", "m"),
        ("--tokenizer-type PretrainedFromHF --tokenizer-name-or-path t5-small", "HFTokenizer", "t5-small"),
        ("--tokenizer-type PretrainedFromHF --tokenizer-name-or-path x --vocab-file v", "HFTokenizer", "x"),
    ],
)
def test_the_file_of_the_tokenizer(flags: str, kind: str, file: str) -> None:
    assert (settings(flags)["tokenizer_type"], settings(flags)["vocab_file"]) == (kind, file)
    others = [problem.what for problem in migrated(flags).problems]
    assert len(others) == len([flag for flag in flags.split() if flag.startswith("--")]) - 2
    assert all(f"because {flags.split('-type ')[1].split()[0]} reads --" in what for what in others)


def test_an_exit_interval_of_0_means_none() -> None:
    result = migrated("--exit-interval 0")
    assert ("exit_interval" in result.text, result.to_do, result.problems) == (False, [], [])


@pytest.mark.parametrize("unit", ["iters", "samples"])
def test_no_warm_up(unit: str) -> None:
    result = migrated(f"--lr-warmup-{unit} 0")
    assert (yaml.safe_load(result.text)["warmup"], result.to_do, result.problems) == (0.0, [], [])
    for flags in itertools.permutations((f"--lr-warmup-{unit} 0", "--lr-warmup-fraction 0.1")):
        result = migrated(" ".join(flags))
        assert (yaml.safe_load(result.text)["warmup"], result.problems) == (0.1, [])


@pytest.mark.parametrize("unit", ["iters", "samples"])
def test_two_warm_ups(unit: str) -> None:
    pinned(refused(migrated, f"--train-iters 100 --lr-warmup-fraction 0.1 --lr-warmup-{unit} 10"))


def test_the_launchers_numbers_are_not_to_be_set() -> None:
    result = migrated("--rank $RANK --world-size $WORLD_SIZE --local-rank $LOCAL_RANK")
    assert result.to_do == []
    assert {problem.id for problem in result.problems} == {"migrate-flag-without-counterpart"}


def test_a_given_flag_is_not_called_a_default() -> None:
    text = migrated("--num-experts 4 --moe-router-pre-softmax").text
    assert "moe_normalize_expert_weights: false  # --moe-router-pre-softmax\n" in text


# -- what cannot be known --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "if [ $P = fp16 ]; then A=--fp16; fi\npython pretrain_gpt.py {sizes} --bf16 $A",
        "if [ $S = 0.5B ]; then L=24; else L=28; fi\nif [ $S = A2.7B ]; then M='--num-experts 60'; else M=''; fi\n"
        "python pretrain_gpt.py {sizes} --num-layers $L $M",
        "for S in 1 2; do python pretrain_gpt.py {sizes} --seed $S; done",
        "L=1e-4\nif [ -f x ]; then :; else L=2e-4; fi\npython pretrain_gpt.py {sizes} --lr $L",
        "L=1\nwhile read x; do L=$x; done < file\npython pretrain_gpt.py {sizes} --lr $L",
        "if [ -f x ]; then python pretrain_gpt.py {sizes} --lr 1; else python pretrain_gpt.py {sizes} --lr 2; fi",
        "run() { python pretrain_gpt.py {sizes} --seed $1; }\nrun 3",
        "python pretrain_gpt.py {sizes} --lr $LR",
        "python pretrain_gpt.py {sizes} --lr <rate>",
        "python pretrain_gpt.py {sizes} $MORE",
        "python pretrain_gpt.py {sizes} \\ \n --lr 3",
        "torchrun --nproc_per_node 2 pretrain_gpt.py {sizes} --global-batch-size 2",  # a micro batch of 2 needs 4
        "X=\"--split '99,1,0'\"\npython pretrain_gpt.py {sizes} $X",  # bash passes the inner quotes on
    ],
)
def test_what_cannot_be_known_ends_with_exit_code_1(script: str) -> None:
    assert exit_code(script.replace("{sizes}", SIZES)) == 1


@pytest.mark.parametrize(
    "script",
    [
        "python pretrain_gpt.py {sizes} --openai-gelu --no-bias-gelu-fusion",
        "S=2\nif [ $S = 1 ]; then L=2; else L=3; fi\npython pretrain_gpt.py {sizes} --seed $L",
        "if [ ! -d out ]; then mkdir out; fi\npython pretrain_gpt.py {sizes}",
        'if [ -z "$L" ]; then echo set L; fi\npython pretrain_gpt.py {sizes} --seed ${L:-3}',
        "if [ -f x ]; then L=3; else L=3; fi\npython pretrain_gpt.py {sizes} --seed $L",
        "C=\"python pretrain_gpt.py {sizes} --split '99,1,0'\"\neval $C",
    ],
)
def test_what_is_known_ends_with_exit_code_0(script: str) -> None:
    assert exit_code(script.replace("{sizes}", SIZES)) == 0


def test_one_warning_lists_all_that_an_unknown_value_is_needed_for() -> None:
    (problem,) = migrated("--lr $3 --min-lr $((3 * 0))$3 --save /x/$3 --seed $3").problems
    pinned(problem)
    assert problem.hint == "add --var 3=VALUE"
