"""Templates, special tokens and end tokens from a tokenizer's folder, as transformers writes and reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from neoxargs.base.problems import Problems
from neoxargs.data.chat.masks import Marked
from neoxargs.data.chat.tokens import ChatTokenizer
from neoxargs.data.encode import Recipe
from neoxargs.files import chat_templates
from neoxargs.files.token_files.index import IGNORED
from tests.support import chat
from tests.support.chat import CHATS, tokenised, write_chats, write_folder
from tests.support.refused import refused
from tests.support.snapshots import pinned


def settings(folder: Path) -> chat_templates.ChatSettings:
    return chat_templates.read("HFTokenizer", str(folder / "tokenizer.json"))


def chosen(folder: Path, requested: str | None = None) -> dict[str, str]:
    return {name: source.text for name, source in chat_templates.choose(settings(folder), requested).items()}


class TestTemplates:
    def test_as_transformers_writes_them(self, tmp_path) -> None:
        write_folder(tmp_path, "gpt2", "own")
        assert chosen(tmp_path) == {"default": "own"}
        assert settings(tmp_path).special == {"bos_token": "<s>", "eos_token": "<|endoftext|>"}

    def test_several_as_transformers_writes_them(self, tmp_path) -> None:
        named = {"default": "d", "tool_use": "t", "rag": "r"}
        hf = write_folder(tmp_path, "gpt2", [{"name": name, "template": text} for name, text in named.items()])
        assert (tmp_path / "additional_chat_templates").is_dir()
        assert chosen(tmp_path) == {"default": "d", "tool_use": "t"}
        assert chosen(tmp_path, "rag") == {"default": "r"} == {"default": hf.get_chat_template("rag")}

    @pytest.mark.parametrize("value", ["own", [{"name": "default", "template": "own"}, {"name": 3}, "x"]])
    def test_in_the_configuration(self, tmp_path, value) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
        assert chosen(tmp_path) == {"default": "own"}
        (tmp_path / "chat_template.jinja").write_text("file")
        assert chosen(tmp_path) == {"default": "file"}

    def test_a_file_and_a_built_in_name(self, tmp_path) -> None:
        (tmp_path / "t.jinja").write_text("file")
        assert chosen(tmp_path, str(tmp_path / "t.jinja")) == {"default": "file"}
        assert "<|im_start|>" in chosen(tmp_path, "chatml")["default"]

    def test_a_file_that_is_not_utf8(self, tmp_path) -> None:
        (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
        pinned(refused(settings, tmp_path))

    def test_a_conversation_with_tools(self, tmp_path) -> None:
        named = {"default": "{{ messages[1].content }}", "tool_use": "{{ tools | length }}{{ messages[1].content }}"}
        hf = write_folder(tmp_path, "gpt2", [{"name": name, "template": text} for name, text in named.items()])
        rows = [{"messages": CHATS[0]}, {"messages": CHATS[0], "tools": [{"type": "function"}]}]
        source = tmp_path / "c.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        pairs = tokenised(tmp_path / "x", source, "--tokenizer-path", tmp_path, "--no-mask")
        assert [hf.decode(tokens) for tokens, _ in pairs] == ["4<|endoftext|>", "14<|endoftext|>"]


class TestEndToken:
    @pytest.mark.parametrize("value, end", [("<s>", ["<s>"]), ({"content": "<|im_end|>"}, ["<|im_end|>"]), (None, [])])
    def test_it_is_the_one_that_the_folder_names(self, tmp_path, value, end) -> None:
        hf = write_folder(tmp_path, "neox", chat.TEMPLATES["chatml"])
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
        source = write_chats(tmp_path / "c.jsonl", chats=CHATS[:1])
        ((tokens, labels),) = tokenised(tmp_path / "x", source, "--tokenizer-path", tmp_path)
        expected = hf.apply_chat_template(CHATS[0], return_dict=False) + hf.convert_tokens_to_ids(end)
        assert tokens == expected and labels[-1] == tokens[-1]

    def test_it_is_unknown(self, tmp_path) -> None:
        write_folder(tmp_path, "neox", "x")
        (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
        recipe = Recipe("HFTokenizer", str(tmp_path / "tokenizer.json"))
        what = r"eos_token \(<end>\), set in the tokenizer's folder, is not in the tokenizer's vocabulary"
        with pytest.raises(Problems, match=what):
            ChatTokenizer(recipe, settings(tmp_path))

    def test_a_folder_without_configuration(self, tmp_path) -> None:
        """Templates can then still write the end token of the vocabulary."""
        Tokenizer.from_str(chat.tokenizer_json("gpt2")).save(str(tmp_path / "tokenizer.json"))
        tokenizer = ChatTokenizer(Recipe("HFTokenizer", str(tmp_path / "tokenizer.json")), settings(tmp_path))
        assert tokenizer.special == {"eos_token": "<|endoftext|>"}
        assert ChatTokenizer(Recipe("ByteLevelTokenizer"), settings(tmp_path / "absent")).special == {}


class TestLabels:
    """Character ranges to tokens."""

    def labels(self, text: str, spans: list[tuple[int, int]], name: str | None = None, folder: Path = Path()):
        recipe = Recipe("ByteLevelTokenizer")
        if name:
            Tokenizer.from_str(chat.tokenizer_json(name)).save(str(folder / "tokenizer.json"))
            recipe = Recipe("HFTokenizer", str(folder / "tokenizer.json"))
        (found,) = ChatTokenizer(recipe, chat_templates.ChatSettings()).label([Marked(text, spans)], append_end=False)
        assert len(found.ids) == len(found.labels)
        assert all(label in (token, IGNORED) for token, label in zip(found.ids, found.labels, strict=True))
        return found

    def test_bytes(self) -> None:
        found = self.labels("aé日x", [(1, 2), (3, 4)])
        assert found.labels.tolist() == [IGNORED, 0xC3, 0xA9, IGNORED, IGNORED, IGNORED, ord("x")]
        assert found.trained_spans() == [(1, 2), (3, 4)] and not found.crossing and found.end == 4

    def test_all_tokens_of_a_character(self, tmp_path) -> None:
        found = self.labels("a日b", [(1, 2)], "gpt2", tmp_path)
        assert found.trained_spans() == [(1, 2)] and (found.labels != IGNORED).sum() >= 2

    def test_a_token_that_a_boundary_runs_through(self, tmp_path) -> None:
        for spans in ([(1, 4)], [(0, 2)]):
            found = self.labels("self", spans, "gpt2", tmp_path)
            assert found.crossing and found.trained_spans() == [(0, 4)] and len(found.ids) == 1

    def test_the_space_before_a_word_belongs_to_it(self, tmp_path) -> None:
        """With the offsets of GPT-NeoX-20B's tokenizer, which leave it out."""
        found = self.labels("x self", [(1, 6)], "neox", tmp_path)
        assert found.trained_spans() == [(1, 6)] and not found.crossing
        assert self.labels("x self", [(2, 6)], "neox", tmp_path).crossing

    def test_nothing(self) -> None:
        assert not self.labels("", []).has_loss and self.labels("", []).end == 0
