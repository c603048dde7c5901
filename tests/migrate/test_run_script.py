"""`migrate --run`: a script runs with stubs instead of launchers, and nothing of it is left running."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.base.shipped import SHIPPED
from neoxargs.cli import main
from neoxargs.migrate.run_script import Run, run_script

SIZES = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
SIZES += "--micro-batch-size 4 --global-batch-size 8 --train-iters 9 --lr 1e-3"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(script: str, time_limit: float = 60, **variables: str) -> Run:
    Path("run.sh").write_text(script)
    return run_script(Text("run.sh", script), variables, time_limit)


def lines(script: str, **variables: str) -> list[str]:
    return run(script, **variables).commands.text.splitlines()


def migrate(script: str, *words: str) -> int:
    Path("run.sh").write_text(script)
    return main(["migrate", "run.sh", "--run", *words])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('N=$(python -c "print(3*4)")\ntorchrun p.py --num-layers $N', "torchrun p.py --num-layers 12"),
        ("mpirun -n 2 python p.py --a 1", "mpirun -n 2 python p.py --a 1"),
        ("echo 'print(5)' > five.py\ntorchrun p.py --n $(python3 -u five.py)", "torchrun p.py --n 5"),
        ("echo '--a 1' > args\npython -u pretrain_gpt.py $(cat args)", "python -u pretrain_gpt.py --a 1"),
        ("python -m torch.distributed.run p.py --a", "python -m torch.distributed.run p.py --a"),
        ("python main.py --num-layers=4", "python main.py --num-layers=4"),
        ('if [ "$X" = 3 ]; then deepspeed p.py "$1"; fi', "deepspeed p.py 'a b'"),
        ("srun -N 2 bash -c 'torchrun p.py --x $X'", "torchrun p.py --x 3"),
        ("ssh host 'rm -r x && python p.py --a 1'", "ssh host 'rm -r x && python p.py --a 1'"),
        ("mkdir x && cd x && sleep 99 && torchrun p.py", "torchrun p.py"),
        ("for i in 1 2 3; do torchrun p.py; done", "torchrun p.py"),
        ("export PATH=/usr/bin:/bin\npython pretrain_gpt.py", "python pretrain_gpt.py"),
        ("(torchrun p.py --late) &", "torchrun p.py --late"),
        ("nohup torchrun p.py --out > log 2>&1 &\nexit 3", "torchrun p.py --out"),
        ("exec accelerate launch p.py", "accelerate launch p.py"),
    ],
)  # fmt: skip
def test_the_arguments_that_a_launcher_gets(script: str, expected: str) -> None:
    assert " ".join(" ".join(lines(script, X="3", **{"1": "a b"})).replace("\\", "").split()) == expected


def test_programs_with_effects_elsewhere_do_nothing() -> None:
    Path("kept").touch()
    assert lines("git init; rm -f kept; python -m pip install x; curl x.y\ntorchrun p.py") == ["torchrun p.py"]
    assert Path("kept").exists()
    assert not Path(".git").exists()


def test_the_script_runs_in_its_own_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("sub").mkdir()
    Path("sub/args.sh").write_text("ARGS='--a 1'")
    script = 'source ./args.sh\ntorchrun p.py $ARGS --home "$HOME"'
    Path("sub/run.sh").write_text(script)
    monkeypatch.setenv("HOME", "/ours")
    ran = run_script(Text("sub/run.sh", script), {}).commands
    assert ran == Text("sub/run.sh (as run)", "torchrun p.py \\\n    --a 1 \\\n    --home /ours\n")


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("echo starting\nexit 4\ntorchrun p.py", "ended with exit code 4 without reaching a launcher"),
        ("echo starting\nset -e\nno-such-program\ntorchrun p.py", "no-such-program"),
        ("echo starting\npython -c 'raise SystemExit(3)' && torchrun p.py", "starting"),
    ],
)
def test_a_script_that_reaches_no_launcher(script: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate(script, "--yes", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert [(problem["id"], what in problem["what"]) for problem in answer["problems"]] == [
        ("migrate-run-no-launcher", True)
    ]
    assert "text" not in answer


def running(word: str) -> bool:
    """Return whether a process has this word in its command line."""
    found = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return any(word.encode() in line for line in found)


@pytest.mark.parametrize(
    "loop", ["while true; do sleep 0.1; done", "/bin/sleep 4321.5 & setsid /bin/sleep 4321.5 & wait"]
)
def test_a_script_without_end_is_stopped_with_all_its_processes(loop: str) -> None:
    with pytest.raises(Problems, match="was stopped after 1 s without reaching a launcher"):
        run(loop, time_limit=1)
    ran = run(f"torchrun p.py --before\n{loop}\ntorchrun p.py --after", time_limit=3)
    assert [problem.id for problem in ran.problems] == ["migrate-run-stopped"]
    assert "--before" in ran.commands.text
    assert "--after" not in ran.commands.text
    assert not running("4321.5")
    assert not running(f"{Path.cwd()}/run.sh")


def test_two_models_are_a_warning_as_in_a_script_that_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    script = f"for lr in 1e-3 2e-3; do torchrun pretrain_gpt.py {SIZES} --weight-decay $(echo $lr); done"
    assert migrate(script, "-y", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert "migrate-several-commands" in [problem["id"] for problem in answer["problems"]]


def test_deepspeeds_file_is_read_as_it_was_at_the_launch(capsys: pytest.CaptureFixture[str]) -> None:
    script = """echo '{"train_batch_size": 8, "zero_optimization": {"stage": 2}}' > ds.json
torchrun --nproc_per_node $(echo 2) pretrain_gpt.py SIZES --deepspeed --deepspeed_config=ds.json
echo '{}' > ds.json
""".replace("SIZES", SIZES)
    assert migrate(script, "--yes") == 0
    out = capsys.readouterr().out
    assert "num_gpus: 2\n" in out
    assert "  stage: 2\n" in out


def test_without_a_terminal_it_needs_yes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert migrate("touch ran\ntorchrun p.py", "--json") == 1
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["problems"]] == ["migrate-run-needs-yes"]
    assert not Path("ran").exists()


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_the_question_on_a_terminal(answer: str, code: int) -> None:
    Path("run.sh").write_text(f"touch ran\ntorchrun pretrain_gpt.py {SIZES}")
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    words = [sys.executable, str(SHIPPED / "deepy.py"), "migrate", "run.sh", "--run", "-o", "new.yml"]
    done = subprocess.run(words, stdin=theirs, capture_output=True, text=True)
    os.close(ours), os.close(theirs)
    assert (done.returncode, Path("ran").exists(), Path("new.yml").exists()) == (code, not code, not code), done.stderr
    assert "torchrun" in done.stderr
    assert "git" in done.stderr


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--run", "--from", "deepspeed"], "--run does not apply to a DeepSpeed JSON"),
        (["--yes"], "--yes applies only to --run"),
    ],
)
def test_options_that_do_not_apply(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.sh").write_text(f"python pretrain_gpt.py {SIZES}")
    assert main(["migrate", "run.sh", *words, "--json"]) == 1
    assert what in [problem["what"] for problem in json.loads(capsys.readouterr().out)["problems"]]
