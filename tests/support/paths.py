"""Paths of the repository's files, of its reference data, and of GPT-NeoX's files outside of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
DOCS = ROOT / "docs"
QUICKSTART = CONFIGS / "quickstart.yml"
#: Data about other programs; tests/reference/README.md describes each file.
REFERENCE = ROOT / "tests" / "reference"
#: GPT-NeoX's configurations, which are not part of the repository.
CORPUS = ROOT.parent / "shared" / "corpus"
NEOX_HEAD, NEOX_2021 = CORPUS / "neox_head", CORPUS / "neox_2021_02"

needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"GPT-NeoX's configurations are not in {CORPUS}")


def corpus_files() -> list[Path]:
    """Return GPT-NeoX's configurations of February 2021 and of today, YAML and JSON."""
    return sorted(path for path in CORPUS.rglob("*") if path.suffix in (".yml", ".yaml", ".json"))


#: Tables of published figures of training runs: those that the plan's rates were chosen with, and later ones.
FIGURES = CORPUS.parent / "reference" / "published_figures.tsv"
AFTERWARDS = ROOT / "tests" / "reference" / "published_afterwards.tsv"
