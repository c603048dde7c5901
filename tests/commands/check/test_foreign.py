"""`deepy check` of another program's file suggests `deepy migrate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.base.request import Request
from neoxargs.commands.check.command import run


@pytest.mark.parametrize(
    ("name", "text", "program"),
    [
        ("my.sh", "GPUS=8\npython pretrain_gpt.py --num-layers 4\n", "a Megatron-LM script"),
        ("ds.json", '{"train_batch_size": 8, "bf16": {"enabled": true}}', "a DeepSpeed JSON"),
        ("my.json", '{"num_layers": 4, "train_batch_size": 8}', ""),
        ("my.yml", "train_batch_size: 8\n", ""),
    ],
)
def test_migrate_is_suggested(
    name: str, text: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    assert run(Request([name])) == 1
    err = capsys.readouterr().err
    hint = f"run `deepy migrate {name}` to convert it"
    end = f"warning: {name} looks like {program} [file-of-another-program]\n  = {hint}\n"
    assert err.endswith(end) if program else "migrate" not in err
