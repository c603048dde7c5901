"""Every parameter that is declared to affect something is named by code that reads it.

A coarse sieve: that a name stands in the code does not prove an effect, but where it does not there is none.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import deepspeed
import pytest

from neoxargs.facts.data import SPLITS
from neoxargs.registry import REGISTRY, Parameter
from tests.support.deepspeed_spy import version_note
from tests.support.paths import ROOT

PACKAGE = ROOT / "neoxargs"
#: The rooms of a run of ours.
OURSELVES = ("train", "launch", "hosts", "targets", "processes", "runs", "checks", "data", "convert")
#: Who reads a parameter for it; the tables that only list names are left out.
READERS = (*OURSELVES, "resolve/rules", "facts", "files/token_files")
LISTS = ("neox_compat.py", "megatron.py", "megatron_tables.py", "megatron_unsupported.py")

ALIVE = [p for p in REGISTRY.parameters.values() if p.effect not in ("none", "not built") and not p.replaced_by]
OURS = [p for p in ALIVE if "DSC" not in p.origins and "runner" not in p.to]
DEEPSPEEDS = [p for p in ALIVE if "deepspeed" in p.to and not p.name.startswith("optimizer.params.")]


def named(parameter: Parameter) -> str:
    return parameter.name


@cache
def words(folder: Path) -> frozenset[str]:
    """Every name in the Python files below a folder; `a__b` of rules is `a.b`, and their SPLIT is that of any data."""
    texts = (path.read_text(errors="replace") for path in folder.rglob("*.py") if path.name not in LISTS)
    found = {word for text in texts for word in re.findall(r"\w+", text)}
    found |= {word.replace("SPLIT", split) for word in found if "SPLIT" in word for split in SPLITS}
    return frozenset(found | {part for word in found for part in word.split("__")})


@pytest.mark.parametrize("parameter", OURS, ids=named)
def test_our_code_reads_it(parameter: Parameter) -> None:
    assert any(parameter.attribute in words(PACKAGE / folder) for folder in READERS)


@pytest.mark.parametrize("parameter", DEEPSPEEDS, ids=named)
def test_deepspeed_reads_it_or_we_do(parameter: Parameter) -> None:
    folders = Path(deepspeed.__file__).parent, *(PACKAGE / room for room in OURSELVES)
    assert any(parameter.attribute in words(folder) for folder in folders), version_note()
