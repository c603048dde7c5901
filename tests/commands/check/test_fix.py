"""`deepy check --fix`: what is corrected, what is not, and how files are written."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from neoxargs.base import files
from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem, is_one_edit
from neoxargs.base.request import Request
from neoxargs.cli import main
from neoxargs.commands.check.fix import Found, correct, find_in
from tests.support.bad_inputs import GOOD
from tests.support.each import for_each
from tests.support.snapshots import pinned

#: Lines below those of GOOD -> the same lines corrected.
CORRECTED = {
    # keys
    "weight_decy: 0.1  # why\n": "weight_decay: 0.1  # why\n",
    "weight-decy: 0.1\n": "weight-decay: 0.1\n",
    "'weight_decy': 0.1\n": "'weight_decay': 0.1\n",
    "Weight_Decay: 0.1\n": "weight_decay: 0.1\n",
    "fp16: {enabeld: true, loss_scal: 0}\n": "fp16: {enabled: true, loss_scale: 0}\n",
    "bf17: {enabled: true}\n": "bf16: {enabled: true}\n",
    "--weight-decay: 0.1\n": "weight-decay: 0.1\n",
    # places
    "fp16.enabled: true  # why\n": "fp16:\n  enabled: true  # why\n",
    "optimizer.params.lr: 0.1\noptimizer.type: Adam\n": "optimizer:\n  params:\n    lr: 0.1\n  type: Adam\n",
    "fp16:\nenabled: true\nhysteresis: 4\n": None,  # hysteresis is also a key of the top level
    "flops_profiler:\nprofile_step: 5\n# below\nmodule_depth: 2\n": (
        "flops_profiler:\n  profile_step: 5\n# below\n  module_depth: 2\n"
    ),
    "zero_optimization:\n  stage: 1\n  # below\n\n# why\nstage3_max_live_parameters: 5  # here\n\nseed: 1\n": (
        "zero_optimization:\n  stage: 1\n  # why\n  stage3_max_live_parameters: 5  # here\n  # below\n\n\nseed: 1\n"
    ),
    "zero_optimization: {stage: 1}\nstage3_max_live_parameters: 5\n": (
        "zero_optimization: {stage: 1, stage3_max_live_parameters: 5}\n"
    ),
    "zero_optimization:\n    stage: 1\nfp16: {enabled: true, stage3_max_live_parameters: 5}\n": (
        "zero_optimization:\n    stage: 1\n    stage3_max_live_parameters: 5\nfp16: {enabled: true}\n"
    ),
    "zero_optimization: &z {stage: 1}\nx-a: *z\nstage3_max_live_parameters: 5\n": (
        "zero_optimization: &z {stage: 1, stage3_max_live_parameters: 5}\nx-a: *z\n"
    ),
    "x-a: &z {stage: 1}\nzero_optimization: *z\nstage3_max_live_parameters: 5\n": None,
    "optimizer.params.betas:\n  - 0.9\n  - 0.95\n": "optimizer:\n  params:\n    betas:\n      - 0.9\n      - 0.95\n",
    # duplicates
    "seed: 1\nseed: 1  # why\n": "seed: 1\n# why\n",
    "seed: 1\nseed: 2\n": None,
    "fp16: {enabled: true, enabled: true}\n": "fp16: {enabled: true}\n",
    # values
    "no_weight_tying: ture\n": "no_weight_tying: true\n",
    "no_weight_tying: 1  # why\n": "no_weight_tying: true  # why\n",
    "norm: layernrom\n": "norm: layernorm\n",
    'norm: "layernrom"\n': 'norm: "layernorm"\n',
    "activation: gellu\n": None,  # gelu or geglu
    "seed: 1,234\n": "seed: 1234\n",
    "seed: 012\n": None,  # 12, or 10 in octal
    "weight_decay: 5%\n": "weight_decay: 0.05\n",
    "weight_decay: 0,1\n": "weight_decay: 0.1\n",
    "weight_decay: 1e_2\n": None,  # 1e-2 or 1e2
    "seed: [12]\n": "seed: 12\n",
    "seed: 12#why\n": "seed: 12 #why\n",
    "wandb_team: on\n": 'wandb_team: "on"\n',
    "wandb_team: “us”\n": "wandb_team: “us”\n",
    "norm: “layernorm”\n": "norm: layernorm\n",
    "optimizer: {params: {betas: '0.9, 0.95'}}\n": "optimizer: {params: {betas: [0.9, 0.95]}}\n",
    "x-a: &a ture\nno_weight_tying: *a\n": None,
    "norm: >\n  layernrom\n": None,
    # syntax
    "seed=1\n": "seed: 1\n",
    "--seed 1\n": "seed: 1\n",
    "--seed 1 --lr 2\n": None,
    "seed:1 # why\n": "seed: 1 # why\n",
    "seed:\u00a01\n": "seed: 1\n",
    "seed\uff1a1\n": "seed: 1\n",
    "// why\nseed: 1\n": "# why\nseed: 1\n",
    "fp16:\n\tenabled: true\n\tloss_scale: 0\n": "fp16:\n  enabled: true\n  loss_scale: 0\n",
    "zero_optimization:\n    stage: 1\n\tcpu_offload: true\n": (
        "zero_optimization:\n    stage: 1\n    cpu_offload: true\n"
    ),
    "seed: 1\n  lr: 0.1\n": "seed: 1\nlr: 0.1\n",
    "fp16:\n    enabled: true\n   loss_scale: 0\n": "fp16:\n    enabled: true\n    loss_scale: 0\n",
    "fp16: {\n  enabled: true\n  loss_scale: 0\n}\n": "fp16: {\n  enabled: true,\n  loss_scale: 0\n}\n",
    "fp16: {\n  enabled: true;\n  loss_scale: 0\n}\n": "fp16: {\n  enabled: true,\n  loss_scale: 0\n}\n",
    'wandb_team: "a",\n': 'wandb_team: "a"\n',
    "weight_decy=0.1\n": "weight_decay: 0.1\n",
    "weight_decyyy=0.1\n": None,
    "no_weight_tying:ture\n": "no_weight_tying: true\n",
    "fp16: {enabeld: true\n  loss_scale: 0}\n": "fp16: {enabled: true,\n  loss_scale: 0}\n",
    "seed: 1\nseed: 1\n--lr 0.1\n": "seed: 1\nlr: 0.1\n",  # the second when the text has become YAML
    "<<<<<<< ours\nseed: 1\n=======\nseed: 2\n>>>>>>> theirs\n": None,
}  # fmt: skip
#: The same for corrections that are made only with --unsafe-fixes.
UNSAFE = {
    "learning_rate: 0.1\n": "lr: 0.1\n",
    "weight_decy_: 0.1\n": "weight_decay: 0.1\n",
    "seed:\n": "",
    "seed: 012\n": "seed: 12\n",
    "hidden_dropout: 1e_2\n": "hidden_dropout: 1e-2\n",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def corrected(text: str, unsafe: bool = False) -> str:
    return correct([Text("my.yml", text)], find_in([Request(["my.yml"], gpus=8)]), unsafe).after[0].text


@for_each(CORRECTED.items())
def test_what_is_certain_is_corrected(case: tuple[str, str | None]) -> None:
    before, after = case
    assert corrected(GOOD + before) == GOOD + (before if after is None else after)


@for_each(UNSAFE.items())
def test_what_is_probable_is_corrected_on_request(case: tuple[str, str]) -> None:
    before, after = case
    assert (corrected(GOOD + before), corrected(GOOD + before, unsafe=True)) == (GOOD + before, GOOD + after)


def check(*words: str) -> int:
    return main(["check", "my.yml", "--gpus", "8", *words])


def test_the_corrections_and_what_remains_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(GOOD + "weight_decy: 0.1\nseed: red\nsave_: x\n")
    assert check("--fix", "--unsafe-fixes", "--set", "log_intervall=3") == 1
    pinned(capsys.readouterr().err, "corrected  ")
    assert Path("my.yml").read_text() == GOOD + "weight_decay: 0.1\nseed: red\nsave: x\n"


def test_the_number_that_can_be_corrected_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(GOOD + "weight_decy: 0.1\nseed:\nhidden_droput: 0\n")
    assert check("--set", "log_intervall=3") == 1
    pinned(capsys.readouterr().out, "fixable")


def test_all_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(GOOD + "weight_decy: 0.1\n")
    assert check("--fix", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [problem["id"] for problem in answer["fixed"]] == ["unknown-key"] and answer["ok"]
    assert check("--fix", "--json") == 0
    assert json.loads(capsys.readouterr().out)["fixed"] == []


def test_a_diff_shows_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(
        "comet: {api_key: hunter2, projct: a}\nwandb_host: https://me:hunter2@host\nnum_layer: 2\n"
    )
    check("--diff")
    printed = capsys.readouterr().out
    assert "+num_layers: 2" in printed and "hunter" not in printed


def test_a_diff_that_patch_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(GOOD + "weight_decy: 0.1")
    assert check("--diff") == 1
    pinned(capsys.readouterr().out)
    assert Path("my.yml").read_text() == GOOD + "weight_decy: 0.1"
    Path("my.yml").write_text(GOOD)
    assert (check("--diff"), capsys.readouterr().out) == (0, "")


def test_a_correction_that_causes_another_error_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.replace("hidden_size: 64", "hiden_size: 65")
    Path("my.yml").write_text(text)
    assert check("--fix") == 1 and Path("my.yml").read_text() == text
    pinned(capsys.readouterr().err, "not corrected")
    assert check("--fix", "--unsafe-fixes") == 1 and Path("my.yml").read_text() != text


def test_one_that_causes_an_error_does_not_keep_others_from_being_made() -> None:
    text = GOOD.replace("hidden_size: 64", "hiden_size: 65")
    assert corrected(text + "weight_decy: 0.1\n") == text + "weight_decay: 0.1\n"


def test_the_edits_of_a_problem_are_made_together_or_not_at_all() -> None:
    """A problem of a rule, say, that needs two values changed, in two files."""

    def find(texts: Sequence[Text]) -> list[Found]:
        places = [Place(text.name, 1, 1, text.text.rstrip(), 1) for text in texts]
        if places[0].text != "a: 1":
            return [Found([])]
        edits = (Edit(places[0], "set", "2"), Edit(places[1], "remove"))
        return [Found([Problem("wrong", places[0], id="x", edits=edits)])]

    texts = [Text("a.yml", "a: 1\n"), Text("b.yml", "b: 1\n")]
    assert [after.text for after in correct(texts, find).after] == ["a: 2\n", ""]
    texts[1] = Text("b.yml", "- b\n")
    assert correct(texts, find).after == texts


def test_each_file_gets_the_corrections_of_its_own_keys() -> None:
    Path("my.yml").write_text(GOOD + "seed: 1\n")
    Path("more.yml").write_text("weight_decy: 0.1\nseed: 1\n")
    assert check("more.yml", "--fix") == 1  # another run may need the seed of the second file
    assert Path("more.yml").read_text() == "weight_decay: 0.1\nseed: 1\n"
    assert check("more.yml", "--fix", "--unsafe-fixes") == 0
    assert (Path("my.yml").read_text(), Path("more.yml").read_text()) == (GOOD + "seed: 1\n", "weight_decay: 0.1\n")


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["without", "with byte order mark"])
def test_bytes_that_are_not_corrected_stay(start: bytes) -> None:
    def text(key: str) -> bytes:
        return start + (GOOD + f"# \u00fc\n{key}: 0.1\nfp16:\n  enabled: true").replace("\n", "\r\n").encode()

    Path("target.yml").write_bytes(text("weight_decy") + b"\r\nfp16.hysteresis: 4")
    os.chmod("target.yml", 0o640)
    os.symlink("target.yml", "my.yml")
    assert check("--fix") == 0
    assert Path("target.yml").read_bytes() == text("weight_decay") + b"\r\n  hysteresis: 4"
    assert Path("my.yml").is_symlink() and os.stat("target.yml").st_mode & 0o777 == 0o640


def test_json_remains_json() -> None:
    good = ", ".join(f'"{key}": {value}' for key, value in (line.split(": ") for line in GOOD.splitlines()))
    wrong = '"weight_decy": 0.1, "norm": "layernrom", "stage3_max_live_parameters": 5, "wandb_team": "on"'
    after = corrected(f'{{{good}, {wrong}, "seed": 1, "seed": 1, "zero_optimization": {{"stage": 1}}}}')
    assert {"weight_decay", "norm", "seed"} <= json.loads(after).keys()
    assert json.loads(after)["zero_optimization"] == {"stage": 1, "stage3_max_live_parameters": 5}
    assert '"norm": "layernorm"' in after and after.count("seed") == 1


def test_what_cannot_be_written_is_refused_and_nothing_is_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"my.yml": GOOD + "weight_decy: 0.1\n", "more.yml": "log_intervall: 3\n"}
    for name, text in before.items():
        Path(name).write_text(text)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", ".more.yml", None, "more.yml")

    monkeypatch.setattr(files.os, "replace", full)
    assert check("more.yml", "--fix") == 1
    pinned(capsys.readouterr().err, "[output-file-unwritable]")
    assert {name: Path(name).read_text() for name in before} == before
    assert sorted(os.listdir()) == sorted(before)


def test_a_read_only_file_is_not_replaced(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my.yml").write_text(GOOD + "weight_decy: 0.1\n")
    Path("my.yml").chmod(0o444)  # root may write to it all the same
    assert check("--fix") == 1
    pinned(capsys.readouterr().err, "[output-file-unwritable]")
    Path("my.yml").chmod(0o644)
    monkeypatch.setattr("neoxargs.base.write_files.os.access", lambda *_: False)  # the file of another user
    assert check("--fix") == 1
    assert "[output-file-unwritable]" in capsys.readouterr().err and "decy" in Path("my.yml").read_text()


def test_a_file_that_changes_meanwhile_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("my.yml").write_text(GOOD + "weight_decy: 0.1\n")

    def and_saved(texts: Sequence[Text], *rest: object) -> object:
        Path("my.yml").write_text(GOOD)
        return correct(texts, *rest)

    monkeypatch.setattr("neoxargs.commands.check.fix.correct", and_saved)
    assert check("--fix") == 1 and Path("my.yml").read_text() == GOOD
    pinned(capsys.readouterr().err)


@pytest.mark.parametrize("content", [b"seed: 1\nwandb_team: \xe9\n", "seed=1\n".encode("utf-16"), b"seed=1\0\n"])
def test_what_is_not_text_is_not_touched(content: bytes) -> None:
    Path("my.yml").write_bytes(content)
    assert check("--fix", "--unsafe-fixes") == 1 and Path("my.yml").read_bytes() == content


def test_a_pipe_cannot_be_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("my.yml")
    assert check("--fix") == 1
    pinned(capsys.readouterr().err)


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(GOOD)
    for words in (["--unsafe-fixes"], ["--diff", "--json"], ["--diff", "--fix"]):
        with pytest.raises(SystemExit):
            check(*words)
        pinned(capsys.readouterr().err.splitlines()[-1])


def test_one_edit() -> None:
    words = ("lr", "l", "lrs", "rl", "LR", "br", "lb")
    assert all(is_one_edit(word, "lr") and is_one_edit("lr", word) for word in words)
    assert not any(is_one_edit(word, "seed") for word in ("sd", "deed_", "edse", "seeed_", ""))
    assert is_one_edit("sede", "seed") and not is_one_edit("esde", "seed")
