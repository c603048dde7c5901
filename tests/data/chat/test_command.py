"""`deepy data --chat`: what it prints, and its flags; `UPDATE=1 pytest FILE` rewrites the snapshot."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neoxargs.data.chat import command, report
from neoxargs.data.chat.worker import Sample
from tests.support import chat
from tests.support.chat import CHATS, read_pair, write_chats, write_folder
from tests.support.paths import ROOT
from tests.support.snapshots import pinned

SNAPSHOT = Path(__file__).parent / "snapshots" / "command.txt"
BYTES = "--tokenizer-type ByteLevelTokenizer --output-prefix out"
#: Commands in a folder with the files of `folder`.
CASES = (
    f"chats.jsonl --chat-template chatml {BYTES}",
    f"chats.jsonl --chat-template chatml {BYTES} --if-missing",
    f"sharegpt.jsonl alpaca.jsonl --chat-template headings {BYTES}",
    f"chats.jsonl --chat-template headings {BYTES} --max-length 100 --overlong drop --only-last",
    "chats.jsonl --tokenizer-path merging --output-prefix out",
    "chats.jsonl --tokenizer-path hf --output-prefix out",
    f"thinking.jsonl --chat-template reasoning.jinja {BYTES}",
    # problems
    f"chats.jsonl {BYTES}",
    f"chats.jsonl --chat-template chatlm {BYTES}",
    f"chats.jsonl --chat-template invalid.jinja {BYTES}",
    f"bad.jsonl --chat-template failing.jinja {BYTES}",
    f"counted.jsonl --chat-template counting.jinja {BYTES}",
    f"texts.jsonl empty --chat-template chatml {BYTES}",
    f"texts.jsonl alpaca.json.jsonl --chat-template chatml {BYTES}",
    f"list.json --chat-template chatml {BYTES}",
    f"chats.jsonl --chat-template chatml {BYTES} --train-on moon",
    f"roles.jsonl --chat-template chatml {BYTES}",
    f"misspelt.jsonl --chat-template chatml {BYTES}",
    f"calls.jsonl --chat-template chatml {BYTES} --no-tool-calls",
    f"calls.jsonl --chat-template chatml {BYTES} --no-tool-calls --only-last",
    f"misspelt.jsonl --chat-template chatml {BYTES} --mask-by marks",
    f"unanswered.jsonl --chat-template chatml {BYTES}",
    f"moons.jsonl --chat-template chatml {BYTES}",
    f"sharegpt.jsonl --chat-template chatml {BYTES} --train-on user --only-last",
    f"chats.jsonl --chat-template chatml {BYTES} --max-length 10 --overlong cut",
    f"chats.jsonl --chat-template chatml {BYTES} --max-length 10 --overlong drop",
    "chats.jsonl --tokenizer-path hf --tokenizer-type HFTokenizer --output-prefix out",
    f"chats.jsonl --chat-template chatml {BYTES} --no-mask --only-last --overlong cut --workers 0 --json-key a,b,c",
    f"chats.jsonl --chat-template chatml {BYTES} --mask-by marks --no-tool-calls",
    "chats.jsonl --tokenizer-path hf --output-prefix out --mask-by marks",
    "chats.jsonl --tokenizer-path absent --output-prefix out",
    "chats.jsonl --tokenizer-path damaged --output-prefix out",
    "chats.jsonl --tokenizer-path several --output-prefix out",
    "chats.jsonl --output-prefix out --ftfy --dataset-impl lazy --jsonl-keys a b",
    f"rated.jsonl --chat-template chatml {BYTES} --for-rm",
    f"rated.jsonl --chat-template chatml {BYTES} --for-rm --reward-key stars",
    f"rated.jsonl --chat-template chatml {BYTES} --reward-key stars",
    f"rated.jsonl --chat-template chatml {BYTES} --reward-key good --binary-reward",
    f"rated.jsonl --chat-template chatml {BYTES} --reward-key good",
    f"rated.jsonl --chat-template chatml {BYTES} --reward-key stars --binary-reward",
    f"rated.jsonl --chat-template chatml {BYTES} --reward-key note",
    f"chats.jsonl --chat-template chatml {BYTES} --reward-key stars",
    f"chats.jsonl --chat-template chatml {BYTES} --binary-reward",
    "--chat-template chatml --output-prefix out --tokenizer-type CharLevelTokenizer",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_chats(Path("chats.jsonl"))
    write_folder(Path("hf"), "llama3", chat.TEMPLATES["headers"].replace("<|eot|>", "{{ eos_token }}"))
    write_folder(Path("merging"), "metaspace", chat.TEMPLATES["plain"])
    write_folder(Path("several"), "gpt2", [{"name": name, "template": "x"} for name in ("rag", "tool_use")])
    write_folder(Path("damaged"), "gpt2", "x")
    Path("damaged", "tokenizer_config.json").write_text("{")
    Path("empty").mkdir()
    files = {
        "sharegpt.jsonl": [{"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]},
                           {"conversations": [{"from": "moon", "value": "Hello."}]}],
        "alpaca.jsonl": [{"instruction": "Add.", "input": "1, 2", "output": "3"}],
        "rated.jsonl": [{"messages": CHATS[0], "stars": stars, "good": stars > 0, "note": None}
                        for stars in (0.75, -2, 3)],
        "texts.jsonl": [{"text": "only text", "id": 1}],
        "alpaca.json.jsonl": [[{"instruction": "x"}]],
        "list.json": [],
        "thinking.jsonl": [{"messages": [*CHATS[0], *CHATS[0]]}],
        "counted.jsonl": [{"messages": [{"role": "user", "content": ""}, CHATS[0][1]]}],
        "roles.jsonl": [{"messages": [{"role": "human", "content": "Why?"}, {"role": "gpt", "content": "So."}]}],
        "misspelt.jsonl": [{"messages": [{"role": "asistant", "content": "So."}]}],
        "calls.jsonl": [{"messages": [CHATS[0][0], {"role": "assistant", "tool_calls": [{"name": "add"}]}]}],
        "unanswered.jsonl": [{"messages": [CHATS[0][0], {"role": "assistant", "content": None}]}],
        "moons.jsonl": [{"conversations": [{"from": "human", "value": "Why?"}, {"from": name, "value": "x"}]}
                        for name in ("moon", "sun", "moon")],
        "bad.jsonl": [{"messages": [{"role": "user", "content": "ok"}, {"role": "assistant", "content": "ok"}]},
                      {"messages": [{"role": "assistant", "content": "fails"}]},
                      {"messages": [{"role": "user", "content": ""}, 3]},
                      {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
                      {"conversation": []},
                      "text"],
    }  # fmt: skip
    for name, rows in files.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with open("bad.jsonl", "a", encoding="utf-8") as bad:
        bad.write('{"messages": [}\n')
    templates = {
        "invalid": "{% for m in messages %}\n{{ m.content }\n",
        "failing": "{% for m in messages %}\n{% if m.content == 'fails' %}{{ raise_exception('no!') }}{% endif %}\n"
        "{{ m.content }}{% endfor %}",
        "counting": "{{ messages | length }}{% for m in messages %}[{{ m.content | upper }}]{% endfor %}",
        "reasoning": "{% for m in messages %}<|{{ m.role }}|>{% if loop.last and m.role == 'assistant' %}"
        "<think></think>{% endif %}{{ m.content }}{% endfor %}",
    }
    for name, text in templates.items():
        Path(f"{name}.jinja").write_text(text)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_what_is_printed(capsys) -> None:
    shown = []
    for words in CASES:
        code = command.main(words.split())
        out, err = capsys.readouterr()
        text = re.sub(r"time( +)[\d.]+ s", r"time\1T s", out + err)
        shown.append(f"$ deepy data --chat {words}\n{text}(exit code {code})\n")
    if os.environ.get("UPDATE"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text("\n".join(shown), encoding="utf-8")
    assert "\n".join(shown) == SNAPSHOT.read_text(encoding="utf-8")


@pytest.mark.usefixtures("folder")
class TestJson:
    def test_statistics(self, capsys) -> None:
        assert command.main([*CASES[0].split(), "--json"]) == 0
        out = capsys.readouterr().out
        assert json.loads(out) == json.loads(Path("out.json").read_text())
        assert json.loads(out)["conversations"] == 3

    def test_problems(self, capsys) -> None:
        assert command.main([*f"bad.jsonl --chat-template failing.jinja {BYTES} --json".split()]) == 1
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert [problem["line"] for problem in problems] == [2, 3, 4, 5, 6, 7]
        assert not list(Path().glob("out*"))


@pytest.mark.usefixtures("folder")
def test_the_flags_of_gpt_neox() -> None:
    words = "--output-prefix {} --tokenizer-path hf --num-docs 3 --log-interval 1 --dataset-impl mmap --workers 1"
    neox = "--input chats.jsonl,chats.jsonl --jsonl-keys conversation --generation-role assistant"
    assert command.main([*words.format("a").split(), *neox.split()]) == 0
    assert command.main([*words.format("b").split(), "chats.jsonl", "--train-on", "assistant"]) == 0
    assert read_pair(Path("a")) == read_pair(Path("b")) * 1  # a file that is named twice is read once


def test_the_sample_of_a_terminal() -> None:
    sample = Sample("c.jsonl:1", "Q: 1?\nA: 2\n3\n\x1b[2J", [(8, 17)], "</s>", True)
    pinned(report.sample_text(sample, report.TERMINAL))


def test_a_long_sample_is_shortened() -> None:
    text = report.sample_text(Sample("c.jsonl:1", "x" * 5000, [(0, 5000)], "", False), report.PLAIN)
    assert text.endswith("\n... 2,002 more characters\n")


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
class TestProcess:
    """The command as a user starts it."""

    words = (sys.executable, str(ROOT / "deepy.py"), "data", "--chat")

    def test_on_a_terminal(self) -> None:
        screen, terminal = pty.openpty()
        subprocess.run([*self.words, *CASES[0].split()], stdout=terminal, check=True, timeout=120)
        shown = b""
        while b"\x1b[7m4<|im_end|>" not in shown:  # a terminal may pass on what was written in several pieces
            shown += os.read(screen, 10000)

    def test_no_torch_is_loaded(self) -> None:
        program = "import sys, neoxargs.data.chat.command; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False, cwd=ROOT).returncode == 0

    @pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_leaves_nothing(self, number, code) -> None:
        write_chats(Path("large.jsonl"), chats=CHATS * 60_000)
        words = [*self.words, "large.jsonl", *BYTES.split(), "--chat-template", "chatml", "--workers", "2"]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        while not list(Path().glob(".out.bin.*.part")):
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, number)
        assert process.wait(120) == code
        assert not list(Path().glob("out*"))
