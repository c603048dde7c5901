"""`deepy --completion`: what the shells themselves complete; a shell that is not installed skips."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from neoxargs import cli
from neoxargs.registry import REGISTRY

#: What is typed, with a tab where a key completes, and the words that the command is then given.
TYPED = {
    "deepy che\t my": ["check", "my"],
    "deepy expl\t zero_optimization.sta\t": ["explain", "zero_optimization.stage"],
    "deepy explain rotary-dims-e\t": ["explain", "rotary-dims-even"],
    "deepy check runs/my-on\t": ["check", "runs/my-only.yml"],
    "deepy check --output-f\t sar\t": ["check", "--output-format", "sarif"],
    "deepy check --output-format=sar\t": ["check", "--output-format=sarif"],
    "deepy plan --set hidden_siz\t64 --dev\t H200\t": ["plan", "--set", "hidden_size=64", "--device", "H200-141GB"],
    "deepy plan --set precision=bfl\t": ["plan", "--set", "precision=bfloat16"],
    "deepy train.p\t --dry\t": ["train.py", "--dry-run"],
    "deepy my-scr\t --dry\t": ["my-script.py", "--dry-run"],
    "deepy --comp\t zs\t": ["--completion", "zsh"],
    "deepy init --mod\t pythia-6\t --go\t dp\t": ["init", "--model", "pythia-6.9b", "--goal", "dpo"],
    "deepy init --model=gpt-neox\t --dev\t RTX\t": ["init", "--model=gpt-neox-20b", "--device", "RTX4090-24GB"],
    "deepy migrate --to neox-2021\t --from mega\t": ["migrate", "--to", "neox-2021", "--from", "megatron"],
    "deepy data --cha\t --overl\t dr\t": ["data", "--chat", "--overlong", "drop"],
    "deepy data --ledg\t --ste\t 3": ["data", "--ledger", "--step", "3"],
    "deepy export --archi\t Phi\t": ["export", "--architecture", "Phi3ForCausalLM"],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the script of a shell to a folder with a file and a script of the user."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "runs").mkdir()
    (folder / "runs" / "my-only.yml").touch()
    (folder / "my-script.py").touch()

    def write(shell: str) -> Path:
        with open(folder / shell, "w", encoding="utf-8") as file, redirect_stdout(file):
            assert cli.main(["--completion", shell]) == 0
        return folder / shell

    return write


def interactive(words: list[str], lines: list[str], folder: Path) -> str:
    """Type lines at a shell in a terminal, and return what it has written when it ends."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        os.execvpe(words[0], words, {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder), "PS1": ""})
    shown = b""
    for line in [*lines, "echo EN''D"]:
        os.write(terminal, line.encode() + b"\n")
    while b"END" not in shown and select.select([terminal], [], [], 60)[0]:
        shown += os.read(terminal, 1 << 16)
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.waitpid(child, 0)
    return shown.decode()


@pytest.mark.parametrize(
    ("shell", "words", "begin"),
    [
        ("bash", ["bash", "--norc", "--noprofile", "-i"], []),
        ("zsh", ["zsh", "-f", "-i"], ["autoload -U compinit; compinit -u -D"]),
    ],
    ids=["bash", "zsh"],
)
def test_keys_complete_words_in_a_terminal(
    shell: str, words: list[str], begin: list[str], written: Callable[[str], Path]
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    script = written(shell)
    given = "deepy() { printf 'GIVEN'; printf '<%s>' \"$@\"; echo; }"
    shown = interactive(words, [*begin, f". ./{shell}", given, *TYPED], script.parent)
    expected = ["GIVEN" + "".join(f"<{word}>" for word in typed) for typed in TYPED.values()]
    found = [line.strip()[line.strip().index("GIVEN<") :] for line in shown.splitlines() if "GIVEN<" in line]
    assert found == expected, shown


def test_fish_offers_the_same_words(written: Callable[[str], Path]) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    script = written("fish")
    for typed, words in TYPED.items():
        line, whole = "", " ".join(["deepy", *words])
        for part in typed.split("\t")[:-1]:
            before = (line + part).rpartition(" ")[0]
            asked = f"source {script}; complete -C '{line}{part}'"
            done = subprocess.run(["fish", "-c", asked], capture_output=True, text=True, cwd=script.parent, check=True)
            offered = [f"{before} {each.partition(chr(9))[0]}" for each in done.stdout.splitlines()]
            line = max(filter(whole.startswith, offered), key=len, default="")
            assert line, (asked, done.stdout)


def test_every_command_has_its_options(written: Callable[[str], Path]) -> None:
    text = written("bash").read_text(encoding="utf-8")
    assert all(f'    "{command} -"*) offered=' in text for command in cli.COMMANDS)
    assert all(f"{name}=" in text for name in REGISTRY.parameters)


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "more"]], ids=str)
def test_another_shell_is_a_wrong_command_line(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--completion", *words])
    assert stop.value.code == 2
