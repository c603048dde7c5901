"""Run `deepy check` on the example of a problem, together with the smallest model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from neoxargs.base.problems import Problem
from neoxargs.base.request import Request
from neoxargs.commands.check.command import find_problems
from neoxargs.commands.explain.catalogue import Example

#: Ranks, where the example has no files of its own: on another machine, what this one lacks is a warning.
GPUS = 8
NAME, MODEL = "my.yml", "model.yml"
#: The smallest complete configuration.
SMALLEST_MODEL = {
    "dialect": "neox-2026",
    "num_layers": "4",
    "hidden_size": "64",
    "num_attention_heads": "4",
    "seq_length": "32",
    "max_position_embeddings": "32",
    "train_iters": "100",
    "train_micro_batch_size_per_gpu": "2",
    "text_path": "python-stdlib",
    "tokenizer_type": "CharLevelTokenizer",
    "float32_matmul_precision": "highest",  # or every example would have a warning about fp32
}
#: Parameter -> pattern of the parameters that replace it when the example sets one of them.
ALTERNATIVES = {
    "text_path": r"text_path|data_path|\w+_data_paths",
    "train_iters": "train_iters|train_epochs|train_samples",
}


def check_example(example: Example) -> list[Problem]:
    """Return the problems that `deepy check` reports for an example."""
    with as_files(example) as request:
        return find_problems(request)[1]


@contextmanager
def as_files(example: Example) -> Iterator[Request]:
    """Write an example to the files of a request, in a temporary working directory: problems have relative paths."""
    # Without the parameters that the example sets or excludes.
    model = "".join(
        f"{name}: {value}\n"
        for name, value in SMALLEST_MODEL.items()
        if name not in example.without and not re.search(rf"^({ALTERNATIVES.get(name, name)}):", example.config, re.M)
    )
    with TemporaryDirectory() as folder, chdir(folder):
        for name, text in {NAME: example.config, MODEL: model, **example.files}.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
        yield Request([NAME, MODEL], example.overrides, gpus=None if example.files else GPUS)
