"""`deepy diff`: what it prints, its exit codes, and what it reads; `UPDATE=1 pytest FILE` rewrites the snapshot."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.commands.diff.side import recorded_source
from neoxargs.files.run_record import write_record
from neoxargs.registry import REGISTRY
from neoxargs.resolve import resolve
from neoxargs.resolve.compare.impact import EXCEPTIONS, IMPACTS, kind_of
from neoxargs.targets.ranks import train_values
from tests.support.smallest import YAML
from tests.support.snapshots import pinned

SNAPSHOT = Path(__file__).with_name("snapshots") / "diff.txt"
DIALECT = "dialect: neox-2026\n"
#: Other spellings and layouts of YAML.
FILES = {
    "a.yml": DIALECT + YAML + "train_batch_size: 8\ntext_path: t.txt\n",
    "lr.yml": DIALECT + YAML + "train_batch_size: 8\ntext_path: t.txt\nlr: 0.01\nlog_interval: 3\nmask_prob: 0.3\n",
    "layout.yml": (DIALECT + YAML + "text_path: t.txt\nmodel_parallel_size: 2\ncheckpoint_activations: true\n").replace(
        "train_micro_batch_size_per_gpu: 2", "train_batch_size: 8"
    ),
    "old.yml": YAML
    + "batch-size: 2\nhidden-dropout: 0.1\ngeglu: true\nadam-beta1: 0.8\nmask-prob: 0.2\nsplit: 95,4,1\n",
    "new.yml": YAML.replace("num_layers: 2\n", "")
    + "activation: geglu\noptimizer: {type: Adam, params: {betas: [0.8, 0.999]}}\nhidden_dropout: 0.1\n"
    "attention_dropout: 0.1\nweight_decay: 0.01\ngradient_clipping: 0\nwarmup_from_zero: true\n"
    "deepspeed_activation_checkpointing: false\nsplit: 95, 4, 1\n",
    "layers.yml": "num-layers: 2\n",
    "bad.yml": YAML + "hidden_dropout: 2\n",
}
REASON = "derived: lr and optimizer.params.lr are the same setting; without either, it is 0.001"
#: Command line -> exit code.
CASES = {
    "a.yml a.yml": 0,
    "a.yml lr.yml": 1,
    "a.yml layout.yml": 1,
    "a.yml layout.yml --allow-rounding": 0,
    "a.yml layout.yml --gpus 4": 1,
    "old.yml new.yml+layers.yml": 0,
    "a.yml run": 0,
    "run lr.yml": 1,
    "run run/global_step10": 0,
    "run/config.json run/global_step10/config.json": 0,
    "bad.yml none.yml": 2,
    "a.yml+ empty": 2,
    "broken a.yml": 2,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files, a run of a.yml with a checkpoint, a folder without either, and one with a damaged record."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    config = resolve(["a.yml"], ["run_dir=run"], gpus=1)
    write_record(config)
    Path("run/global_step10").mkdir()
    Path("run/global_step10/config.json").write_text(json.dumps(train_values(config)))
    for name in ("empty", "broken"):
        Path(name).mkdir()
    Path("broken/config.json").write_text("{")
    return tmp_path


def output(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["diff", *command.split()])
    out, err = capsys.readouterr()
    return code, out + err


def test_the_snapshot_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    found = {command: output(command, capsys) for command in CASES}
    assert {command: code for command, (code, _) in found.items()} == CASES
    shown = [f"$ deepy diff {command}\n{text}" for command, (_, text) in found.items()]
    if os.environ.get("UPDATE"):
        SNAPSHOT.write_text("\n".join(shown), encoding="utf-8")
    assert "\n".join(shown) == SNAPSHOT.read_text(encoding="utf-8")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = output("a.yml lr.yml --json", capsys)
    answer = json.loads(text)
    first, *_ = answer["differences"]
    assert (code, answer["ok"], answer["verdict"]) == (1, False, "result")
    assert first == {
        "name": "lr", "impact": "result", "kind": "optimizer", "note": "",
        "a": {"value": 0.001, "source": REASON}, "b": {"value": 0.01, "source": "lr.yml:11:1"},
    }  # fmt: skip
    expected = {"name": "a.yml", "kind": "file", "ranks": 1, "not_recorded": [], "launches": 0, "earlier": []}
    assert answer["a"] == expected
    assert json.loads(output("a.yml none.yml --json", capsys)[1])["problems"][0]["id"] == "file-missing"


def test_files_are_resolved_for_the_ranks_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    write_record(resolve(["a.yml"], ["run_dir=wide"], gpus=4))
    assert "a.yml  (file, neox-2026, 4 ranks)" in output("a.yml wide", capsys)[1]
    Path("fixed.yml").write_text(FILES["a.yml"] + "num_gpus: 2\nnum_nodes: 2\n")
    assert "a.yml  (file, neox-2026, 4 ranks)" in output("a.yml fixed.yml", capsys)[1]


def test_a_record_of_an_older_version_lacks_values(capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(Path("run/config.json").read_text())
    for name in ("clip_grad", "gradient_clipping", "rotary_pct", "moe_num_experts"):
        del record[name]
    record["of_another_version"] = {"value": 1, "source": "default"}
    Path("run/config.json").write_text(json.dumps(record))
    code, text = output("run a.yml", capsys)
    assert code == 0
    pinned(text, "not recorded")


def test_sources_of_a_record() -> None:
    assert str(recorded_source("my.yml:3:1")) == "my.yml:3:1"
    assert str(recorded_source("--set lr=1")) == "--set lr=1"
    assert recorded_source("default: neox-2021").kind == "default"
    assert str(recorded_source("derived: a reason")) == "derived: a reason"
    assert recorded_source("environment: X").set_by_user


def test_every_exception_is_a_parameter_whose_effect_says_something_else() -> None:
    for kind, names in EXCEPTIONS.items():
        assert kind in IMPACTS
        for name in names.split():
            found = [p for p in REGISTRY.parameters.values() if p.name == name or (name[-1] == "." and name in p.name)]
            assert any(p.effect != kind for p in found), name


def test_every_parameter_has_a_kind() -> None:
    assert {kind_of(parameter) for parameter in REGISTRY.parameters.values()} <= IMPACTS.keys()


def test_several_names_are_joined_with_plus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "new.yml", "layers.yml", "old.yml", "layers.yml"]) == 2
    text = capsys.readouterr().err
    pinned(text, "[diff-of-two-runs]")


def test_only_missing_names_are_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a.yml"]) == 2
    assert "[diff-of-two-runs]" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["runs/my-rnu", "runs/xyz", "layer.yml"])
def test_a_missing_path_has_a_hint(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/my-run").mkdir(parents=True)
    assert main(["diff", "a.yml", name]) == 2
    pinned(capsys.readouterr().err, "[file-missing]")


@pytest.mark.parametrize(("kind", "exit_code"), [("Muon", 0), ("sm3", 1)])
def test_zero_changes_the_result_of_optimizers_that_it_cuts_matrices_for(kind: str, exit_code: int) -> None:
    """tests/train/optim/test_muon.py shows that Muon takes the same steps with every stage."""
    optimizer = (
        f"{DIALECT}{YAML}train_batch_size: 8\nprecision: bfloat16\noptimizer: {{type: {kind}}}\ntext_path: t.txt\n"
    )
    for stage in (0, 1):
        Path(f"stage{stage}.yml").write_text(f"{optimizer}zero_stage: {stage}\n")
    assert main(["diff", "stage0.yml", "stage1.yml", "--allow-rounding"]) == exit_code
