"""Where tests find the repository's files, the reference data in it, and GPT-NeoX's own files beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
DOCS = ROOT / "docs"
QUICKSTART = CONFIGS / "quickstart.yml"
#: Facts as data; tests/reference/README.md says what each file is.
REFERENCE = ROOT / "tests" / "reference"
#: GPT-NeoX's own files, which are not part of the repository.
CORPUS = ROOT.parent / "shared" / "corpus"
NEOX_HEAD, NEOX_2021 = CORPUS / "neox_head", CORPUS / "neox_2021_02"

needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no files of GPT-NeoX in {CORPUS}")


def corpus_files() -> list[Path]:
    """GPT-NeoX's configurations of both years, YAML and JSON."""
    return sorted(path for path in CORPUS.rglob("*") if path.suffix in (".yml", ".yaml", ".json"))
