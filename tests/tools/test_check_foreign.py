"""`deepy check` of another program's file ends in the way to make it one of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.request import Request
from neoxargs.tools.check import report


@pytest.mark.parametrize(
    ("name", "text", "program"),
    [
        ("my.sh", "GPUS=8\npython pretrain_gpt.py --num-layers 4\n", "a script that starts Megatron-LM"),
        ("ds.json", '{"train_batch_size": 8, "bf16": {"enabled": true}}', "DeepSpeed's JSON"),
        ("my.json", '{"num_layers": 4, "train_batch_size": 8}', ""),
        ("my.yml", "train_batch_size: 8\n", ""),
    ],
)
def test_migrate_is_named(
    name: str, text: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    assert report(Request([name])) == 1
    err = capsys.readouterr().err
    told = f"warning: {name} reads like {program} [file-of-another-program]\n  = deepy migrate {name}\n"
    assert err.endswith(told) if program else "migrate" not in err
