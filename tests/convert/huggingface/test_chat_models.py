"""A chat model comes in, is trained and goes out again: its tokenizer, chat template and token ids stay the same.

The folders have the tokens, files and settings of published models, with small vocabularies and random weights.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from neoxargs.checks.data.files import missing_files
from neoxargs.convert.huggingface import exporting, importing
from neoxargs.data import command as data_command
from neoxargs.data.encode import Recipe
from neoxargs.data.tokenizer import build_tokenizer
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.token_files import index
from neoxargs.registry.data import Tokenizer as Options
from neoxargs.resolve import resolve
from neoxargs.train.generation.generator import Generator
from neoxargs.train.process.mesh import Mesh
from tests.support.chat import CHATS, TEMPLATES, tokenised, write_chats
from tests.support.frozen_runs import trained
from tests.support.ranks import run_ranks
from tests.support.refused import refused
from tests.support.snapshots import pinned

TURNS = TEMPLATES["chatml"]


class Published(NamedTuple):
    """What distinguishes the folder of a published chat model.

    tokens: the special tokens, which follow the 256 bytes. special: the tokenizer's, by name. ids: in config.json.
    generation: the contents of generation_config.json; None if the model has no such file. ends: the token ids at which
    a generation stops.
    """

    architecture: str
    tokens: list[str]
    special: dict[str, str | None]
    ids: dict[str, Any]
    generation: dict[str, Any] | None
    ends: set[int]
    template: str = TURNS
    begins: str = ""
    """The token that the tokenizer puts before a text."""


QWEN = Published(
    "Qwen2",
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"],
    {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    {"bos_token_id": 256, "eos_token_id": 258},
    {
        "bos_token_id": 256, "do_sample": True, "eos_token_id": [258, 256], "pad_token_id": 256,
        "repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "transformers_version": "4.37.0",
    },
    {256, 258},
)  # fmt: skip
LLAMA = Published(
    "Llama",
    ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"],
    {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    {"bos_token_id": 256, "eos_token_id": [257, 260, 261]},
    {"bos_token_id": 256, "do_sample": True, "eos_token_id": [257, 260, 261], "temperature": 0.6, "top_p": 0.9},
    {257, 260, 261},
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "<|begin_of_text|>",
)
GEMMA = Published(
    "Llama",
    ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"],
    {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
    {"bos_token_id": 258, "eos_token_id": 257, "pad_token_id": 256},
    {"bos_token_id": 258, "eos_token_id": [257, 260], "pad_token_id": 256},  # the second one only here
    {257, 260},
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}",
    "<bos>",
)
PHI = Published(
    "Llama",
    ["<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"],
    {"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": None},
    {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 258},
    {"bos_token_id": 256, "eos_token_id": [258, 259, 261], "pad_token_id": 258},
    {258, 259, 261},
)
MISTRAL = Published(  # as of 2023: without generation settings
    "Mistral",
    ["<unk>", "<s>", "</s>"],
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    {"bos_token_id": 257, "eos_token_id": 258},
    None,
    {258},
    TEMPLATES["instructions"],
    "<s>",
)
MODELS = {"qwen": QWEN, "llama": LLAMA, "gemma": GEMMA, "phi": PHI, "mistral": MISTRAL}
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": False,
}  # fmt: skip


def tokenizer_of(published: Published) -> Tokenizer:
    """Bytes and special tokens, in the form of published tokenizers."""
    inner = Tokenizer(models.BPE({character: n for n, character in enumerate(alphabet())}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True) for token in published.tokens])
    if published.begins:
        pairs = [(published.begins, inner.token_to_id(published.begins))]
        inner.post_processor = processors.TemplateProcessing(single=f"{published.begins} $A", special_tokens=pairs)
    return inner


def alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write_model(folder: Path, published: Published) -> Path:
    """Write a folder as it is published, with JSON as no program lays it out, to notice one that writes it anew."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    kind, rows = published.architecture, 256 + len(published.tokens)
    config = getattr(transformers, f"{kind}Config")(**SIZES, vocab_size=rows)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text())
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        described.pop(name, None)
    (folder / "config.json").write_text(json.dumps(described | published.ids, indent=1))
    (folder / "generation_config.json").unlink()
    if published.generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(published.generation, indent=7))
    tokenizer_of(published).save(str(folder / "tokenizer.json"), pretty=False)
    added = {str(256 + n): {"content": token, "special": True} for n, token in enumerate(published.tokens)}
    settings = {
        "added_tokens_decoder": added, "model_max_length": 32768, "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False, **published.special,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=3))
    (folder / "chat_template.jinja").write_text(published.template)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    tokens = {name: {"content": text, "lstrip": False} for name, text in published.special.items() if text}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens, indent=5))
    (folder / "added_tokens.json").write_text(json.dumps({"<tool_call>": 259}))
    (folder / "tokenizer.model").write_bytes(b"beside tokenizer.json, which is read")
    (folder / "README.md").write_text("not a file of the tokenizer")
    return folder


def travelling(folder: Path) -> dict[str, bytes]:
    """The files of a folder that must not change."""
    weights = ("config.json", "files.json", "model.yml", "latest", "README.md")
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in (*folder.iterdir(), *folder.glob("additional_chat_templates/*"))
        if file.is_file() and file.name not in weights and "safetensors" not in file.name
    }


def imported(folder: Path, name: str) -> Path:
    """Import a model into `ours` beside it; return the YAML file."""
    write_model(folder / "theirs", MODELS[name])
    assert importing.main([str(folder / "theirs"), "--to", str(folder / "ours")]) == 0
    return folder / "ours" / "model.yml"


def exported(file: Path, folder: Path, *more: str) -> Path:
    words = [word for change in more for word in ("--set", change)]
    assert exporting.main([str(file), "--to", str(folder), "--gpus", "1", *words]) == 0
    return folder


def same_as_source(folder: Path, source: Path) -> None:
    assert travelling(folder) == travelling(source)
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (folder, source))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert ours.get(name, "no key") == theirs.get(name, "no key"), name


@pytest.mark.parametrize("name", MODELS)
def test_files_and_token_ids_come_out_as_they_went_in(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = imported(tmp_path, name)
    out, source = exported(file, tmp_path / "out"), tmp_path / "theirs"
    same_as_source(out, source)
    # The imported folder has the tokenizer too, for programs and people that use it without an export.
    assert travelling(file.parent) == travelling(source)
    ours, theirs = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (out, source))
    assert ours.apply_chat_template(CHATS[1], tokenize=False) == theirs.apply_chat_template(CHATS[1], tokenize=False)
    assert ours("a <|im_end|> b").input_ids == theirs("a <|im_end|> b").input_ids
    assert ours.special_tokens_map == theirs.special_tokens_map
    settings = [transformers.GenerationConfig.from_model_config, transformers.AutoModelForCausalLM.from_pretrained]
    ends = [settings[1](folder).generation_config.to_dict() for folder in (out, source)]
    assert ends[0] == ends[1] or MODELS[name].generation is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen", "llama"])
def test_they_are_the_same_after_training(name: str, tmp_path: Path) -> None:
    """Also from the checkpoint's own copy, if the imported folder is gone."""
    file = imported(tmp_path, name)
    source, tuned = tmp_path / "theirs", tmp_path / "tuned"
    text = tmp_path / "text.txt"
    text.write_text("words to learn " * 400)
    recipe = Recipe("HFTokenizer", str(file.with_name("tokenizer.json")))
    data_command.build([str(text)], recipe, tmp_path / "data")
    changes = [
        f"save={tuned}", f"run_dir={tuned}", f"data_path={tmp_path / 'data'}", "train_iters=2", "checkpoint_factor=2",
        "seq_length=16", "precision=fp32", "num_workers=0", "eval_interval=1000", "split=100,0,0",
    ]  # fmt: skip
    run_ranks(trained, 1, [resolve([file], changes, gpus=1)])
    same_as_source(exported(file, tmp_path / "out", f"load={tuned}"), source)
    copy = tuned / "global_step2" / checkpoint_folder.TOKENIZER
    assert travelling(copy) == travelling(source) and (copy / "config.json").exists()
    assert not checkpoint_folder.verify(tuned / "global_step2")
    shutil.rmtree(file.parent / "global_step0")
    for path in travelling(source):
        (file.parent / path).unlink()
    again = exported(file, tmp_path / "again", f"load={tuned}", f"vocab_file={copy / 'tokenizer.json'}")
    same_as_source(again, source)


@pytest.mark.parametrize("name", MODELS)
def test_one_token_ends_a_document_in_data_training_and_generation(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = MODELS[name]
    folder = write_model(tmp_path / "theirs", published)
    end = tokenizer_of(published).token_to_id(published.special["eos_token"])
    vocabulary = str(folder / "tokenizer.json")
    tokenizer = build_tokenizer(Options(tokenizer_type="HFTokenizer", vocab_file=vocabulary))
    assert tokenizer.eod == end
    (tmp_path / "text.txt").write_text("some words")
    data_command.build([str(tmp_path / "text.txt")], Recipe("HFTokenizer", vocabulary), tmp_path / "data")
    assert index.read(str(tmp_path / "data")).ids[-1] == end
    chats = write_chats(tmp_path / "c.jsonl", chats=CHATS[:1])
    ((tokens, _),) = tokenised(tmp_path / "chat", chats, "--tokenizer-path", folder)
    assert tokens[-1] == end
    # Templates that write the end token, too, perhaps before a line feed.
    twice = name in ("qwen", "llama", "mistral")
    assert ("the end token appears twice" in capsys.readouterr().out) == twice
    assert {tokenizer.eod, *tokenizer.ends} == published.ends


class Says(torch.nn.Module):
    """A model that says given tokens, whatever it reads."""

    def __init__(self, tokens: list[int], start: int, rows: int) -> None:
        super().__init__()
        self.tokens, self.start, self.rows = tokens, start, rows

    def logits(self, tokens: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        said = [self.tokens[min(int(position) + 1 - self.start, len(self.tokens) - 1)] for position in last]
        return torch.nn.functional.one_hot(torch.tensor(said), self.rows).float()


@pytest.mark.parametrize("name", MODELS)
def test_a_generation_stops_at_each_end(name: str, tmp_path: Path) -> None:
    published = MODELS[name]
    folder = write_model(tmp_path / "theirs", published)
    tokenizer = build_tokenizer(Options(tokenizer_type="HFTokenizer", vocab_file=str(folder / "tokenizer.json")))
    config = resolve([imported_config(tmp_path)], ["maximum_tokens=9", "recompute=true"], gpus=1)
    prompt = len(tokenizer.tokenize("ab"))
    for end in range(256, 256 + len(published.tokens)):
        says = Says([7, 8, end, 9], prompt, tokenizer.vocab_size)
        says.module, says.device, says.documents = says, torch.device("cpu"), True  # type: ignore[assignment]
        generator = Generator(says, tokenizer, config.generation, 32, Mesh(), seed=1)  # type: ignore[arg-type]
        sample = generator.sample("ab")
        generator.finish([sample])
        assert sample.finished == (end in published.ends), end
        assert (sample.ids == [7, 8]) == (end in published.ends), end


def test_without_its_description_a_vocabulary_is_searched_and_then_the_ids_are_read(tmp_path: Path) -> None:
    options = Options(tokenizer_type="HFTokenizer", vocab_file=str(tmp_path / "tokenizer.json"))
    for tokens, end in ((["<|im_start|>", "<|im_end|>", "</s>"], 258), (["<|im_start|>", "<|im_end|>"], 257)):
        tokenizer_of(QWEN._replace(tokens=tokens)).save(options.vocab_file)
        assert build_tokenizer(options).eod == end
    tokenizer_of(QWEN._replace(tokens=["<begin>", "<stop>"])).save(options.vocab_file)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [257, 9]}')
    assert (build_tokenizer(options).eod, build_tokenizer(options).ends) == (257, {9})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": null}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 256}')
    assert (build_tokenizer(options).eod, build_tokenizer(options).ends) == (256, set())
    (tmp_path / "config.json").write_text("// of another program")
    tokenizer_of(QWEN).save(options.vocab_file)
    assert build_tokenizer(options).eod == 256
    (tmp_path / "generation_config.json").write_text("[" * 100_000)
    pinned(refused(build_tokenizer, options))


def test_check_reports_an_end_that_the_vocabulary_does_not_have(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "theirs", QWEN._replace(special={"eos_token": "<end>"}))
    changes = ["tokenizer_type=HFTokenizer", f"vocab_file={folder / 'tokenizer.json'}", f"data_path={tmp_path}"]
    config = resolve([imported_config(tmp_path)], changes, gpus=1)
    what = "eos_token (<end>), set in the tokenizer's folder, is not in the tokenizer's vocabulary"
    assert what in [problem.what for problem in missing_files(config)]
    pinned(refused(build_tokenizer, config.tokenizer))


def test_check_reports_token_files_with_documents_that_end_otherwise(tmp_path: Path) -> None:
    """Those of the base model, whose vocabulary is the same."""
    base = write_model(tmp_path / "base", QWEN._replace(special={"eos_token": "<|endoftext|>"}))
    chat = write_model(tmp_path / "chat", QWEN)
    (tmp_path / "text.txt").write_text("some words")
    data = tmp_path / "data"
    data_command.build([str(tmp_path / "text.txt")], Recipe("HFTokenizer", str(base / "tokenizer.json")), data)

    def warnings(folder: Path) -> list[str]:
        changes = ["tokenizer_type=HFTokenizer", f"vocab_file={folder / 'tokenizer.json'}", f"data_path={data}"]
        return [problem.what for problem in missing_files(resolve([imported_config(tmp_path)], changes, gpus=1))]

    assert warnings(base) == []
    what = f"data_path: the documents of {data} end with token 256, but the tokenizer's end is token 258"
    assert warnings(chat) == [what]
    # Token files that are made if they are missing are made again.
    recipe = Recipe("HFTokenizer", str(base / "tokenizer.json"))
    assert data_command.up_to_date([str(tmp_path / "text.txt")], recipe, data)
    shutil.copy(chat / "tokenizer_config.json", base)
    assert not data_command.up_to_date([str(tmp_path / "text.txt")], recipe, data)


@pytest.mark.parametrize("described", [True, False])
def test_added_tokens_beside_a_vocabulary_are_not_lost(
    described: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of folders without a tokenizer.json, which have them in another file."""
    folder = write_model(tmp_path / "theirs", QWEN)
    for name in ("tokenizer.json", "tokenizer.model", "special_tokens_map.json"):
        (folder / name).unlink()
    added = {"<|im_end|>": 258, "<tool_call>": 259}
    vocabulary = {token: n for n, token in enumerate([*alphabet(), *QWEN.tokens]) if token not in added}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    decoder = {str(number): {"content": token} for token, number in added.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder} if described else {}))
    (folder / "added_tokens.json").write_text(json.dumps(added))
    assert importing.main([str(folder), "--to", str(tmp_path / "ours")]) == 1
    told = f"{folder} adds the tokens <|im_end|> and <tool_call>, which deepy reads only from a tokenizer.json"
    assert told in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


def test_another_tokenizer_has_other_settings(tmp_path: Path) -> None:
    """Token ids of the model's own tokenizer mean something else, or nothing, in one that replaces it."""
    theirs, file = write_model(tmp_path / "theirs", LLAMA), tmp_path / "ours" / "model.yml"
    words = ["--to", str(file.parent), "--tokenizer-type", "ByteLevelTokenizer"]
    assert importing.main([str(theirs), *words]) == 0
    settings = exported(file, tmp_path / "out") / "generation_config.json"
    assert json.loads(settings.read_text()) == {"bos_token_id": 256, "eos_token_id": 256}
    # A folder without a tokenizer uses that of another one, with the settings of its own.
    shutil.copytree(theirs, tmp_path / "without")
    for name in ("tokenizer.json", "tokenizer.model"):
        (tmp_path / "without" / name).unlink()
    words = ["--tokenizer-type", "HFTokenizer", "--vocab-file", str(theirs / "tokenizer.json")]
    (theirs / "generation_config.json").write_text("{}")
    assert importing.main([str(tmp_path / "without"), "--to", str(tmp_path / "again"), *words]) == 0
    out = exported(tmp_path / "again" / "model.yml", tmp_path / "out2")
    expected = travelling(theirs) | {"generation_config.json": (tmp_path / "without" / settings.name).read_bytes()}
    assert travelling(out) == expected


#: What can happen to an exported folder, and what is said about it.
DAMAGES: dict[str, Any] = {
    "model.safetensors": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "tokenizer.json": lambda data: data[:-5],
    "chat_template.jinja": lambda data: b"x" + data[1:],
    "generation_config.json": None,
}


@pytest.mark.parametrize("damaged", DAMAGES)
def test_an_export_that_is_damaged_afterwards_is_noticed(
    damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = exported(imported(tmp_path, "qwen"), tmp_path / "out")
    words = [str(out), "--to", str(tmp_path / "again")]
    file, change = out / damaged, DAMAGES[damaged]
    if change:
        file.write_bytes(change(file.read_bytes()))
    else:
        file.unlink()
    assert importing.main(words) == 1
    told = capsys.readouterr().err
    assert f"error: {out} is not as it was exported: {damaged} " in told and "[huggingface-folder-damaged]" in told
    assert not (tmp_path / "again").exists()
    if damaged == "chat_template.jinja":  # changed on purpose
        (out / "files.json").unlink()
        assert importing.main(words) == 0


def imported_config(folder: Path) -> Path:
    file = folder / "small.yml"
    file.write_text(
        "{dialect: neox-2026, num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 32, train_iters: 1,"
        "max_position_embeddings: 32, train_micro_batch_size_per_gpu: 1, tokenizer_type: ByteLevelTokenizer}"
    )
    return file
