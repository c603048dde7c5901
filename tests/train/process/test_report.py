"""Problems that only a rank can find are reported at the line that sets the value, if the launcher sent the places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from neoxargs.files.token_files import writer
from neoxargs.resolve import resolve
from neoxargs.targets import wire_format
from tests.support.processes import TINY, train_on_rank
from tests.support.ranks import run_ranks


def words_of_a_run(folder: Path) -> list[str]:
    """Return the arguments of a rank whose token file has an id beyond the embedding; line 2 names the file."""
    with writer.new_file(folder / "tokens", np.uint16) as tokens:
        tokens.add(np.full(20_000, 60_000, np.uint16), [200] * 100, [True] * 100)
    rest = yaml.safe_dump({**TINY, "run_dir": str(folder / "out")})
    (folder / "my.yml").write_text(f"# data\ndata_path: {folder}/tokens\n{rest}")
    return wire_format.script_arguments(resolve([folder / "my.yml"], gpus=1))


def failed(words: list[str]) -> str:
    [(code, _, errors)] = run_ranks(train_on_rank, 1, words)
    assert code == 1
    return next(line for line in errors.splitlines() if "[data-other-tokenizer]" in line)


def test_a_problem_that_a_rank_finds_has_the_place_of_the_value(tmp_path: Path) -> None:
    words = words_of_a_run(tmp_path)
    assert failed(words).startswith(f"{tmp_path}/my.yml:2:1: error: ")
    # The same command as a launcher of another version, or GPT-NeoX's, sends it.
    at = words.index(wire_format.PLACES)
    assert failed([*words[:at], *words[at + 2 :]]).startswith("error: ")
