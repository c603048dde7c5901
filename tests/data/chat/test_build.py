"""Files of conversations: equal to GPT-NeoX's rule, independent of the number of workers, and never partial."""

import gzip
import json
from dataclasses import replace
from random import Random

import pytest
import zstandard

from neoxargs.base.problems import Problems
from neoxargs.data import parallel
from neoxargs.data.chat import build, command
from neoxargs.data.chat.recipe import ChatRecipe
from neoxargs.data.encode import Recipe
from neoxargs.files.token_files import rewards
from tests.support import chat
from tests.support.chat import CHATS, IGNORED, read_pair, tokenised, write_chats, write_folder
from tests.support.refused import refused
from tests.support.snapshots import pinned

BYTES = ChatRecipe(Recipe("ByteLevelTokenizer"), chat_template="chatml")


def run(*words: object) -> None:
    assert command.main(["--chat", *map(str, words)]) == 0


#: All tokenizers with all templates; plain `pytest` runs each of them once or twice.
COMBINATIONS = [
    pytest.param(tokenizer, template, marks=() if tokenizer == "neox" or template == "headers" else pytest.mark.slow)
    for tokenizer in chat.BUILDERS
    for template in chat.TEMPLATES
    if (tokenizer, template) != ("metaspace", "plain")  # GPT-NeoX loses tokens here: see test_no_token_is_lost
]


@pytest.mark.parametrize("tokenizer, template", COMBINATIONS)
def test_files_are_those_of_gpt_neox(tmp_path, tokenizer, template) -> None:
    hf = write_folder(tmp_path, tokenizer, chat.TEMPLATES[template])
    source = write_chats(tmp_path / "chats.jsonl")
    words = ("--tokenizer-path", tmp_path)
    pairs = tokenised(tmp_path / "all", "--input", source, *words, "--jsonl-keys", "conversation")
    assert pairs == [chat.neox_labels(messages, hf) for messages in CHATS]
    pairs = tokenised(tmp_path / "last", source, *words, "--only-last")
    answered = [messages for messages in CHATS if messages[-1]["role"] == "assistant"]
    assert pairs == [chat.neox_labels(messages, hf, only_last=True) for messages in answered]
    pairs = tokenised(tmp_path / "rm", source, *words, "--for-rm")
    assert pairs == [chat.neox_reward_labels(messages, hf) for messages in CHATS]
    pairs = tokenised(tmp_path / "user", source, *words, "--generation-role", "user")
    for (tokens, labels), messages in zip(pairs, CHATS, strict=True):
        assert tokens == [*hf.apply_chat_template(messages, return_dict=False), hf.eos_token_id]
        assert {label for label in labels if label != IGNORED} and (labels[-1] == IGNORED) == (len(messages) != 3)


PIECES = [
    "hello",
    " ",
    "\n",
    "  ",
    "é",
    "日本",
    "🙂",
    "self.",
    "<|im_end|>",
    "[INST]",
    "\t",
    "!?",
    "12",
    "'s",
    "<",
    "|",
    "\n\n",
    " the",
]


def random_chat(random: Random) -> list[dict[str, str]]:
    roles = ["system"] * (random.random() < 0.3) + ["user", "assistant"] * random.randint(1, 3)
    return [{"role": role, "content": "".join(random.choices(PIECES, k=random.randint(1, 6)))} for role in roles]


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", chat.BUILDERS)
@pytest.mark.parametrize("template", chat.TEMPLATES)
def test_random_conversations(tmp_path, tokenizer, template) -> None:
    """Equal to GPT-NeoX's rule wherever that keeps the tokens of the whole text."""
    hf = write_folder(tmp_path, tokenizer, chat.TEMPLATES[template])
    random = Random(0)
    chats = [random_chat(random) for _ in range(40)]
    pairs = tokenised(tmp_path / "x", write_chats(tmp_path / "c.jsonl", chats=chats), "--tokenizer-path", tmp_path)
    same = 0
    for messages, pair in zip(chats, pairs, strict=True):
        whole = [*hf.apply_chat_template(messages, return_dict=False), hf.eos_token_id]
        expected = chat.neox_labels(messages, hf)
        assert pair[0] == whole
        same += pair == expected
        assert pair == expected or expected[0] != whole
    assert same > 30 or template == "plain"


def test_no_token_is_lost(tmp_path) -> None:
    """Where a token spans two turns, GPT-NeoX drops part of the text; here, the tokens are those of the whole text."""
    hf = write_folder(tmp_path, "metaspace", chat.TEMPLATES["plain"])
    pairs = tokenised(tmp_path / "x", write_chats(tmp_path / "c.jsonl"), "--tokenizer-path", tmp_path)
    for (tokens, labels), messages in zip(pairs, CHATS, strict=True):
        whole = hf.apply_chat_template(messages, return_dict=False)
        assert tokens == [*whole, hf.eos_token_id] and chat.neox_labels(messages, hf)[0] != tokens
        trained = "".join(hf.convert_ids_to_tokens([label for label in labels if label != IGNORED])).replace("▁", " ")
        answers = [m["content"].strip() for m in messages if m["role"] == "assistant" and m["content"].isascii()]
        assert all(answer in trained for answer in answers)


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.jsonl.zst", "folder", "*.jsonl"])
def test_every_source_and_number_of_workers(tmp_path, monkeypatch, name) -> None:
    content = write_chats(tmp_path / "c.jsonl", chats=CHATS * 4).read_bytes()
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(content))
    (tmp_path / "folder" / "deeper").mkdir(parents=True)
    (tmp_path / "folder" / "deeper" / "c.jsonl").write_bytes(content)
    (tmp_path / "folder" / "README.md").write_text("not a conversation")
    monkeypatch.setattr(parallel, "CHUNK_DOCUMENTS", 5)
    workers = 2 if name == "c.jsonl.gz" else 1
    one, _ = build.build([str(tmp_path / name)], BYTES, tmp_path / "out" / "x", workers)
    pairs = read_pair(tmp_path / "out" / "x")
    assert len(pairs) == one.conversations == 12 and pairs[:3] == pairs[3:6] == pairs[9:]
    assert one.tokens == sum(len(tokens) for tokens, _ in pairs)
    assert one.trained_tokens == sum(label != IGNORED for _, labels in pairs for label in labels)
    assert one.longest == max(len(tokens) for tokens, _ in pairs)


class TestUpToDate:
    def test_files_are_written_again_if_anything_changed(self, tmp_path, capsys) -> None:
        write_folder(tmp_path, "gpt2", chat.TEMPLATES["chatml"])
        source = write_chats(tmp_path / "c.jsonl")
        words = [source, "--tokenizer-path", tmp_path, "--output-prefix", tmp_path / "x", "--if-missing"]

        def written(*more: str) -> bool:
            capsys.readouterr()
            run(*words, *more)
            return "up to date" not in capsys.readouterr().out

        assert written() and not written()
        assert written("--only-last") and written()
        (tmp_path / "chat_template.jinja").write_text(chat.TEMPLATES["plain"])
        assert written() and not written()
        write_chats(source, chats=CHATS[:2])
        assert written() and not written()
        (tmp_path / "x_label.idx").unlink()
        assert written()


class TestNothingIsHalfWritten:
    def test_problems(self, tmp_path, monkeypatch) -> None:
        (tmp_path / "c.jsonl").write_text('{"messages": []}\n' * 50 + "{\n" * 30)
        problems = refused(build.build, [str(tmp_path / "c.jsonl")], BYTES, tmp_path / "out" / "x")
        assert [problem.where.line for problem in problems] == [51, 52, 53]
        assert problems[-1].what.endswith(" (and 27 more lines)")
        assert list((tmp_path / "out").iterdir()) == []
        monkeypatch.setattr(parallel, "CHUNK_DOCUMENTS", 5)
        with pytest.raises(Problems, match=r"\(and at least 17 more lines\)"):
            build.build([str(tmp_path / "c.jsonl")], BYTES, tmp_path / "out" / "x")

    def test_different_problems(self, tmp_path) -> None:
        rows = [{"messages": [{"role": chr(97 + number)}]} for number in range(25)]
        (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert len(refused(build.build, [str(tmp_path / "c.jsonl")], BYTES, tmp_path / "x")) == build.MAX_PROBLEMS

    def test_the_same_problem_in_many_lines(self, tmp_path) -> None:
        rows = [{"messages": [CHATS[0][0]] * number + [{"role": "assistant"}]} for number in range(5)]
        (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(Problems) as caught:
            build.build([str(tmp_path / "c.jsonl")], BYTES, tmp_path / "x")
        pinned(caught.value.problems)
        (tmp_path / "refusing.jinja").write_text("{{ raise_exception('no!') }}")
        recipe = replace(BYTES, chat_template=str(tmp_path / "refusing.jinja"))
        with pytest.raises(Problems, match=r"the template reports: no! \(and 9 more lines\)") as caught:
            build.build([str(write_chats(tmp_path / "c.jsonl", chats=CHATS * 4))], recipe, tmp_path / "x")
        assert len(caught.value.problems) == 3

    def test_ctrl_c(self, tmp_path, monkeypatch, capsys) -> None:
        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(build, "write_json", interrupt)
        monkeypatch.setattr("neoxargs.data.chat.worker.Encoder.encode", interrupt)
        source = write_chats(tmp_path / "c.jsonl")
        words = ["--tokenizer-type", "ByteLevelTokenizer", "--chat-template", "text"]
        assert command.main([str(source), *words, "--output-prefix", str(tmp_path / "out" / "x")]) == 130
        assert not (tmp_path / "out").exists()

    def test_nothing_left(self, tmp_path) -> None:
        source = write_chats(tmp_path / "c.jsonl", chats=[CHATS[0][:1], []])
        with pytest.raises(Problems, match="every conversation was dropped; no trained token: 1 ") as caught:
            build.build([str(source)], BYTES, tmp_path / "x")
        assert f"empty: 1 (first: {source}:2)" in str(caught.value) and "--train-on" in str(caught.value)


def test_roles_and_empty_answers(tmp_path, capsys) -> None:
    asked, empty = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": ""}
    answered, misspelt = {"role": "assistant", "content": "So."}, {"role": "asistant", "content": "So."}
    chats = [[asked, answered], [asked, empty, asked, answered, asked, {**empty, "content": None}],
             [asked, empty], [asked, answered, asked, misspelt],
             [asked, {**empty, "tool_calls": [{"function": {"name": "f"}}]}], [asked, {**empty, "reasoning": "Hm."}],
             [{**asked, "content": ""}, answered]]  # fmt: skip
    source = write_chats(tmp_path / "c.jsonl", chats=chats)
    run(
        source, "--tokenizer-type", "ByteLevelTokenizer", "--chat-template", "chatml", "--output-prefix", tmp_path / "x"
    )
    summary = json.loads((tmp_path / "x.json").read_text())
    assert summary["roles"] == {"user": 10, "assistant": 9, "asistant": 1}
    assert summary["empty_answers"] == {"conversations": 1, "first": f"{source}:2"}
    assert summary["dropped"] == {"empty answer": {"conversations": 1, "first": f"{source}:3"}}
    assert summary["conversations"] == 6
    shown = capsys.readouterr().out
    assert "\nroles          user 10, assistant 9, asistant 1\n" in shown
    assert f"\nempty answers  1 (first: {source}:2)\n" in shown


def test_the_most_frequent_roles_are_printed(tmp_path, capsys) -> None:
    names = [f"role{number}" for number in range(14)]
    messages = [{"role": name, "content": "x"} for name in (*names, "assistant", "assistant")]
    source = write_chats(tmp_path / "c.jsonl", chats=[messages])
    run(source, "--tokenizer-type", "ByteLevelTokenizer", "--chat-template", "text", "--output-prefix", tmp_path / "x")
    shown = ", ".join(["assistant 2", *(f"{name} 1" for name in names[:11])])
    assert f"\nroles          {shown} and 3 more\n" in capsys.readouterr().out


def test_counts_do_not_depend_on_the_number_of_workers(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(parallel, "CHUNK_DOCUMENTS", 2)
    empty = [{"role": "assistant", "content": ""}, {"role": "user", "content": ""}, CHATS[0][1]]
    rows = [*({"conversations": messages} for messages in [CHATS[0], empty] * 4),
            *({"conversations": [{"from": name, "value": "x"}]} for name in ("moon", "sun", "moon"))]  # fmt: skip
    source = tmp_path / "c.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, two = (build.build([str(source)], BYTES, tmp_path / "x", workers)[0] for workers in (1, 2))
    assert one == two
    assert one.roles == {"assistant": 12, "user": 8} and one.unknown_roles == {"moon": 2, "sun": 1}
    assert one.empty_answers == {"conversations": 4, "first": f"{source}:2"}
    assert one.dropped["unknown role"] == {"conversations": 3, "first": f"{source}:9"}


def test_long_conversations(tmp_path) -> None:
    source = write_chats(tmp_path / "c.jsonl", chats=CHATS[:2])
    words = [source, "--tokenizer-type", "ByteLevelTokenizer", "--chat-template", "chatml", "--max-length"]
    whole = tokenised(tmp_path / "keep", *words, 100)
    short, long = (len(tokens) for tokens, _ in whole)
    assert short <= 100 and long > 150
    assert tokenised(tmp_path / "drop", *words, 100, "--overlong", "drop") == whole[:1]
    cut = tokenised(tmp_path / "cut", *words, 150, "--overlong", "cut")
    assert cut == [tuple(values[:150] for values in pair) for pair in whole]
    gone = tokenised(tmp_path / "gone", *words, 100, "--overlong", "cut")
    assert gone == whole[:1], "of the second, only untrained tokens would be left"
    summary = json.loads((tmp_path / "gone.json").read_text())
    assert summary["dropped"] == {"answer cut off": {"conversations": 1, "first": f"{source}:2"}}
    assert (summary["longer_than_max"], summary["longest"]) == (1, long)


def test_rewards_are_written_as_numbers_of_the_conversations_that_are_kept(tmp_path) -> None:
    """Not as integers, and not those of conversations that are left out."""
    stars = [0.75, -0.5, 2]
    kept = [{"messages": CHATS[0], "stars": reward} for reward in stars]
    left_out = {"messages": [{"role": "user", "content": "Nobody answers."}], "stars": 9}
    source = tmp_path / "rated.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in [kept[0], left_out, *kept[1:]]))
    words = source, "--tokenizer-type", "ByteLevelTokenizer", "--chat-template", "chatml", "--reward-key", "stars"
    run(*words, "--output-prefix", tmp_path / "a", "--workers", 1)
    run(*words, "--output-prefix", tmp_path / "b", "--workers", 2)
    assert rewards.read(str(tmp_path / "a_reward"), 3).tolist() == stars
    for ending in ("bin", "idx"):
        files = [tmp_path / f"{name}_reward.{ending}" for name in "ab"]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert build.up_to_date([str(source)], replace(BYTES, reward_key="stars"), tmp_path / "a")
    (tmp_path / "a_reward.idx").unlink()
    assert not build.up_to_date([str(source)], replace(BYTES, reward_key="stars"), tmp_path / "a")
