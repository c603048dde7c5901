"""Token files for trials: random documents in place of the user's, of every kind that a configuration names."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neoxargs.config.config import Config
from neoxargs.facts.data import blend, path_list
from neoxargs.facts.model import is_reward_model
from neoxargs.facts.validation_sets import validation_sets
from neoxargs.files.token_files.sources import REWARD_FILES, TOKEN_FILES

DOCUMENTS = 4000
#: ByteLevelTokenizer's token for the end of a document, and the label that is not trained.
END, IGNORED = 256, -100


def data_values(config: Config, folder: Path) -> dict[str, Any]:
    """Write a token file for each path of the configuration; return what replaces the paths."""
    values: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for name in (*TOKEN_FILES, *REWARD_FILES):
        if paths := path_list(config.get(name)):
            values[name] = [str(_written(config, folder, name, path, numbers)) for path in paths]
    if config.data.validation:
        values["validation"] = {
            each.name: {
                key: [str(_written(config, folder, f"validation {kind}", path, numbers)) for path in paths]
                for key, kind, paths in (("data_paths", "text", each.paths), ("label_data_paths", "label", each.labels))
                if paths
            }
            for each in validation_sets(config.data.validation)
        }
    if config.data.data_path and not config.data.text_path:
        parts = blend(config.data.data_path)
        names = [str(_written(config, folder, "data_path", path, numbers)) for path, _ in parts]
        weights = [weight for _, weight in parts]
        blended = [item for pair in zip(weights, names, strict=True) for item in pair]
        values["data_path"] = names if None in weights else blended
    if not values:
        values["data_path"] = str(_written(config, folder, "data_path", "text", numbers))
    if config.data.text_path:
        values["text_path"] = None
    return values


def _written(config: Config, folder: Path, name: str, path: str, numbers: dict[str, int]) -> Path:
    """Write the file of a path; token file and labels of a source have the same documents."""
    kind = "reward" if "reward" in name else "label" if "label" in name else "text"
    # The n-th path of each parameter has the n-th set of documents; chosen and rejected answers share the prompts.
    source = numbers.setdefault(f"{name} {path}", sum(key.startswith(f"{name} ") for key in numbers))
    side = 1 if name.startswith("neg_") else 0
    prefix = folder / f"{kind}-{source}-{side}"
    if not prefix.with_name(prefix.name + ".idx").exists():
        _write(prefix, kind, _documents(source, side, 2 if is_reward_model(config) else 1))
    return prefix


def _documents(source: int, side: int, ends: int) -> Iterable[tuple[list[int], list[int]]]:
    """Yield the documents and their labels: a prompt, which is not trained, an answer, and tokens for the end."""
    prompts, answers = random.Random(source), random.Random(f"{source} {side}")
    for _ in range(DOCUMENTS):
        prompt = [prompts.randrange(97, 123) for _ in range(prompts.randrange(3, 9))]
        answer = [answers.randrange(97 + 12 * side, 111 + 12 * side) for _ in range(answers.randrange(3, 13))]
        ids = [*prompt, *answer, *[END] * ends]
        trained = ids[len(prompt) :] if ends == 1 else [*[IGNORED] * (len(answer) + 1), END]
        yield ids, [*[IGNORED] * len(prompt), *trained]


def _write(prefix: Path, kind: str, documents: Iterable[tuple[list[int], list[int]]]) -> None:
    import numpy as np  # slow

    from neoxargs.files.token_files import writer

    stored: Any = {"text": np.uint16, "label": np.int32, "reward": np.float32}[kind]
    with writer.new_file(prefix, stored) as file:
        for number, (ids, labels) in enumerate(documents):
            rows: Any = {"text": ids, "label": labels, "reward": [1.0 if number % 2 else -1.0]}[kind]
            file.add(np.array(rows, stored), [len(rows)], [True])
