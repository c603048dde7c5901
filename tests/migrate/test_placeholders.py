"""Placeholders of published scripts are reported and left out, and the rest of the script is converted."""

from __future__ import annotations

import pytest

from neoxargs.migrate.megatron.convert import convert_script
from neoxargs.migrate.megatron.list_expressions import list_of
from neoxargs.migrate.result import Result
from neoxargs.migrate.shell.placeholders import is_placeholder
from neoxargs.migrate.shell.script import read_script
from neoxargs.resolve import File, draft
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

SIZES = "--num-layers 27 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 --train-iters 9"


def migrated(script: str) -> Result:
    """Convert a script that has SIZES, --lr 0.5 and --seed 7, and check that all of them are in the result."""
    result = convert_script(File("run.sh", script))
    values = {name: value.value for name, value in draft([File("new.yml", result.text)]).values.items()}
    assert {name: values.get(name) for name in ("num_layers", "seq_length", "train_iters", "lr", "seed")} == {
        "num_layers": 27, "seq_length": 32, "train_iters": 9, "lr": 0.5, "seed": 7
    }  # fmt: skip
    return result


WORDS = [
    "<Specify path>", "<Specify path to file>/bert-vocab.txt", "<PATH TO gpt-vocab.json>", "<path>", "<...>",
    "<the user's path>", "<你的路径>", "/data/<user>/vocab.json", "[path to vocab]/vocab.json", "{path}",
    "{path to it}", "YOUR_PATH", "/your/path", "/path/to/vocab.json", "PATH_TO_VOCAB", "VOCAB_FILE_HERE",
    "...", "xxx", "/xxx/vocab.json", "TODO", "CHANGE_ME", "{{ vocab_file }}", "https://<host>/vocab",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "form",
    [
        "python pretrain_gpt.py {sizes} --lr 0.5 --vocab-file {word} --seed 7",
        "python pretrain_gpt.py {sizes} --lr 0.5 --vocab-file {word} \\\n  --seed 7",
        "python pretrain_gpt.py {sizes} --lr 0.5 --seed 7 --vocab-file {word}",
        'python pretrain_gpt.py {sizes} --lr 0.5 --vocab-file "{word}" --seed 7',
        "python pretrain_gpt.py {sizes} --lr 0.5 --vocab-file={word} --seed 7",
        "V={word}\npython pretrain_gpt.py {sizes} --lr 0.5 --vocab-file $V --seed 7",
        'V="{word}"\npython pretrain_gpt.py {sizes} --lr 0.5 --vocab-file "$V" --seed 7 > log 2>&1',
        'A="--lr 0.5\n --vocab-file {word}\n --seed 7"\npython pretrain_gpt.py {sizes} $A | tee log',
        "A=(--lr 0.5\n --vocab-file {word}\n --seed 7)\npython pretrain_gpt.py {sizes} ${{A[@]}}",
        "V={word}\nA=(\n --lr 0.5\n --vocab-file $V\n --seed 7)\npython pretrain_gpt.py {sizes} ${{A[@]}} 2> errors",
        'A="--lr 0.5 --vocab-file {word} --seed 7 {sizes}"',
    ],
)
def test_a_placeholder_is_a_warning_and_left_out(form: str, word: str) -> None:
    result = migrated(form.format(sizes=SIZES, word=word))
    problems = [problem for problem in result.problems if problem.id != "migrate-flags-from-variables"]
    assert [(problem.id, problem.about, problem.severity) for problem in problems] == [
        ("migrate-placeholder", ("vocab_file",), "warning")
    ]
    assert f"--vocab-file {word} " in problems[0].what
    assert problems[0].where and problems[0].where.line >= 1
    assert f"# TODO: set vocab_file (for --vocab-file {word}).\n" in result.text
    assert "\nvocab_file:" not in result.text


@pytest.mark.parametrize(
    "value",
    [
        "a.json", "/data/a-b_c/vocab.json", "~/vocab.json", "s3://bucket/x", "gpt2", "you/vocab", "pathology/toolbox",
        "data[0-9].json", "data/[a-z].json", "there/vocab", "xx/vocab", "../vocab", "1.5", "C:/vocab", "a{1}",
    ],
)  # fmt: skip
def test_values_that_are_not_placeholders(value: str) -> None:
    assert not is_placeholder(value)
    result = migrated(f"python pretrain_gpt.py {SIZES} --lr 0.5 --vocab-file {value} --seed 7")
    assert result.problems == []
    assert "\nvocab_file:" in result.text


@pytest.mark.timeout(60)  # a reader that is quadratic in the length needs minutes
@pytest.mark.parametrize(("begin", "more"), [("<", "a."), ("", "[a"), ("", "{a "), ("{{", "  "), ("", "xx")])
def test_a_long_word_is_read_once(begin: str, more: str) -> None:
    text = begin + more * 100_000
    is_placeholder(text)
    read_script(File("run.sh", f"a --b {text}\n"))


def test_each_placeholder_has_its_place_and_parameter() -> None:
    script = f"""\
CKPT=<Specify path>
DATA_PATH=<Specify path and file prefix>_text_document
python pretrain_gpt.py {SIZES} --lr 0.5 --seed 7 \\
  --save $CKPT --data-path 0.3 $DATA_PATH 0.7 other --kv-channels <N> --tokenizer-model <tokenizer.model>
"""
    result = migrated(script)
    pinned(result.problems)
    assert [p.about for p in result.problems] == [("save",), ("data_path",), ("head_dim",), ("vocab_file",)]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--bf16 <other flags>", "precision: bfloat16"),
        ("--bf16 ...", "precision: bfloat16"),
        ("--bf16 [options]", "precision: bfloat16"),
        ("--save out <100+ flags>", "save: out"),
        ("--sequence-parallel <other flags> --bf16", "sequence_parallel: true"),
    ],
)
def test_a_placeholder_for_further_flags_does_not_affect_other_flags(flags: str, line: str) -> None:
    result = migrated(f"python pretrain_gpt.py <all of it> {SIZES} --lr 0.5 --seed 7 {flags}")
    assert f"\n{line}\n" in result.text
    assert ids(result.problems) == ["migrate-placeholder"]


def test_numbers_that_are_placeholders() -> None:
    flags = "--num-layers <N> --hidden-size 64 --train-iters <how many> --lr 1"
    script = f"torchrun --nproc_per_node <GPUs> pretrain_gpt.py {flags}"
    result = convert_script(File("run.sh", script))
    assert [(problem.about, problem.severity) for problem in result.problems] == [
        (("num_gpus",), "warning"), (("num_layers",), "warning"), (("train_iters",), "warning")
    ]  # fmt: skip
    assert [line for line in result.text.splitlines() if line.startswith("# TODO")] == [
        "# TODO: set num_gpus (for --nproc-per-node <GPUs>).",
        "# TODO: set num_layers (for --num-layers <N>).",
        "# TODO: set train_iters (for --train-iters <how many>).",
    ]
    assert "hidden_size: 64\n" in result.text


def test_a_placeholder_of_an_unsupported_flag_is_not_a_to_do() -> None:
    (problem,) = migrated(f"python pretrain_gpt.py {SIZES} --lr 0.5 --one-logger-project <project> --seed 7").problems
    assert (problem.id, problem.about) == ("migrate-flag-without-counterpart", ())


@pytest.mark.parametrize("flags", ["--vocab-file", "--vocab-file <open", "--data-path", "--train-samples --bf16"])
def test_a_flag_without_its_value(flags: str) -> None:
    problems = refused(convert_script, File("run.sh", f"python pretrain_gpt.py {SIZES} {flags} --seed 7"))
    assert ids(problems) == ["migrate-flag-without-value"]
    assert problems[0].what == f"{flags.split()[0]} has no value"


# -- Megatron-LM's lists ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("([0]*1+[1]*26)", [0, *[1] * 26]),
        ("[1, 0]", [1, 0]),
        ("'([1]*2)'", [1, 1]),
        ("([0]*3+[1]*(5-3))*2", [0, 0, 0, 1, 1] * 2),
        ("2*[1]", [1, 1]),
        ("[]", []),
        ("3", None),
        ("[0]+1", None),
        ("[[0]]", None),
        ("[0]*[1]", None),
        ("[0]*10**9", None),
        ("[0]*99999999999", None),
        ("__import__('os')", None),
        ("[x]", None),
        ("['a']", None),
        ("(" * 500, None),
        ("", None),
    ],
)
def test_list_expressions(text: str, value: list[int] | None) -> None:
    assert list_of(text) == value


@pytest.mark.parametrize(
    ("flag", "interval"),
    [
        ('"([1]*27)"', 1),
        ("[1]*27", 1),
        ('"([1,0,0]*9)"', 3),
        ("2", 2),
        ('"([1]*$N)"', 1),
        ('"([1]*$((N - 1)) + [1])"', 1),
        ("'\"([1]*27)\"'", 1),
    ],
)
def test_layers_with_experts(flag: str, interval: int) -> None:
    result = migrated(f"N=27\npython pretrain_gpt.py {SIZES} --lr 0.5 --num-experts 4 --moe-layer-freq {flag} --seed 7")
    values = {name: value.value for name, value in draft([File("new.yml", result.text)]).values.items()}
    assert (values["moe_expert_interval"], result.problems) == (interval, [])


@pytest.mark.parametrize("flag", ['"([0]*1+[1]*26)"', "[0]*1+[1]*26", '"([1]*26)"', '"([0]*27)"', "'([0]+[1]*26)'"])
@pytest.mark.parametrize("form", ["{flags}", 'A="{flags}"\n$A', "A=({flags})\n${{A[@]}}"])
def test_layers_with_experts_that_are_not_every_nth(form: str, flag: str) -> None:
    flag = flag.strip('"') if form.startswith('A="') else flag
    flags = f"--lr 0.5 --num-experts 4 --moe-layer-freq {flag} --seed 7"
    head, _, last = form.format(flags=flags).rpartition("\n")
    (problem,) = migrated(f"{head}\npython pretrain_gpt.py {SIZES} {last}").problems
    assert problem.id == "migrate-flag-without-counterpart"
    assert problem.what.endswith("moe_expert_interval puts experts in every N-th layer, starting with the first")
    pinned(problem)


@pytest.mark.parametrize(
    "flag",
    [
        '--linear-attention-freq "([1]*3+[0]*1)*7"', '--no-rope-freq "([0,1]*13)"',
        '--pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L"', '--hybrid-layer-pattern "M-M*-"',
        "--recompute-modules core_attn moe", "--mrope-section 1 2 3", "--moe-aux-loss-coeff 1e-2 1e-3",
        "--cuda-graph-modules attn mlp", "--hybrid-layer-pattern M-[M*]-",
    ],
)  # fmt: skip
def test_other_lists_and_expressions_do_not_affect_other_flags(flag: str) -> None:
    (problem,) = migrated(f"python pretrain_gpt.py {SIZES} --lr 0.5 {flag} --seed 7").problems
    assert problem.id == "migrate-flag-without-counterpart"
