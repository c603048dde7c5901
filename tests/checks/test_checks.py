"""Whatever a launch can refuse before it starts, `deepy check` reports, or says that it has not looked."""

from __future__ import annotations

import ast
import glob
import inspect
import json
import os
import subprocess
from pathlib import Path

import pytest

from neoxargs.base.problems import Problem
from neoxargs.base.record import replace
from neoxargs.checks import all as preflight
from neoxargs.checks.all import CHECKS, OF_VALUES, Check
from neoxargs.checks.data import files as data_files
from neoxargs.checks.machine import packages
from neoxargs.cli import main
from neoxargs.launch import become_rank, stages
from neoxargs.launch.start.prepare import data_command
from neoxargs.resolve.yaml import read
from tests.support import smallest
from tests.support.configure import configure
from tests.support.snapshots import pinned

MODEL = smallest.YAML + "tokenizer_type: ByteLevelTokenizer\ndata_path: tokens\nfloat32_matmul_precision: highest\n"
PLANTED = Problem("planted", id="planted")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run that starts on this machine, and a hostfile with two hosts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    for name in ("tokens.bin", "tokens.idx"):
        Path(name).touch()
    Path("my.yml").write_text(MODEL)
    Path("hosts").write_text("w0 slots=1\nw1 slots=1\n")
    return tmp_path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A launch ends where it would take the lock of the run."""
    reached: list[str] = []

    def lock(*_: object) -> None:
        reached.append("lock")
        raise KeyboardInterrupt

    monkeypatch.setitem(stages.STAGES, "lock", lock)
    monkeypatch.setattr(become_rank, "_lock", lock)
    return reached


def plant(monkeypatch: pytest.MonkeyPatch, row: Check) -> None:
    monkeypatch.setattr(preflight, "CHECKS", [replace(row, find=lambda *_: [PLANTED])])


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The ids of the errors of a command."""
    capsys.readouterr()
    main(words)
    told = capsys.readouterr()
    heads = [line for line in told.err.splitlines() if "error: " in line.partition("[")[0]]
    return {line.rpartition("[")[2].rstrip("]") for line in heads}


ROWS = [pytest.param(row, id=f"{number}-{row.subject}") for number, row in enumerate(CHECKS)]


@pytest.mark.parametrize("row", [row for row in ROWS if "train" in row.values[0].programs])
def test_check_runs_each_check_of_a_launch_or_says_what_it_leaves_out(row, launched, monkeypatch, capsys) -> None:
    plant(monkeypatch, row)
    assert refused(["train.py", "my.yml"], capsys) == {"planted"}
    assert not launched
    code = main(["check", "my.yml", "--set=hostfile=hosts"])
    told = capsys.readouterr()
    if row.subject == "hosts":
        assert code == 0
        assert "unchecked  " in told.out and "--check-hosts" in told.out.splitlines()[-1]
    else:
        assert "planted" in told.err
        assert code == (0 if row.subject == "program" else 1)  # check does not know which script will be launched


@pytest.mark.parametrize("row", [row for row in ROWS if "train" in row.values[0].programs])
def test_a_dry_run_reports_each_value_as_an_error_and_what_this_machine_lacks_as_a_warning(
    row, monkeypatch, capsys
) -> None:
    plant(monkeypatch, row)
    of_values = row.subject in OF_VALUES
    assert main(["train.py", "my.yml", "--dry-run"]) == int(of_values)
    told = capsys.readouterr().err
    assert ("planted" in told) == (row.subject != "hosts")
    assert ("error: planted" in told) == of_values
    assert ("would be errors: planted" in told) == (row.subject != "hosts" and not of_values)


@pytest.mark.parametrize("row", [row for row in ROWS if "train" in row.values[0].programs])
def test_a_rank_of_another_launcher_checks_all_but_the_command(row, launched, monkeypatch, capsys) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    plant(monkeypatch, row)
    found = refused(["train.py", "my.yml"], capsys)
    assert found == (set() if row.subject in ("command", "hosts") else {"planted"})
    assert bool(launched) == (not found)


@pytest.mark.parametrize("row", ROWS)
def test_with_another_number_of_gpus_a_check_is_of_the_values_alone(row, monkeypatch, capsys) -> None:
    plant(monkeypatch, replace(row, programs=("train",)))
    code = main(["check", "my.yml", "--gpus", "8"])
    told = capsys.readouterr()
    left_out = {"hosts", "folders", "trainer"}
    assert ("planted" in told.err) == (row.subject not in left_out)
    assert code == int(row.subject == "values")
    assert "folders" in told.out if code == 0 else True


def test_every_function_that_returns_problems_is_in_the_table() -> None:
    """Directly, or called by one that is."""
    folder = Path(inspect.getfile(preflight)).parent
    trees = {path: ast.parse(path.read_text()) for path in folder.rglob("*.py")}
    called_by_commands = {"problems", "check_hosts"}
    named = {
        node.id if isinstance(node, ast.Name) else node.attr
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.returns and "[Problem]" in ast.unparse(node.returns):
                assert node.name in named | called_by_commands, f"{path.name}: {node.name}"


BASE = ["use_mup=true", "optimizer.type=Adam", "optimizer.params.lr=0.001"]
SECRET = "comet.api_key=ABCDEF"
FAULTS = {
    "launcher-program-missing": (["hostfile=hosts"], {"PATH": "/nowhere"}),
    "secret-in-configuration": ([SECRET], {}),
    "secret-on-command-line": (["hostfile=hosts"], {"MLFLOW_TRACKING_PASSWORD": "x"}),
    "path-not-quoted": (["hostfile=hosts"], {}),
    "rendezvous-address-is-local": (["hostfile=hosts", "launcher=ssh", "master_addr=127.0.0.1"], {}),
    "environment-file-bad-line": (["hostfile=hosts"], {"DS_ENV_FILE": "bad_env"}),
    "configuration-too-long": ([f"wandb_group={'x' * 100_000}"], {}),
    "hostfile-missing": (["hostfile=absent", "launcher=ssh"], {}),
    "folder-not-writable": (["save=/proc/x", "checkpoint_factor=5"], {}),
    "data-file-missing": (["data_path=absent"], {}),
    "padded-vocab-too-small": (["padded_vocab_size=128"], {}),
    "base-shapes-unreadable": ([*BASE, "base_shapes_file=absent"], {}),
    "base-shapes-malformed": ([*BASE, "base_shapes_file=hosts"], {}),
    "deepspeed-extra-args-have-known-keys": (["deepspeed_extra_args={comms_logger: {vebose: true}}"], {}),
    "tensor-parallel-divides-padded-vocab-size": (["padded_vocab_size=513", "model_parallel_size=2"], {}),
    "hostfile-line-without-host": (["hostfile=odd"], {}),
    "hostfile-host-without-slots": (["hostfile=none"], {}),
    "rendezvous-address-malformed": (["hostfile=hosts", "launcher=ssh", "master_addr=w0,A=1"], {}),
    "not-built": (["amp.enabled=true"], {}),
}


@pytest.mark.parametrize("address", ["not a host", "-oProxyCommand=x", "w0;reboot"])
def test_a_rendezvous_address_that_is_no_host_is_refused(address, here, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MASTER_ADDR", address)
    assert "rendezvous-address-malformed" in refused(["check", "my.yml", "--set=hostfile=hosts"], capsys)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused_by_both(fault, here, launched, monkeypatch, capsys) -> None:
    settings, variables = FAULTS[fault]
    if fault == "path-not-quoted":
        (here / "a b").mkdir()
        for path in [path for path in here.iterdir() if path.is_file()]:
            path.rename(here / "a b" / path.name)
        monkeypatch.chdir(here / "a b")
    for name, text in {"bad_env": "no variable\n", "odd": "w3: slots=8\n", "none": "w3 slots=0\n"}.items():
        Path(name).write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = ["my.yml", *(f"--set={setting}" for setting in [*settings, "no_ssh_check=true"])]
    found = refused(["check", *words], capsys)
    assert fault in found
    assert found == refused(["train.py", *words], capsys)
    assert not launched


ADDRESS = "wandb_host=https://me:ABCDEF@host"


@pytest.mark.parametrize("setting", [SECRET, ADDRESS, f"{ADDRESS}/path --set use_wandb=true", f"{ADDRESS} --set lr=x"])
@pytest.mark.parametrize("command", ["check", "train.py", "train.py --dry-run", "explain --all", "explain wandb_host"])
def test_a_secret_is_not_shown_by_the_check_that_refuses_it(setting, command, capsys) -> None:
    code = main([*command.split(), "my.yml", *f"--set={setting}".split(" ")])
    assert "ABCDEF" not in "".join(capsys.readouterr())
    assert code == int("explain" not in command or "lr=x" in setting)


ENDLESS = ["tokenizer_type=HFTokenizer vocab_file=%s", "tokenizer_type=SPMTokenizer vocab_file=%s", "data_path=%s"]
ENDLESS += ["tokenizer_type=GPT2BPETokenizer vocab_file=my.yml merge_file=%s", "text_path=%s data_path=null"]
ENDLESS += ["eval_prompts_file=%s", "hostfile=%s", "use_mup=true base_shapes_file=%s optimizer.params.lr=0.01"]


@pytest.mark.parametrize("settings", ENDLESS)
@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_no_check_reads_a_pipe_or_a_device(settings, path, capsys) -> None:
    """Reading would never end; nobody writes to the pipe."""
    for name in ("pipe", "pipe.idx", "pipe.bin", "pipe.json"):
        os.mkfifo(name)
    code = main(["check", "my.yml", *(f"--set={setting}" for setting in (settings % path).split())])
    told = capsys.readouterr().err
    assert code == 1 or "hostfile" in settings
    assert path in told


def test_the_files_of_a_checkpoint_are_not_read_from_pipes() -> None:
    Path("load/global_step5").mkdir(parents=True)
    for name in ("files.json", "config.json", "data.json", "base.json", "layout-0.json", "mp_rank_00_model_states.pt"):
        os.mkfifo(f"load/global_step5/{name}")
    os.mkfifo("load/latest")
    main(["check", "my.yml", "--set=load=load"])
    main(["checkpoints", "load"])


@pytest.mark.parametrize(
    ("pattern", "code", "said"),
    [("/**/*", 0, ""), ("/**/*.no-such-ending", 0, "check-skipped"), ("here/**/*.txt", 1, "data-file-missing")],
)
def test_a_pattern_is_not_searched_for_without_end(pattern, code, said, monkeypatch, capsys) -> None:
    monkeypatch.setattr(data_files, "MAX_SEARCHED", 1000)
    assert main(["check", "my.yml", "--set=data_path=null", f"--set=text_path={pattern}"]) == code
    assert said in capsys.readouterr().err


def test_patterns_match_what_glob_matches(here) -> None:
    for path in ("a/b/c.txt", "a/.hidden/d.txt", "a/e.jsonl"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    patterns = ["a/*", "a/**", "a/*/c.txt", "a/[de].jsonl", "a/.h*/*", "*.pdf"]
    patterns += ["a/**/*.txt", "**/d.txt", "a/**/b/**/c*"]
    for pattern in (*patterns, *(str(here / pattern) for pattern in patterns)):
        assert data_files._has_match(pattern) == bool(glob.glob(pattern, recursive=True)), pattern


def test_a_pipe_as_the_configuration(monkeypatch, capsys) -> None:
    os.mkfifo("named")
    monkeypatch.setattr(read, "WRITER_TIMEOUT", 0)
    assert main(["check", "named"]) == 1
    pinned(capsys.readouterr().err, "[file-unreadable]")
    monkeypatch.setattr(read, "WRITER_TIMEOUT", 600)
    with subprocess.Popen(["sh", "-c", "cat my.yml > named"]):
        assert main(["check", "named", "--gpus", "1"]) == 0
    end, begin = os.pipe()
    with open(begin, "w") as writer:
        writer.write("num_layers: many\n")  # an error, after which nothing reads the pipe again
    assert main(["check", f"/dev/fd/{end}"]) == 1
    assert "num_layers" in capsys.readouterr().err
    os.close(end)


def test_names_that_begin_with_a_hyphen_are_no_options() -> None:
    config = configure("{text_path: [--output-prefix=x, a.txt], tokenizer_type: ByteLevelTokenizer}")
    assert data_command(config)[-3:] == ["--text-path", "./--output-prefix=x", "a.txt"]


def test_what_is_unchecked_on_a_machine_without_torch(monkeypatch, capsys) -> None:
    monkeypatch.setattr(packages, "is_missing", lambda _: True)
    assert main(["check", "my.yml", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    pinned(answer["unchecked"])
    # with torch, the machine is one for training, and its other packages are needed
    monkeypatch.setattr(packages, "is_missing", lambda package: package == "deepspeed")
    assert refused(["check", "my.yml"], capsys) == {"trainer-missing"}


def test_a_lock_in_a_folder_of_the_run_is_said(here, capsys) -> None:
    Path("ckpt").mkdir()
    Path("ckpt/run.lock").write_text("{}")
    assert main(["check", "my.yml", "--set=save=ckpt", "--set=checkpoint_factor=5"]) == 0
    pinned(capsys.readouterr().out, "whether the")
