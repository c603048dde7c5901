"""Every value of a configuration reaches the ranks intact, through whatever shells a launcher's command passes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.request import Request
from neoxargs.hosts.environment import passed_on
from neoxargs.hosts.launchers import Launcher
from neoxargs.launch.command.command import command
from neoxargs.launch.command.over_ssh import remote_script
from neoxargs.runs.run_spec import resolve_run
from neoxargs.targets.wire_format import parse_rank_arguments
from tests.support import smallest

#: Text that a shell would split, replace or run.
NASTY = (
    "two  words 'single' \"double\" $(touch executed) `touch executed` ${HOME} \\ * ~ ; & | > executed #\nline ! "
    "\u00fc\u6f22"
)
#: Parameters of each receiver: DeepSpeed's JSON, GPT-NeoX's values, deepy's own.
VALUES = {"wandb_group": NASTY, "tensorboard.job_name": NASTY, "sample_output_file": NASTY, "run_dir": f"out/{NASTY}"}
#: Prints its arguments as JSON.
RECORDER = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.fixture
def words(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of a rank's script on two hosts, as the launcher gets them."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("w0 slots=2\nw1 slots=2\n")
    Path("my.yml").write_text(f"{smallest.YAML}hostfile: hosts\nlauncher: {launcher.name}\n")
    spec = resolve_run(Request(["my.yml"], [f"{name}={json.dumps(value)}" for name, value in VALUES.items()]), {})
    started = command(spec.config, spec.resources, "/s.py", {}).words
    return list(started[started.index("/s.py") + 1 :])


def received(words: list[str]) -> dict[str, Any]:
    config = parse_rank_arguments(words).config
    return {name: config.get(name) for name in VALUES}


def test_values_pass_through_shells_that_do_not_quote(words: list[str]) -> None:
    """pdsh joins the words with spaces for a remote shell; a login shell or an mpirun may evaluate them once more."""
    once = subprocess.run(
        ["sh", "-c", f"{sys.executable} -c {shlex.quote(RECORDER)} {' '.join(words)}"], capture_output=True, check=True
    )
    inner = f"{shlex.quote(sys.executable)} -c {shlex.quote(RECORDER)} {' '.join(words)}"
    twice = subprocess.run(["bash", "-c", f"eval {shlex.quote(inner)}"], capture_output=True, check=True)
    for done in (once, twice):
        assert json.loads(done.stdout) == words
    assert received(words) == VALUES
    assert not Path("executed").exists()


def test_a_name_of_a_variable_is_never_run_by_a_remote_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path(".deepspeed_env").write_text("A;touch executed;B=1\nGOOD=1\n")
    passed = passed_on({"NCCL_;touch executed;": "1", "NCCL_X": "2"}, str(tmp_path))
    assert passed == {"NCCL_X": "2", "GOOD": "1"}
    subprocess.run(["bash", "-c", f"exec 3< /dev/null; {remote_script(['true'], str(tmp_path), passed)}"], timeout=20)
    assert not Path("executed").exists()


def test_words_and_variables_pass_through_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`over_ssh` quotes everything else: the words of any command, the folder and the variables."""
    folder = tmp_path / NASTY.replace("/", "")
    folder.mkdir()
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ['NCCL_X']]))"
    script = remote_script([sys.executable, "-c", show, NASTY, ""], str(folder), {"NCCL_X": NASTY})
    there = f'exec 3<&0; eval "$(head -c {len(script.encode())})"'
    with subprocess.Popen(["bash", "-c", there], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(script.encode())
        process.stdin.flush()  # it stays open, as ssh's does: its end stops the command
        assert json.loads(process.stdout.readline()) == [[NASTY, ""], str(folder), NASTY]
    assert not (folder / "executed").exists()
