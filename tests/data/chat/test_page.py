"""The example in docs/conversations.md."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from neoxargs.data.chat import command
from neoxargs.data.conversation import MESSAGES, QUESTIONS
from neoxargs.files.builtin_chat_templates import BUILT_IN
from tests.support.paths import DOCS

PAGE = (DOCS / "conversations.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_shows(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    lines, example = (re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)[1] for kind in ("json", "console"))
    Path("chats.jsonl").write_text(lines)
    first, shown = example.split("\n", 1)
    assert command.main(first.removeprefix("$ python deepy.py data ").split()) == 0
    assert re.sub(r"time( +)[\d.]+ s", r"time\g<1>0.0 s", capsys.readouterr().out) == shown


def test_every_option_key_and_template_is_on_the_page() -> None:
    actions = [action for action in command.parser()._actions if action.help != argparse.SUPPRESS]
    general = {"help", "output_prefix", "workers", "if_missing", "append_eod", "tool_calls", "vocab_file", "merge_file"}
    options = {flag for action in actions if action.dest not in general for flag in action.option_strings}
    words = {*options, *BUILT_IN, *MESSAGES, *(key for pair in QUESTIONS for key in pair)}
    assert {word for word in words if not re.search(rf"`[^`]*{re.escape(word)}\b", PAGE)} == set()
