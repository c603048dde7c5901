"""Labels: by turns, by generation marks as in transformers and trl, and with templates that change earlier turns."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from neoxargs.data.chat.masks import Marked, marked
from neoxargs.data.chat.recipe import ChatRecipe
from neoxargs.data.chat.template import Template, TemplateError
from neoxargs.data.conversation import Conversation, Dropped
from neoxargs.data.encode import Recipe
from neoxargs.files.chat_templates import TemplateSource
from tests.support import chat
from tests.support.chat import CHATS, IGNORED, THINKING, tokenised, write_chats, write_folder

CALL = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"function": {"name": "add"}}]}
TOOLS = [
    {"role": "user", "content": "1 + 1?"},
    CALL,
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "Two."},
]


def trained(messages: list[dict[str, Any]], template: str = chat.TEMPLATES["chatml"], given: int = 0, **options: Any):
    """Return the trained texts and the notes."""
    found = _marked(messages, template, given, **options)
    return [found.text[start:end] for start, end in found.spans], +found.notes


def _marked(messages: list[dict[str, Any]], template: str, given: int = 0, **options: Any) -> Marked:
    compiled = Template(TemplateSource(template, "t.jinja"), {"eos_token": "</s>"}, datetime.now())
    return marked(Conversation(messages, given), compiled, ChatRecipe(Recipe("ByteLevelTokenizer"), **options))


class TestTurns:
    def test_the_assistant(self) -> None:
        assert trained(CHATS[1]) == (["日本<|im_end|>\n", "Poland 🇵🇱<|im_end|>\n"], {})

    def test_other_roles(self) -> None:
        """Without a generation prompt of their own, the headers of these turns are trained."""
        texts, notes = trained(CHATS[0], train_on=("user",))
        assert texts == ["<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n"] and notes == {}
        texts, notes = trained(CHATS[2], train_on=("user",))
        assert texts[1] == "<|im_start|>user\nThanks <|im_end|><|im_end|>\n" and notes == {"headers": 1}

    def test_several_roles(self) -> None:
        assert trained(CHATS[1], train_on=("user", "assistant"))[0] == [
            _marked(CHATS[1], chat.TEMPLATES["chatml"]).text.removeprefix(
                "<|im_start|>system\nAnswer in one word.<|im_end|>\n"
            )
        ]

    def test_only_the_last(self) -> None:
        assert trained(CHATS[1], only_last=True)[0] == ["Poland 🇵🇱<|im_end|>\n"]
        with pytest.raises(Dropped, match="no trained token"):
            trained(CHATS[2], only_last=True)

    def test_tool_calls(self) -> None:
        assert trained(TOOLS)[0] == ["Let me see.<|im_end|>\n", "Two.<|im_end|>\n"]
        assert trained(TOOLS, tool_calls=False)[0] == ["Two.<|im_end|>\n"]

    def test_everything(self) -> None:
        text = _marked(TOOLS, chat.TEMPLATES["chatml"]).text
        assert trained(TOOLS, masking="none")[0] == [text]

    def test_a_given_prompt(self) -> None:
        assert trained(CHATS[1], given=4)[0] == ["Poland 🇵🇱<|im_end|>\n"]
        assert trained(CHATS[1], chat.MARKED, given=4, masking="marks")[0] == ["Poland 🇵🇱<|im_end|>"]


class TestTemplatesThatChangeEarlierTurns:
    def test_the_boundary_is_found_by_the_content(self) -> None:
        assert trained(THINKING, chat.REASONING) == (
            ["4 <|im_end|>\n", "<think>\nAlso easy.\n</think>\n\n6<|im_end|>\n"],
            {"relocated": 1},
        )

    @pytest.mark.parametrize("content", [{"content": ""}, {"content": "\n"}, {}])
    @pytest.mark.parametrize("nested", [True, False])
    def test_the_boundary_after_a_call_without_content_is_found_by_its_function(
        self, content: dict[str, str], nested: bool
    ) -> None:
        """Qwen 3 writes empty reasoning before the last turn only, and most calls come without a text."""
        functions = [{"name": "add", "arguments": {"n": number}} for number in (1, 2)]
        calls = [{"type": "function", "function": call} for call in functions] if nested else functions
        messages = [TOOLS[0], {"role": "assistant", **content, "tool_calls": calls}, *TOOLS[2:]]
        template = (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
            "<think>\n\n</think>\n\n{% endif %}{{ m.content | default('') | trim }}{% for c in m.tool_calls or [] %}"
            "{% set c = c.function or c %}<call>{{ c.name }}({{ c.arguments | tojson }})</call>{% endfor %}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
        calls_written = '<call>add({"n": 1})</call><call>add({"n": 2})</call><|im_end|>\n'
        last = "<think>\n\n</think>\n\nTwo.<|im_end|>\n"
        assert trained(messages, template) == ([calls_written, last], {"relocated": 1})
        whole = template.replace("{{ c.name }}({{ c.arguments | tojson }})", "{{ c | tojson }}")
        assert trained(messages, whole)[0][0].count("<call>") == 2

    def test_the_last_turn_needs_no_such_boundary(self) -> None:
        last = ["<think>\nAlso easy.\n</think>\n\n6<|im_end|>\n"]
        assert trained(THINKING, chat.REASONING, only_last=True) == (last, {})

    def test_a_generation_prompt_that_is_not_how_a_turn_begins(self) -> None:
        template = chat.TEMPLATES["chatml"].replace("assistant\n{%", "assistant\n<think>\n{%")
        assert trained(CHATS[0], template) == (["<|im_start|>assistant\n4<|im_end|>\n"], {"headers": 1})

    def test_otherwise_they_are_refused(self) -> None:
        counting = "{{ messages | length }}{% for m in messages %}[{{ m.content | upper }}]{% endfor %}"
        sentence = (
            "the template renders message 1 differently if more messages follow, so it is unclear where the next "
        )
        sentence += "turn begins"
        with pytest.raises(TemplateError, match=sentence) as caught:
            trained([{"role": "user", "content": ""}, CHATS[0][1]], counting)
        assert "--only-last" in caught.value.advice and "{% generation %}" in caught.value.advice

    def test_an_order_that_hides_a_turn_is_refused(self) -> None:
        newest_first = "{% for m in messages | reverse %}[{{ m.content }}]{% endfor %}"
        with pytest.raises(TemplateError, match="message 3 does not follow the earlier messages"):
            trained(CHATS[1], newest_first)

    def test_an_empty_turn(self) -> None:
        silent = [CHATS[0][0], {"role": "assistant", "content": ""}, *CHATS[0]]
        skipping = "{% for m in messages if m.content %}[{{ m.content }}]{% endfor %}{{ '[' if add_generation_prompt }}"
        assert trained(silent, skipping)[0] == ["4]"]

    def test_a_template_that_refuses_the_beginning(self) -> None:
        """Only the boundaries of trained turns are rendered, so a chat may begin with what is refused alone."""
        template = (
            "{% if messages | length == 1 %}{{ raise_exception('no user') }}{% endif %}" + chat.TEMPLATES["chatml"]
        )
        assert trained(CHATS[1], template)[0] == ["日本<|im_end|>\n", "Poland 🇵🇱<|im_end|>\n"]
        with pytest.raises(TemplateError, match=r"\(the template reports: no user\)"):
            trained(CHATS[0], template)


@pytest.mark.parametrize("name", chat.TEMPLATES)
@pytest.mark.parametrize("train_on", [("assistant",), ("user",), ("user", "assistant"), ("system",)])
def test_one_rendering_gives_the_same_as_one_for_each_boundary(
    name: str, train_on: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(messages: list[dict[str, Any]]) -> Marked | str:
        try:
            return _marked(messages, chat.TEMPLATES[name], train_on=train_on)
        except (TemplateError, Dropped) as error:
            return str(error)

    conversations = [*CHATS, CHATS[1] * 3, [*CHATS[0], {"role": "assistant", "content": ""}, *CHATS[2]]]
    at_once = [found(messages) for messages in conversations]
    monkeypatch.setattr(Template, "turns", lambda *_: None)
    assert at_once == [found(messages) for messages in conversations]


def test_the_renderings_of_a_conversation_do_not_grow_with_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    render = Template.render

    def counting(self: Template, messages: list[dict[str, Any]], *rest: Any, **options: Any) -> str:
        sizes.append(len(messages))
        return render(self, messages, *rest, **options)

    monkeypatch.setattr(Template, "render", counting)
    for exchanges in (2, 50):
        conversation = CHATS[0] * exchanges
        sizes.clear()
        trained(conversation)
        probe, *rest = sizes  # the first one finds out what contents the template takes
        assert (probe, rest) == (1, [len(conversation), 1, 1])


class TestMarks:
    def test_what_is_inside(self) -> None:
        assert trained(CHATS[1], chat.MARKED, masking="marks")[0] == ["日本<|im_end|>", "Poland 🇵🇱<|im_end|>"]
        assert trained(CHATS[1], chat.MARKED, masking="marks", only_last=True)[0] == ["Poland 🇵🇱<|im_end|>"]

    def test_none(self) -> None:
        with pytest.raises(Dropped, match="no trained token"):
            trained(CHATS[0][:1], chat.MARKED, masking="marks")

    def test_a_template_that_reads_generated_text(self) -> None:
        template = "{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x | length }}"
        with pytest.raises(TemplateError, match="depends on the text inside its"):
            trained(CHATS[0], template, masking="marks")


@pytest.mark.parametrize("tokenizer", chat.BUILDERS)
def test_marks_are_those_of_transformers(tmp_path, tokenizer) -> None:
    hf = write_folder(tmp_path, tokenizer, chat.MARKED)
    source = write_chats(tmp_path / "c.jsonl")
    pairs = tokenised(tmp_path / "x", source, "--tokenizer-path", tmp_path, "--mask-by", "marks", "--no-append-eod")
    for (tokens, labels), messages in zip(pairs, CHATS, strict=True):
        reference = hf.apply_chat_template(messages, return_assistant_tokens_mask=True)
        assert tokens == reference["input_ids"]
        mask = [int(label != IGNORED) for label in labels]
        assert mask == reference["assistant_masks"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # trl's own
class TestTrl:
    """The data sets that trl's SFTTrainer trains on."""

    def labels(self, folder: Path, rows: list[dict[str, Any]], template: str, **options: Any):
        from datasets import Dataset
        from transformers import GPT2Config, GPT2LMHeadModel
        from trl import SFTConfig, SFTTrainer

        hf = write_folder(folder, "neox", template)
        hf.pad_token = "<s>"
        (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(hf), n_positions=8, n_embd=4, n_layer=1, n_head=1))
        settings = SFTConfig(
            output_dir=str(folder / "run"), report_to=[], use_cpu=True, bf16=False, max_length=None, **options
        )
        trainer = SFTTrainer(model, settings, train_dataset=Dataset.from_list(rows), processing_class=hf)
        return [(row["input_ids"], row["labels"]) for row in trainer.train_dataset]

    def ours(self, folder: Path, *words: str):
        return tokenised(folder / "x", folder / "c.jsonl", "--tokenizer-path", folder, *words)

    def test_assistant_only_loss(self, tmp_path) -> None:
        rows = [{"messages": messages} for messages in CHATS]
        expected = self.labels(tmp_path, rows, chat.MARKED, assistant_only_loss=True)
        assert self.ours(tmp_path, "--mask-by", "marks", "--no-append-eod") == expected

    def test_completion_only_loss_of_messages(self, tmp_path) -> None:
        rows = [{"prompt": messages[:-1], "completion": messages[-1:]} for messages in CHATS[:2]]
        expected = self.labels(tmp_path, rows, chat.TEMPLATES["headers"], completion_only_loss=True)
        assert self.ours(tmp_path, "--no-append-eod") == expected

    def test_completion_only_loss_of_text(self, tmp_path) -> None:
        rows = [{"prompt": "Q: 2 + 2?\nA:", "completion": " 4"}, {"prompt": "é", "completion": "\n"}]
        expected = self.labels(tmp_path, rows, chat.TEMPLATES["headers"], completion_only_loss=True)
        assert self.ours(tmp_path, "--chat-template", "text") == expected

    def test_everything(self, tmp_path) -> None:
        rows = [{"messages": messages} for messages in CHATS]
        expected = self.labels(tmp_path, rows, chat.TEMPLATES["headers"])
        assert self.ours(tmp_path, "--no-mask", "--no-append-eod") == expected
