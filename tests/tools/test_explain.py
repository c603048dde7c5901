"""`deepy explain KEY FILE`: the value in these files, and what it was made of."""

from __future__ import annotations

import json
from pathlib import Path

from neoxargs.tools.explain import explain

QUICKSTART = str(Path(__file__).parents[2] / "configs" / "quickstart.yml")


def because(key: str, *files: str) -> str:
    facts = json.loads(explain(key, files or [QUICKSTART], [], None, 4, as_json=True))
    return facts["because"].replace(QUICKSTART, "q.yml")


def test_a_derived_value_shows_its_inputs_and_not_the_rule_again() -> None:
    shown = explain("intermediate_size", [QUICKSTART], [], None, 4, as_json=False)
    assert because("intermediate_size") == "derived: hidden_size 256 (q.yml:11:1)"
    assert shown.count("4 x hidden_size, or") == 1


def test_written_inputs_come_first() -> None:
    shown = because("adam_beta2")
    assert shown.startswith("derived: optimizer.params.betas [0.9, 0.95] (q.yml:34:24), ")
    assert shown.endswith("(derived)")


def test_the_batch_is_an_equation_in_numbers() -> None:
    expected = "derived: 8 samples = micro batch 2 (q.yml:22:1) x accumulation 4 (q.yml:23:1) x data 1"
    assert because("train_batch_size") == expected


def test_a_default_that_the_dialect_decides(tmp_path: Path) -> None:
    text = Path(QUICKSTART).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("attention_dropout")]
    path = tmp_path / "my.yml"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert because("attention_dropout", str(path)) == "neox-2026's default; neox-2021 has 0.1"
    path.write_text("\n".join(lines).replace("neox-2026", "neox-2021"), encoding="utf-8")
    assert because("attention_dropout", str(path)) == "neox-2021's default; neox-2026 has 0.0"
    path.write_text("\n".join(lines).replace("neox-2026", "neox-2021").replace("gradient_clipping: 1.0", ""), "utf-8")
    assert because("gradient_clipping", str(path)) == "neox-2021's default; neox-2026 has 1.0"


def test_what_changes_with_a_parameter() -> None:
    def changes(key: str) -> str:
        told: str = json.loads(explain(key, [], [], None, None, as_json=True))["changes"]
        return told

    assert changes("num-layers") == "model"
    assert changes("master_port") == "which processes are started, and how"
    assert changes("mask-prob") == "none: only BERT, ICT and REALM read it"
    assert changes("use_mup") == "nothing: train.py refuses any value but the default"


def test_a_section_shows_what_is_in_the_files() -> None:
    shown = explain("optimizer.params", [QUICKSTART], [], None, 4, as_json=False).partition("params here:")[2]
    assert f"  lr 0.001 ({QUICKSTART}:34:12)" in shown
    assert "amsgrad" not in shown
    values = json.loads(explain("optimizer.params", [QUICKSTART], [], None, 4, as_json=True))["values here"]
    assert values["optimizer.params.betas"] == [0.9, 0.95]
    assert "optimizer.params here" not in explain("optimizer.params", [], [], None, None, as_json=False)
    assert "nothing but defaults" in explain("amp", [QUICKSTART], [], None, 4, as_json=False)
