"""Each file is parsed once in a command, however often its values are resolved with others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from neoxargs.base.problems import SET
from neoxargs.cli import main
from neoxargs.resolve.yaml import compose
from tests.support import smallest

SEARCH = ["--search", "--gpus", "4", "--device", "A100-80GB", "--set", "train_batch_size=8"]
COMMANDS = {
    "check": ["check", "my.yml", "more.yml"],
    "a check with errors": ["check", "my.yml", "wrong.yml"],
    "a launch": ["train.py", "my.yml", "more.yml", "--dry-run"],
    "plan, and what would be faster": ["plan", "my.yml", "more.yml", "--gpus", "2", "--device", "A100-80GB"],
    "plan, and what would fit": ["plan", "big.yml", "more.yml", "--gpus", "8", "--gpu-memory", "24"],
    "plan --search": ["plan", "my.yml", "more.yml", *SEARCH],
    "plan --search --write": ["plan", "my.yml", "more.yml", *SEARCH, "--write", "layout.yml"],
    "plan --fewest": ["plan", "my.yml", "more.yml", "--fewest", *SEARCH[1:]],
    "diff": ["diff", "my.yml", "other.yml"],
    "explain": ["explain", "lr", "my.yml", "more.yml"],
    "migrate": ["migrate", "old.yml"],
    "migrate, back": ["migrate", "old.yml", "--to", "neox-2021"],
    "migrate a DeepSpeed JSON": ["migrate", "ds.json"],
    "migrate an Accelerate YAML": ["migrate", "accelerate.yml"],
}  # fmt: skip


@pytest.fixture
def parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """The texts that were parsed, by name, in a folder with the files of `COMMANDS`."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "my.yml": smallest.YAML, "big.yml": smallest.BILLION, "other.yml": smallest.YAML, "more.yml": "seed: 3\n",
        "wrong.yml": "sead: 3\nlr: x\n",
        "old.yml": f"{smallest.YAML}geglu: true\nno_weight_tying: true\n",
        "ds.json": '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}',
        "accelerate.yml": "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    counts: Counter[tuple[str, str]] = Counter()
    document = compose._Composer.document

    def counting(composer: compose._Composer) -> object:
        if composer.name != SET:
            counts[composer.name, composer.text] += 1
        return document(composer)

    monkeypatch.setattr(compose._Composer, "document", counting)
    return counts


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_parses_each_file_once(parsed: Counter[tuple[str, str]], command: str) -> None:
    words = COMMANDS[command]
    main(words)
    assert {name for name, _ in parsed} >= {word for word in words if word.endswith(".yml") and word != "layout.yml"}
    assert parsed.most_common(1)[0][1] == 1
