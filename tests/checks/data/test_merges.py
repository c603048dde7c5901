"""A token file that does not say which tokenizer made it: whether it can be that of the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, trainers

from neoxargs.base.problems import render
from neoxargs.checks.data.files import missing_files
from neoxargs.checks.data.merges import unmerged
from tests.support.configure import config_of as config
from tests.support.finetuning import token_file
from tests.support.paths import DOCS, ROOT
from tests.support.snapshots import pinned

#: English, code, and numbers and links: what the tokenizers learn from, and what they tokenise.
TEXTS = {
    "prose": [DOCS / "internals.md", DOCS / "plan.md"],
    "code": [*(ROOT / "neoxargs" / "resolve").rglob("*.py")][:20],
    "tables": [DOCS / "parameters.md"],
}


def read(kind: str) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in TEXTS[kind]]


def trained(texts: Iterable[str], space: str = "bytes") -> Tokenizer:
    """Train a byte pair encoding as GPT-2's, or as SentencePiece's, with 8,000 tokens."""
    if space == "bytes":
        made = ByteLevelBPETokenizer()
        made.train_from_iterator(texts, vocab_size=8000)
        return made._tokenizer
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=8000, special_tokens=["<unk>"]))
    return made


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of prose and of code: the tokenizer.json."""
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {"prose": trained(read("prose")), "code": trained(read("code")), "pieces": trained(read("prose"), "pieces")}
    for name, tokenizer in made.items():
        tokenizer.save(str(folder / f"{name}.json"))
    return {name: folder / f"{name}.json" for name in made}


def tokenised(folder: Path, tokenizer: Path, kind: str) -> str:
    ids = [Tokenizer.from_file(str(tokenizer)).encode(text).ids for text in read(kind)]
    return token_file(folder / "data", ids)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", ["prose", "code", "pieces"])
def test_its_own_files_pass(name: str, kind: str, tokenizers: dict[str, Path], tmp_path: Path) -> None:
    prefix = tokenised(tmp_path, tokenizers[name], kind)
    own = config(tokenizer_type="HFTokenizer", vocab_file=str(tokenizers[name]))
    assert unmerged(own, prefix) is None


OTHERS = [("prose", "code", kind) for kind in TEXTS] + [("code", "prose", kind) for kind in TEXTS]


@pytest.mark.parametrize(("made_by", "name", "kind"), [*OTHERS, ("pieces", "code", "tables")])
def test_those_of_another_are_told(
    made_by: str, name: str, kind: str, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    prefix = tokenised(tmp_path, tokenizers[made_by], kind)
    other = config(tokenizer_type="HFTokenizer", vocab_file=str(tokenizers[name]))
    assert unmerged(other, prefix)


def test_the_two_files_of_gpt_2(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    Tokenizer.from_file(str(tokenizers["code"])).model.save(str(tmp_path))
    files = {"vocab_file": str(tmp_path / "vocab.json"), "merge_file": str(tmp_path / "merges.txt")}
    both = config(tokenizer_type="GPT2BPETokenizer", **files)
    assert unmerged(both, tokenised(tmp_path, tokenizers["code"], "prose")) is None
    assert unmerged(both, tokenised(tmp_path, tokenizers["prose"], "prose"))


def test_check_says_so(tokenizers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenised(Path(), tokenizers["prose"], "prose")
    tokenizers["code"].rename("tokenizer.json")
    both = config(tokenizer_type="HFTokenizer", vocab_file="tokenizer.json", data_path="data")
    pinned(re.sub(r"[\d.]+%", "N%", render(missing_files(both))))  # the texts are pages that change
    Path("tokenizer.json").rename(tokenizers["code"])


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"model": {"type": "BPE"}}', '{"model": {"type": "BPE", "merges": [1]}}', "x"]
)
def test_a_damaged_tokenizer_is_not_judged(text: str, tokenizers: dict[str, Path], tmp_path: Path) -> None:
    prefix = tokenised(tmp_path, tokenizers["prose"], "prose")
    (tmp_path / "tokenizer.json").write_text(text)
    assert unmerged(config(tokenizer_type="HFTokenizer", vocab_file=str(tmp_path / "tokenizer.json")), prefix) is None
