"""`deepy init`: what it writes checks, fits, and has a layout of the front; it overwrites and leaves behind nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import shlex
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from neoxargs import cli
from neoxargs.base.problems import Problems
from neoxargs.base.request import Request
from neoxargs.base.shipped import CONFIGS
from neoxargs.commands.check.command import find_problems
from neoxargs.commands.command_line import make_parser, parse
from neoxargs.commands.init.answers import Answers, model, models, others_of_the_size
from neoxargs.commands.init.command import add_arguments, run
from neoxargs.commands.init.compose import compose, shared_batch
from neoxargs.commands.init.goals import GOALS
from neoxargs.resolve import File, draft
from neoxargs.resolve.rules.usual_rates import middle_rate
from tests.support.finetuning import token_file
from tests.support.paths import ROOT
from tests.support.snapshots import pinned

#: A combination, and what of its file is looked at.
COMBINATIONS = {
    "--model pythia-70m --gpus 1 --device A100-40GB": {"precision": "bfloat16", "train_batch_size": 1024},
    "--model 160M --gpus 6 --device v100": {"precision": "fp16", "train_batch_size": 960},
    "--model 1.3B --gpus 8 --device h100": {"hidden_size": 2048, "text_path": "python-stdlib"},
    "--model llama-2-70b --gpus 64 --device h100": {"num_layers": 80},
    "--model mixtral-8x7b --gpus 16 --device B200 --data notes.txt": {"text_path": "notes.txt"},
    "--model llama-3.2-1b --hostfile hosts --device A100-80GB --data tokens": {"hostfile": "hosts"},
    "--model qwen3-0.6b --gpus 4 --device 4090 --data tokens more --goal continue --checkpoint old": {"load": "old"},
    "--model gemma-2-2b --gpus 2 --device H200 --goal finetune --checkpoint old --tokenizer t.json": {
        "finetune": True, "min_lr": 0.0, "vocab_file": "t.json",
    },
    "--model llama-2-7b --gpus 1 --device A100-40GB --goal lora --checkpoint old --tokenizer t.json": {
        "base_checkpoint": "old",
    },
    "--model qwen2-0.5b --gpus 8 --device h100 --goal chat --checkpoint old --data tokens more --tokenizer t.json": {
        "train_label_data_paths": ["tokens_label"], "valid_data_paths": ["more"], "vocab_file": "t.json",
    },
    "--model phi-3-mini --gpus 8 --device h100 --goal dpo --checkpoint old --data tokens more": {
        "train_impl": "dpo", "neg_train_data_paths": ["more"],
    },
}  # fmt: skip
#: Warnings about the tests' own data: tiny, without checkpoints and tokenizers.
NOT_IN_THE_TEST = {
    "checkpoint-missing", "base-checkpoint-missing", "data-part-empty", "data-repeated", "data-mostly-padding",
    "vocabulary-missing",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs: text, token files of bytes with labels, a hostfile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("A text.\n" * 1000)
    (tmp_path / "hosts").write_text("one slots=4\ntwo slots=4\n")
    for name in ("tokens", "more"):
        token_file(tmp_path / name, [[*range(100)]] * 200)
        token_file(tmp_path / f"{name}_label", [[*range(100)]] * 200)
        Path(f"{name}.json").write_text(json.dumps({"tokenizer_type": "ByteLevelTokenizer", "fingerprint": "x"}))
    return tmp_path


def deepy(*words: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = cli.main(list(words))
    return code, out.getvalue()


def shown_by_the_commands(words: str) -> None:
    """Write the file, and ask `check`, `plan` and `plan --search` about it."""
    assert deepy("init", "my.yml", *words.split())[0] == 0
    given = dict(zip(words.split()[::2], words.split()[1::2], strict=False))
    gpus = given.get("--gpus", "8")
    machine = ["--gpus", gpus, "--device", given["--device"], *(["--per-host", "4"] if "--hostfile" in given else [])]
    spec, problems, _ = find_problems(Request(["my.yml"], gpus=int(gpus)))
    assert {each.id for each in problems} <= NOT_IN_THE_TEST
    assert spec
    assert {name: spec.config.get(name) for name in COMBINATIONS[words]} == COMBINATIONS[words]
    assert json.loads(deepy("plan", "my.yml", *machine, "--json")[1])["fits"]
    found = json.loads(deepy("plan", "my.yml", *machine, "--search", "--json")[1])["layouts"]
    assert_the_comments_are_what_plan_says()
    fronts = [layout["set"] for layout in found if layout["front"]]
    assert any(all(spec.config.get(name) == value for name, value in front.items()) for front in fronts)


def assert_the_comments_are_what_plan_says() -> None:
    """Run the command in the comment of the layout, and look for each number of that comment in what it prints."""
    text = " ".join(line.strip("# ") for line in Path("my.yml").read_text().splitlines() if line.startswith("#"))
    found = re.search(r"(About .*? per GPU): deepy (plan .*?) Of ([\d,]+) layouts", text)
    assert found
    numbers, command, planned = found.groups()
    shown = deepy(*shlex.split(command))[1]
    assert len(words := re.findall(r"\d[\d.,]* \w+", numbers)) == 3
    assert all(f" {word} " in f" {' '.join(shown.split())} " for word in words), (words, shown)
    assert f"{planned} layouts planned" in deepy(*shlex.split(command), "--search")[1]


@pytest.mark.slow
@pytest.mark.parametrize("words", list(COMBINATIONS)[1:])
def test_what_is_written_checks_fits_and_is_on_the_front(words: str) -> None:
    shown_by_the_commands(words)


def test_one_combination_in_every_run_of_the_tests() -> None:
    [words, *_] = COMBINATIONS
    shown_by_the_commands(words)
    text, _, layout = Path("my.yml").read_text().partition("\n\n# The layout")
    pinned(text)
    pinned("\n".join(line for line in layout.splitlines() if not line.startswith("#")))


def test_every_goal_and_every_model_is_written_with_a_comment_for_what_it_adds() -> None:
    for name, goal in GOALS.items():
        for shipped in models():
            answers = Answers(shipped, name, "A100-80GB", 8, data=("a", "b") if goal.files else (), checkpoint="old")
            text = compose(answers)
            assert all(part.lstrip().startswith("#") for part in text.split("\n\n")), (name, shipped)
            values = draft([File("my.yml", text)], []).values
            if goal.kind:
                assert values["optimizer.params.lr"].value == middle_rate(goal.kind)


def test_a_size_is_the_nearest_model_without_experts() -> None:
    chosen = {size: model(size)[0] for size in ("70m", "1.3B", "7B", "175B")}
    assert chosen == {"70m": "pythia-70m", "1.3B": "gpt-3-1.3b", "7B": "pythia-6.9b", "175B": "gpt-3-175b"}
    with pytest.raises(ArgumentTypeError):
        model("46B")  # only Mixtral 8x7B has about as many
    pinned(others_of_the_size(model("1.3B")))
    assert not others_of_the_size(model("175B"))


@pytest.mark.parametrize("gpus", [3, 5, 6, 7, 12, 20, 24, 48, 100])
def test_any_number_of_gpus_shares_a_batch_near_the_published_one(gpus: int) -> None:
    for wanted in (256, 512, 1024, 1536, 64):
        batch = shared_batch(wanted, gpus)
        nearest = max(1, round(wanted / gpus)) * gpus
        assert batch % gpus == 0
        assert abs(batch - wanted) <= wanted / 16 or batch == nearest, (wanted, batch)
    for shipped in models():
        before = draft([File("", (CONFIGS / "models" / f"{shipped}.yml").read_text())], []).values
        after = draft([File("", text := compose(Answers(shipped, "pretrain", "A100-80GB", gpus)))], []).values
        if re.search("train_iters: .* tokens", text):
            each = [run["train_batch_size"].value * run["train_iters"].value for run in (before, after)]
            assert each[1] == pytest.approx(each[0], rel=1e-3), shipped


@pytest.mark.parametrize("gpus", ["3", "7"])
def test_an_odd_number_of_gpus_has_micro_batches_as_large_as_others(gpus: str) -> None:
    assert deepy("init", "my.yml", "--model", "pythia-160m", "--gpus", gpus, "--device", "h100")[0] == 0
    assert draft([File("", Path("my.yml").read_text())], []).values["train_micro_batch_size_per_gpu"].value >= 32
    assert_the_comments_are_what_plan_says()


def at_a_terminal(*lines: str) -> str:
    """Answer the questions of `deepy init` at a terminal, and return what it printed."""
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, str(ROOT / "deepy.py"), "init", "my.yml"])
    shown = b""
    for line in lines:
        while not shown.endswith(b": "):
            shown += os.read(terminal, 1 << 16)
        shown = shown[:-1]  # so that the next question is waited for
        os.write(terminal, line.encode())
    with contextlib.suppress(OSError):  # the end of the terminal
        while True:
            if not select.select([terminal], [], [], 2)[0]:
                os.write(terminal, lines[-1].encode())  # Python misses a signal between the prompt and the reading
            shown += os.read(terminal, 1 << 16)
    os.waitpid(child, 0)
    return shown.decode().replace("\r\n", "\n")


def test_at_a_terminal_it_asks_again_until_the_answer_is_one() -> None:
    shown = at_a_terminal("pythia-71m\n", "70M\n", "\n", "Z100\n", "A100-40GB\n", "0\n", "1\n", "\n")
    pinned(shown.partition("\x1b")[0])  # before the progress of the search
    assert Path("my.yml").exists()


def test_at_a_terminal_a_mistake_that_later_answers_show_asks_for_one_answer_only() -> None:
    answers = ("12B\n", "dpo\n", "old\n", "V100-16GB\n", "1\n", "tokens\n", "tokens more\n", "4\n")
    shown = at_a_terminal(*answers)
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.partition("my.yml:")[0]).replace("\r", "\n").splitlines()
    pinned("\n".join(line for line in plain if line and "planning layouts" not in line))
    assert "neg_train_data_paths: [more]" in Path("my.yml").read_text()


def test_ctrl_c_and_the_end_of_the_input_leave_nothing(folder: Path) -> None:
    before = sorted(folder.iterdir())
    for key in ("\x03", "\x04"):
        assert "interrupted" in at_a_terminal("pythia-70m\n", key)
        assert sorted(folder.iterdir()) == before


def test_without_a_terminal_nothing_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["init", "--model", "pythia-70m", "--gpus", "1"])
    assert stop.value.code == 2
    pinned(capsys.readouterr().err, containing="error")


def test_a_file_is_overwritten_only_with_force(folder: Path) -> None:
    (folder / "my.yml").write_text("mine")
    words = ["init", "my.yml", "--model", "pythia-70m", "--gpus", "1", "--device", "A100-40GB"]
    assert cli.main(words) == 1
    assert (folder / "my.yml").read_text() == "mine"
    assert deepy(*words, "--force")[0] == 0
    assert (folder / "my.yml").read_text() != "mine"


@pytest.mark.parametrize("name", ["nowhere/my.yml", "tokens.bin/my.yml", "folder", "read-only.yml"])
def test_a_file_that_cannot_be_written_is_found_before_the_questions(name: str, folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "read-only.yml").touch(0o444)
    options = make_parser("init", "")
    add_arguments(options)
    with pytest.raises(Problems) as stop:
        run(options, parse(options, ["init", name, "--force"]))
    pinned(stop.value.problems)


@pytest.mark.parametrize(
    "words",
    [
        "--model 300B --gpus 8 --device h100",
        "--model pythia-70 --gpus 8 --device h100",
        "--model pythia-70m --gpus 8 --device h101",
        "--model pythia-70m --gpus 8 --device cpu",
        "--model pythia-70m --gpus 8 --device h100 --goal finetune --checkpoint old",
        "--model pythia-70m --hostfile missing --device h100",
        "--model pythia-70m --gpus 8 --device h100 --tokenizer nothing",
        "--model pythia-70m --gpus 8 --device h100 --data unknown",
        "--model pythia-70m --gpus 8 --device h100 --goal chat --checkpoint old",
        "--model pythia-70m --gpus 8 --device h100 --goal dpo --checkpoint old --data tokens",
    ],
)
def test_an_answer_that_is_none_is_a_wrong_command_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["init", *words.split()])
    assert stop.value.code == 2
    pinned(capsys.readouterr().err, containing="error")


def test_a_model_that_does_not_fit(folder: Path) -> None:
    words = ["init", "my.yml", "--model", "llama-2-70b", "--gpus", "1", "--device", "4090"]
    options = make_parser("init", "")
    add_arguments(options)
    with pytest.raises(Problems) as stop:
        run(options, parse(options, words))
    pinned(stop.value.problems)
    assert not (folder / "my.yml").exists()
