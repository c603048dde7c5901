"""The recipes of docs/finetuning.md start from a model that was trained otherwise, as `check` and the ranks see it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.resolve import resolve
from tests.support import preference
from tests.support.frozen_runs import YAML, losses, trained
from tests.support.paths import DOCS
from tests.support.ranks import run_ranks

SFT = "pack_impl: unpacked\n" + "".join(
    f"{split}_data_paths: [data/chosen]\n{split}_label_data_paths: [data/chosen_label]\n"
    for split in ("train", "valid", "test")
)
LORA = "lora: {rank: 2}\n"
#: How a run starts from the model -> what replaces the last two lines of a recipe, `load` and `finetune`.
STARTS = {
    "all weights": "load: checkpoints/instruct\nfinetune: true\n",
    "adapters": f"load: checkpoints/instruct\nfinetune: true\n{LORA}",
    "adapters of a base": f"base_checkpoint: checkpoints/instruct\nload: checkpoints/adapters\n{LORA}",
}


def recipe(name: str) -> str:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (DOCS / "finetuning.md").read_text(encoding="utf-8"), re.M | re.S)
    (found,) = (block for block in blocks if f"train_impl: {name}\n" in block)
    assert found.endswith(STARTS["all weights"])
    return str(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page, and a model that was trained on conversations."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "data").mkdir()
    preference.rated(folder / "data", 8, 16)
    for file in [*(folder / "data").glob("pos*"), *(folder / "data").glob("neg*")]:
        file.rename(file.with_name(file.name.replace("pos", "chosen").replace("neg", "rejected")))
    for file in [*(folder / "data").glob("rated*")]:
        file.with_name(file.name.replace("rated", "held-out")).symlink_to(file)
    run(folder, "instruct", SFT, folder / "checkpoints" / "instruct")
    return folder


def run(folder: Path, name: str, text: str, save: Path, iterations: int = 2) -> None:
    """Check a run without problems about checkpoints, and train."""
    file = folder / f"{name}.yml"
    text = re.sub(r"(?<![/\w])(data|checkpoints)/", rf"{folder}/\1/", text)
    file.write_text(f"{YAML}save: {save}\nrun_dir: {save}\ntrain_iters: {iterations}\n{text}")
    assert main(["check", str(file), "--gpus", "1"]) == 0
    run_ranks(trained, 1, [resolve([file], [], gpus=1)])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_preference_training_starts_from_a_model(
    folder: Path, name: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = recipe(name).replace(STARTS["all weights"], STARTS[start])
    save = folder / start / name
    text = text.replace("checkpoints/adapters", str(save))
    run(folder, name, text, save)
    assert losses(save)[0] == pytest.approx(math.log(2) if name == "dpo" else 0.5, abs=1e-5)
    # Another beta is told when the run is resumed; nothing is in the way of it.
    resumed = text.replace(f"{name}_beta: 0.1", f"{name}_beta: 0.2").replace("finetune: true\n", "")
    resumed = resumed.replace("load: checkpoints/instruct", f"load: {save}")
    run(folder, f"{name}-resumed", resumed, save, 4)
    told = capsys.readouterr().err
    assert told.count("[checkpoint-training-changed]") == 1 and f"{name}_beta (was 0.1, now 0.2)" in told
    assert len(losses(save)) == 4


def test_a_model_without_reference_cannot_be_resumed_as_one_with(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError):
        run(folder, "resumed", recipe("dpo").replace("finetune: true\n", ""), folder / "other")
    assert "[reference-model-lost]" in capsys.readouterr().err
