"""The command line: commands, GPT-NeoX's spellings, exit codes, and complete runs."""

import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neoxargs.cli import COMMANDS, main
from neoxargs.targets.wire_format import decode
from tests.support import smallest
from tests.support.paths import ROOT
from tests.support.processes import is_running
from tests.support.snapshots import pinned

MODEL = smallest.YAML + """\
model_parallel_size: 2
"""  # fmt: skip
SETUP = "tokenizer_type: ByteLevelTokenizer\ndata_path: tokens\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a configuration in two files, the data they name, and a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.yml").write_text(MODEL)
    (tmp_path / "configs" / "local_setup.yml").write_text(SETUP)
    for name in ("tokens.bin", "tokens.idx", "my_script.py"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a process other than git is started."""
    start = subprocess.Popen

    def only_git(words, **settings):
        assert words[0] == "git", words
        return start(words, **settings)

    monkeypatch.setattr(subprocess, "Popen", only_git)


BOTH = ["configs/small.yml", "configs/local_setup.yml"]


def dry_run(capsys, *words: str) -> dict:
    assert main([*words, "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert not facts["megatron_config"].keys() & facts["deepy_config"].keys()
    return {**facts, "values": {**facts["megatron_config"], **facts["deepy_config"]}}


# -- help and invalid command lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help(words, capsys):
    assert main(words) == (0 if words else 2)
    shown = capsys.readouterr().out
    assert "python deepy.py train.py configs/quickstart.yml" in shown
    assert "python deepy.py generate.py FILE" in shown
    assert "130 interrupted by Ctrl-C" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_configuration_may_come_through_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, f"{MODEL}{SETUP}".encode())
    os.close(writing)
    assert main(["check", f"/dev/fd/{reading}", "--gpus", "2"]) == 0
    os.close(reading)
    assert "ok" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"neoxargs \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_characters_that_stdout_cannot_encode_are_escaped(monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["plan", *BOTH, "--gpus", "4", "--device", "A100-40GB"]) == 0
    screen.flush()
    assert rb"\u2588" in screen.buffer.getvalue()


#: Their help ends the process.
OTHER_PROCESSES = {"data", "export", "import"}


@pytest.mark.parametrize("verb", ["my_script.py", *sorted(COMMANDS.keys() - OTHER_PROCESSES)])
def test_every_command_has_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"usage: deepy {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["data"], ["data", "--chat"], ["export"], ["import"]], ids=" ".join)
def test_a_command_without_its_packages_says_how_to_install_them(words, capsys, monkeypatch):
    monkeypatch.setattr("neoxargs.checks.machine.packages.is_missing", lambda package: True)
    assert main([*words, "--help"]) == 1
    said = capsys.readouterr().err
    assert f"error: deepy {words[0]} needs numpy" in said
    assert f"run pip install -c {ROOT}/constraints.txt -e '{ROOT}[train]'" in said


def test_nothing_tells_users_to_install_a_name_that_is_not_registered():
    """On an index, `neoxargs` and `deepy` could be anybody's packages."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.rglob("neoxargs/**/*.py")]
    named = re.compile(r"pip install (-\S+ )*['\"]?(neoxargs|deepy)\b(?!-)")
    assert [str(path) for path in files if named.search(path.read_text(encoding="utf-8"))] == []


def test_the_help_of_a_script_describes_only_the_options_that_it_reads(capsys):
    shown = {}
    for script in ("generate.py", "eval.py", "my_script.py"):
        with pytest.raises(SystemExit):
            main([script, "--help"])
        shown[script] = " ".join(capsys.readouterr().out.split())
    assert "--prompt TEXT prompt for the model" in shown["generate.py"]
    options = ("--prompt", "--autotuning", "--eval_results_prefix", "--hostfile")
    assert [option in shown["eval.py"] for option in options] == [False, False, True, True]
    assert all(option in shown["my_script.py"] for option in options)


def test_an_unknown_command_is_not_followed_by_the_usage_of_all(capsys):
    with pytest.raises(SystemExit):
        main(["train", "a.yml"])
    pinned(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek", "a.yml"], "did you mean check?"),
        (["a.yml"], "deepy.py train.py a.yml"),
        (["explain"], "required: KEY\n"),
        (["frobnicate"], "commands: check, "),
        (["frobnicate"], "; scripts: train.py, generate.py, eval.py\n"),
        (["plan"], "required"),
        (["check", "a.yml", "--nonsense"], "--nonsense"),
        (["check", "a.yml", "--gpus", "many"], "'many' is not a number of GPUs"),
        (["my_script.py", *BOTH, "--emit", "everything"], "everything"),
        (["my_script.py", *BOTH, "--gpus", "4"], "error: --gpus requires --dry-run or --emit\n"),
        (["my_script.py", *BOTH, "--json"], "error: --json requires --dry-run or --emit\n"),
    ],
)
def test_an_invalid_command_line_exits_with_2(words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


# -- check -----------------------------------------------------------------------------------------------------------


def test_check_prints_ok_and_a_summary(capsys):
    assert main(["check", *BOTH, "--set", "dialect=neox-2021"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "ok"
    pinned(shown.out, "ranks ")
    assert shown.err == ""


def test_a_second_value_after_one_set_is_not_a_file(capsys):
    for verb in (["check"], ["my_script.py"], ["explain", "lr"]):
        assert main([*verb, *BOTH, "--set", "num_layers=2", "hidden_size=64", "optimizer.type=Adam"]) == 1
        pinned(capsys.readouterr().err)
    assert main(["check", "nothing=64"]) == 1
    pinned(capsys.readouterr().err, "[file-missing]")


def test_a_key_may_be_spelled_as_a_flag(capsys):
    for words in (["--tensor-model-parallel-size"], ["--model-parallel-size=2", *BOTH]):
        assert main(["explain", *words]) == 0
        assert capsys.readouterr().out.startswith("model_parallel_size\n")
    assert main(["explain", "--all", *BOTH]) == 0


def test_names_that_are_too_long_are_reported(capsys):
    assert main(["check", *BOTH, "--set", f"hostfile={'h' * 300}", "--set", f"load={'l' * 300}"]) == 1
    told = capsys.readouterr().err
    pinned(told, "[checkpoint-missing]")
    pinned(told, "[hostfile-missing]")


def test_an_os_error_is_a_problem(capsys, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error", "configs/small.yml")

    monkeypatch.setattr("neoxargs.commands.check.command.run", refuse)
    assert main(["check", *BOTH]) == 1
    assert capsys.readouterr().err == "configs/small.yml: error: input/output error [file-error]\n"


def test_check_reports_every_problem_at_once(capsys):
    Path("bad.yml").write_text("num_layer: 2\nhidden_size: wide\nnum_nodes: 3\n")
    assert main(["check", "bad.yml"]) == 1
    shown = capsys.readouterr()
    assert shown.out.split()[0] == "unchecked" and shown.out.count("\n") == 3
    assert {"bad.yml:1:1", "bad.yml:2:14", "bad.yml:3:1"} <= {line.split(": ")[0] for line in shown.err.splitlines()}


def test_valid_values_are_checked_although_others_are_wrong(capsys, nothing_starts):
    Path("bad.yml").write_text(SETUP.replace("tokens", "nowhere") + "te_fp8_mha: true\nhidden_size: wide\n")
    for words in (["check"], [str(ROOT / "train.py")]):
        assert main([*words, "bad.yml"]) == 1
        told = capsys.readouterr().err
        assert "there is no nowhere.bin" in told
        pinned(told, "[not-built]")
        assert "num_layers is missing" in told
    Path("bad.yml").write_text("hidden_size: wide\n")
    assert main(["check", "bad.yml"]) == 1
    pinned(capsys.readouterr().err, "[no-training-data]")
    Path("bad.yml").write_text("hidden_size: wide\ndata_path: {}\n")
    assert main(["check", "bad.yml"]) == 1
    assert "there is no training data" not in capsys.readouterr().err


def test_check_prints_json(capsys):
    assert main(["check", *BOTH, "--gpus", "8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["ranks"], facts["device"], facts["train_batch_size"]) == (True, 8, "cuda", 8)
    assert main(["check", *BOTH, "--set", "hidden_size=x", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] is False
    assert facts["problems"][0]["file"] == "--set"


def test_missing_files_are_problems_here_and_warnings_for_another_machine(capsys):
    Path("tokens.idx").unlink()
    assert main(["check", *BOTH]) == 1
    pinned(capsys.readouterr().err, "[data-file-missing]")
    assert main(["check", *BOTH, "--gpus", "2"]) == 0
    pinned(capsys.readouterr().err, "[data-file-missing]")


def test_a_dry_run_ends_with_the_reasons_for_which_the_run_would_not_start_here(capsys, nothing_starts):
    """It succeeds, because the run may be for another machine."""
    assert main(["train.py", *BOTH, "--dry-run"]) == 0
    assert "would not start" not in capsys.readouterr().err
    Path("tokens.idx").unlink()
    assert main(["train.py", *BOTH, "--dry-run"]) == 0
    *_, last = capsys.readouterr().err.splitlines()
    pinned(last)
    assert main(["train.py", *BOTH, "--dry-run", "--gpus", "2"]) == 0
    assert "would not start" not in capsys.readouterr().err


def test_an_emitted_command_for_more_gpus_than_a_node_has_is_for_the_nodes_of_the_hostfile(capsys, nothing_starts):
    """DeepSpeed's num_gpus is a number per node, and without a hostfile it would use one machine."""
    words = [*BOTH, "--set", "launcher=pdsh", "--set", "hostfile=/no/hostfile"]
    for form in ("command", "runner"):
        assert main(["train.py", *words, "--gpus", "64", "--emit", form]) == 0
        shown = capsys.readouterr()
        assert "--hostfile=/no/hostfile --num_nodes=8 --num_gpus=8 " in shown.out
        pinned(shown.err, "[hostfile-missing]")
    assert main(["train.py", *words, "--gpus", "64", "--dry-run"]) == 0
    assert "/no/hostfile does not exist" not in capsys.readouterr().err
    assert main(["train.py", *words, "--gpus", "8", "--emit", "runner"]) == 0
    assert "--num_gpus=8 " in (out := capsys.readouterr().out) and "num_nodes" not in out


def test_an_evaluation_needs_the_data_that_it_names(capsys, nothing_starts):
    Path("tokens.idx").unlink()
    assert main(["eval.py", *BOTH]) == 1
    pinned(capsys.readouterr().err, "[data-file-missing]")


def test_a_part_of_a_configuration_can_be_checked_for_another_machine(capsys):
    assert main(["check", "configs/small.yml"]) == 1
    pinned(capsys.readouterr().err, "[no-training-data]")
    assert main(["check", "configs/small.yml", "--gpus", "2"]) == 0
    pinned(capsys.readouterr().err, "[no-training-data]")


def test_what_train_py_does_not_support_is_allowed_for_other_scripts(capsys, nothing_starts):
    wanted, refused = ["--set", "te_fp8_mha=true"], "te_fp8_mha (true) is not supported by train.py: GPT-NeoX's code"
    assert main(["check", *BOTH, *wanted]) == 1
    assert refused in capsys.readouterr().err
    assert main(["train.py", *BOTH, *wanted]) == 1
    assert refused in capsys.readouterr().err
    assert main(["my_script.py", *BOTH, *wanted, "--dry-run"]) == 0


@pytest.mark.parametrize("form", [["--dry-run"], ["--emit", "deepspeed"]])
def test_a_dry_run_of_an_unsupported_configuration_fails(capsys, nothing_starts, form):
    for script, wanted in (("train.py", "hybrid_engine.enabled=true"), ("generate.py", "te_fp8_mha=true")):
        assert main([script, *BOTH, *form]) == 0
        capsys.readouterr()
        assert main([script, *BOTH, "--set", wanted, *form]) == 1
        shown = capsys.readouterr()
        pinned(shown.err, "[not-built]")
        assert '"train_batch_size": 2' in shown.out


def test_a_missing_configuration_is_a_problem(capsys):
    assert main(["check", "configs/smal"]) == 1
    assert "did you mean small.yml?" in capsys.readouterr().err


# -- dry runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["my_script.py", *BOTH],
        ["my_script.py", "-d", "configs", "small", "local_setup"],
        ["my_script.py", "-d", "configs", "small.yml", "local_setup.yml"],
        ["my_script.py", "--conf_dir", "configs", "local_setup", "small"],
        ["my_script.py", "small", "-d", "configs", "local_setup"],
    ],
)
def test_configurations_may_be_named_as_in_gpt_neox(words, capsys):
    facts = dry_run(capsys, *words)
    assert facts["values"]["hidden_size"] == 64
    assert facts["values"]["data_path"] == "tokens"
    assert facts["values"]["user_script"] == "my_script.py"


def test_a_dry_run_starts_and_writes_nothing_and_emit_command_is_the_exact_command(capsys, folder, nothing_starts):
    before = sorted(folder.rglob("*"))
    facts = dry_run(capsys, "my_script.py", *BOTH)
    assert main(["my_script.py", *BOTH, "--emit", "command"]) == 0
    changes = [f"{name}={value}" for name, value in facts["environment"].items()]
    assert shlex.split(capsys.readouterr().out) == ["env", *changes, *facts["command"]]
    assert main(["my_script.py", *BOTH, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert sorted(folder.rglob("*")) == before
    for name in ("deepspeed_config", "megatron_config", "deepy_config"):
        assert decode(facts["command"][facts["command"].index(f"--{name}") + 1]) == facts[name]
    assert '"train_batch_size": 2' in shown
    assert shown.startswith("model      2 layers, hidden 64")


def test_a_dry_run_abbreviates_encoded_arguments(capsys):
    assert main(["my_script.py", *BOTH, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert '"config_files": ["small.yml", "local_setup.yml"]' in shown
    words = shlex.split(shown.splitlines()[-1])
    assert re.fullmatch(r"<base64: [\d,]+ bytes of JSON>", words[words.index("--megatron_config") + 1])
    assert "my_script.py" in words


def test_each_form_alone(capsys):
    assert main(["my_script.py", *BOTH, "--emit", "deepspeed"]) == 0
    assert json.loads(capsys.readouterr().out)["train_batch_size"] == 2
    known = ["--set", "tokenizer_type=HFGPT2Tokenizer", "--set", "vocab_file=gpt2"]
    assert main(["my_script.py", *BOTH, "--emit", "megatron", *known]) == 0
    assert "--tensor-model-parallel-size 2" in capsys.readouterr().out
    assert main(["my_script.py", *BOTH, "--emit", "runner"]) == 0
    assert capsys.readouterr().out == "--num_gpus=2 --log_level=critical\n"


def test_a_dry_run_for_other_gpus(capsys):
    facts = dry_run(capsys, "my_script.py", *BOTH, "--gpus", "16")
    assert facts["deepspeed_config"]["train_batch_size"] == 16
    assert f"--devices={','.join(map(str, range(16)))}" in facts["command"]
    assert "DS_ACCELERATOR" not in facts["environment"]


def test_set_overrides_and_gpt_neox_options_are_sets(capsys):
    words = ["--set", "hidden-size=128", "--set", "optimizer.params.lr=0.01", "--wandb_group", "a b: c", "-i", "in.txt"]
    words += ["--wandb_run_name", "first try"]
    values = dry_run(capsys, "my_script.py", *BOTH, *words, "--iteration", "7", "--eval_tasks", "x", "y")["values"]
    assert values["wandb_run_name"] == "first try"
    assert (values["hidden_size"], values["lr"], values["iteration"]) == (128, 0.01, 7)
    assert (values["wandb_group"], values["sample_input_file"], values["eval_tasks"]) == (
        "a b: c",
        "in.txt",
        ["x", "y"],
    )


def test_check_takes_the_options_of_a_launch(capsys, tmp_path):
    """Without the one that starts the autotuner, DeepSpeed would end the run after a few steps."""
    Path("tune.yml").write_text("autotuning: {enabled: true}")
    words = ["check", *BOTH, "tune.yml", "--gpus", "4", "--json"]
    for option, ids in (([], ["autotuning-without-tuner"]), (["--autotuning", "tune"], [])):
        code = main([*words, *option])
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert [problem["id"] for problem in problems if problem["severity"] == "error"] == ids
        assert code == len(ids)


def test_the_ranks_receive_the_files_and_the_commit(capsys, folder):
    facts = dry_run(capsys, "my_script.py", *BOTH)
    assert facts["values"]["config_files"] == {"small.yml": MODEL, "local_setup.yml": SETUP}
    assert "git_hash" not in facts["values"]
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run(["git", *words], check=True)
    commit = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=True).stdout.strip()
    assert dry_run(capsys, "my_script.py", *BOTH)["values"]["git_hash"] == commit


def test_long_files_are_not_sent(capsys, folder):
    (folder / "configs" / "small.yml").write_text(MODEL + "# long\n" * 9000)
    assert "config_files" not in dry_run(capsys, "my_script.py", *BOTH)["values"]


def test_text_is_tokenised_before_the_ranks_start(capsys):
    Path("text.yml").write_text("tokenizer_type: ByteLevelTokenizer\ntext_path: python-stdlib\nrun_dir: out\n")
    facts = dry_run(capsys, "my_script.py", "configs/small.yml", "text.yml")
    assert facts["values"]["data_path"] == "out/data/text"
    options = ["--if-missing", "--tokenizer-type=ByteLevelTokenizer", "--output-prefix=out/data/text"]
    assert facts["data_command"][1:] == ["-m", "neoxargs.data.command", *options, "--text-path", "python-stdlib"]


# -- before a start --------------------------------------------------------------------------------------------------


def test_a_missing_script_is_a_problem(capsys):
    assert main(["my_scirpt.py", *BOTH]) == 1
    pinned(capsys.readouterr().err)
    for _ in range(2):
        assert main(["trian.py", *BOTH]) == 1
        assert "did you mean train.py?" in capsys.readouterr().err
        Path("train.py").touch()  # a file of the same name in this folder
    Path("train.py").unlink()
    assert main(["unlike.py", *BOTH]) == 1
    pinned(capsys.readouterr().err, "[script-missing]")


def test_training_without_its_files_does_not_start(capsys, nothing_starts, folder):
    Path("tokens.bin").unlink()
    assert main(["train.py", *BOTH]) == 1
    pinned(capsys.readouterr().err, "[data-file-missing]")
    assert main(["train.py", "configs/small.yml"]) == 1
    pinned(capsys.readouterr().err, "[no-training-data]")
    assert not (folder / "runs").exists()


# -- explain ---------------------------------------------------------------------------------------------------------


def test_explain_shows_source_and_destination_of_a_value(capsys):
    assert main(["explain", "train-micro-batch-size-per-gpu", *BOTH]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("train_micro_batch_size_per_gpu meaning ")
    assert "DeepSpeed JSON train_micro_batch_size_per_gpu, " in shown
    assert "Megatron-LM --micro-batch-size" in shown
    assert "source configs/small.yml:6:1" in shown


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("save_interval", "another spelling of checkpoint_factor"),
        ("fp16", "enabled  "),
        ("fp16.enabled", "true or false"),
    ],
)
def test_explain_old_spellings_sections_and_nested_keys(key, said, capsys):
    assert main(["explain", key]) == 0
    assert said in capsys.readouterr().out


def test_every_parameter_can_be_explained():
    from neoxargs.base.request import Request
    from neoxargs.commands.explain.command import explain
    from neoxargs.registry import REGISTRY

    for name in [*REGISTRY.parameters, *REGISTRY.renamed, *REGISTRY.sections]:
        assert explain(name, Request([]))


# -- complete runs, each in a separate process -----------------------------------------------------------------------

SCRIPT = """
import os, sys, time
from neoxargs.targets.wire_format import parse_rank_arguments
config = parse_rank_arguments(sys.argv[1:]).config
open(f"rank{os.environ['RANK']}", "w").write(f"{os.getpid()} {config.shape.hidden_size} {config.data.data_path}")
time.sleep(float(os.environ.get("SLEEP", 0)))
"""


def deepy(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Start the program as a user does, from a folder outside the repository."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "deepy.py"), *words], env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_a_run_from_start_to_end(folder):
    pytest.importorskip("deepspeed")
    Path("my_script.py").write_text(SCRIPT)
    Path("text.txt").write_text("some words to learn\n" * 50)
    Path("text.yml").write_text("tokenizer_type: ByteLevelTokenizer\ntext_path: text.txt\nmaster_port: 29741\n")
    with deepy("my_script.py", "configs/small", "text", "--set", "hidden_size=32") as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert [Path(f"rank{rank}").read_text().split()[1:] for rank in range(2)] == [["32", "runs/data/text"]] * 2
    assert Path("runs/data/text.idx").exists()
    record = json.loads(Path("runs/config.json").read_text())
    assert record["hidden_size"] == {"value": 32, "source": "--set hidden_size=32"}
    assert record["data_path"] == {"value": "runs/data/text", "source": "derived: tokenised from text_path"}
    assert output.index("ranks      2 = tensor 2") < output.index("documents  ")


@pytest.mark.slow
def test_a_terminated_run_leaves_no_process(folder):
    pytest.importorskip("deepspeed")
    Path("my_script.py").write_text(SCRIPT)
    with deepy("my_script.py", *BOTH, "--set", "master_port=29742", SLEEP="900") as process:
        deadline = time.monotonic() + 250
        while len([path for path in folder.glob("rank*") if path.read_text()]) < 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert not any(is_running(int(path.read_text().split()[0])) for path in folder.glob("rank*"))


def test_the_data_command_passes_its_arguments_on(folder):
    Path("text.txt").write_text("some words\n")
    words = ["data", "text.txt", "--output-prefix", "made", "--tokenizer-type", "ByteLevelTokenizer"]
    with deepy(*words) as process:
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert Path("made.bin").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train.py", "my.yml", "--dry_run"], "write --dry-run"),
        (["train.py", "my.yml", "--train_iters", "20"], "write --set train_iters=20"),
        (["check", "my.yml", "--train-iters", "--json", "--jsn"], "write --set train_iters=VALUE"),
        (["check", "my.yml", "stray", "--train-iters=3"], "write --set train_iters=3"),
        (["plan", "my.yml", "--serach"], "did you mean --search?"),
    ],
)
def test_an_unknown_option_says_what_to_write(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(f"; {hint}")


def test_a_dry_run_refuses_an_unknown_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train.py", "small", "-d", "configs", "--dry-run", "--device", "H2OO"]) == 1
    assert "unknown device: H2OO" in capsys.readouterr().err
