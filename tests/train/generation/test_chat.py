"""`generate.py --chat`: the prompts of transformers, the history, the end of a turn, and complete runs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from neoxargs.data.encode import Recipe
from neoxargs.files.builtin_chat_templates import BUILT_IN
from neoxargs.train.generation.chat import Conversation, chat
from neoxargs.train.generation.generator import Sample
from tests.support.chat import write_folder
from tests.support.paths import ROOT
from tests.support.refused import refused
from tests.support.sampling import Letters, one_process
from tests.support.snapshots import pinned

TURNS = [("user", "hello there"), ("assistant", "General."), ("user", "again?")]


@pytest.mark.parametrize("name", ["gpt2", "neox", "llama3", "metaspace"])
def test_the_prompt_has_the_tokens_of_apply_chat_template(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path, name, "{{ bos_token }}" + BUILT_IN["chatml"])
    ours = Conversation(Recipe("HFTokenizer", str(tmp_path / "tokenizer.json")), None)
    for role, text in TURNS:
        ours.add(role, text)
    expected = theirs.apply_chat_template(ours.messages, add_generation_prompt=True, return_dict=False)
    assert ours.prompt() == expected
    end = theirs.convert_tokens_to_ids("<|im_end|>")
    assert ours.end_of_turn() == (end if theirs.tokenize("<|im_end|>") == ["<|im_end|>"] else None)


def test_a_template_may_be_named(tmp_path: Path) -> None:
    conversation = Conversation(Recipe("ByteLevelTokenizer"), "headings")
    conversation.add("user", "Hi.")
    assert bytes(conversation.prompt()).decode() == "### User\nHi.\n\n### Assistant\n"
    assert conversation.end_of_turn() is None


def test_a_model_without_a_template_is_a_problem() -> None:
    pinned(refused(lambda: Conversation(Recipe("ByteLevelTokenizer"), None)))


class Ascii(Letters):
    """Tokens of printed characters in place of letters, so that any answer is text."""

    def detokenize(self, ids: object) -> str:
        return "".join(chr(ord("!") + i % 64) for i in ids)  # type: ignore[attr-defined]


class Spelled(Conversation):
    """A conversation in letters, for a model of 64 tokens."""

    def __init__(self) -> None:
        super().__init__(Recipe("ByteLevelTokenizer"), "headings")
        self.asked: list[list[dict[str, str]]] = []

    def prompt(self) -> list[int]:
        self.asked.append([dict(message) for message in self.messages])
        return [byte % 60 for byte in super().prompt()][-6:]

    def end_of_turn(self) -> int | None:
        return 17


def test_lines_are_answered_with_the_history_until_reset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n/reset\nthree"))
    generator, conversation = one_process(Ascii(), maximum_tokens=5), Spelled()
    shown: list[str] = []
    finish = generator.finish

    def streamed(samples: list[Sample], added: object) -> None:
        finish(samples, lambda sample: (shown.append(capsys.readouterr().out), added(sample)))  # type: ignore[operator]

    monkeypatch.setattr(generator, "finish", streamed)
    chat(generator, conversation, True)
    asked = [[message["content"] for message in each] for each in conversation.asked]
    [one], [one_again, answer, two], [three] = asked
    assert (one, one_again, two, three) == ("one", "one", "two", "three")
    printed = "".join(shown) + capsys.readouterr().out
    assert printed.count("\n") == 3 and printed.startswith(f"{answer}\n") and len(answer) == 5
    assert sum(map(bool, shown)) > 6, "each token is printed before the next"


def test_the_token_that_ends_a_turn_ends_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for ends in (False, True):
        monkeypatch.setattr("sys.stdin", io.StringIO("one\n"))
        generator, conversation = one_process(Ascii(), maximum_tokens=5), Spelled()
        if ends:
            second = ord(answers[0][1]) - ord("!")
            assert answers[0][1] != answers[0][0]
            monkeypatch.setattr(conversation, "end_of_turn", lambda token=second: token)
        chat(generator, conversation, True)
        answers.append(conversation.messages[-1]["content"])
    assert answers[1] == answers[0][:1]


#: What a model of 2 layers learns by heart.
LEARNED = """\
dialect: neox-2026
num_layers: 2
hidden_size: 64
num_attention_heads: 4
seq_length: 64
max_position_embeddings: 64
tokenizer_type: ByteLevelTokenizer
train_data_paths: [tokens]
train_label_data_paths: [tokens_label]
valid_data_paths: [tokens]
valid_label_data_paths: [tokens_label]
test_data_paths: [tokens]
test_label_data_paths: [tokens_label]
pack_impl: unpacked
train_micro_batch_size_per_gpu: 8
train_iters: 100
optimizer: {type: Adam, params: {lr: 3.0e-3}}
lr_decay_style: constant
eval_iters: 0
num_workers: 0
save: run
checkpoint_factor: 100
chat_template: headings
"""


@pytest.mark.slow
def test_a_model_that_was_trained_on_conversations_answers_as_in_them(tmp_path: Path) -> None:
    """The prompt has the form of the training data, and the end of the document ends the answer."""
    answers = {"Colour?": "It is red.", "Number?": "Seven."}
    lines = [
        json.dumps({"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]})
        for ask, answer in answers.items()
    ]
    (tmp_path / "chats.jsonl").write_text("".join(f"{line}\n" for line in lines * 50))
    (tmp_path / "my.yml").write_text(LEARNED)
    template = ["--tokenizer-type", "ByteLevelTokenizer", "--chat-template", "headings"]

    def deepy(*words: str, given: str = "") -> str:
        command = [sys.executable, str(ROOT / "deepy.py"), *words]
        done = subprocess.run(command, cwd=tmp_path, input=given, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    deepy("data", "--chat", "chats.jsonl", "--output-prefix", "tokens", *template)
    deepy("train.py", "my.yml")
    said = deepy("generate.py", "my.yml", "--chat", given="Number?\n/reset\nColour?\n/reset\nNumber?\n")
    assert [line for line in said.splitlines() if line] == ["Seven.", "It is red.", "Seven."]
