"""Adapters from their first step to text and export: saved alone, resumed with every layout, merged, read by peft."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.convert.huggingface import exporting, importing
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.model.lora.adapters import is_adapter
from neoxargs.train.process import mesh
from tests.support.damage import damage_weights
from tests.support.frozen_runs import configured, generated, losses, prompted, saved, trained, trained_base
from tests.support.ranks import run_ranks
from tests.support.trials import Trial, train

LORA = "lora: {rank: 4, dropout: 0.1, targets: [q_proj, v_proj, dense, dense_h_to_4h]}\n"
#: Ranks, and what the configuration says about them.
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor": 2},
    "pp2": {"pipe": 2},
    "ZeRO-1": {"gpus": 2, "zero_optimization.stage": 1},
    "ZeRO-3": {"gpus": 2, "zero_optimization.stage": 3},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text and with a model that was trained for two steps."""
    return trained_base(tmp_path_factory.mktemp("base"))


@pytest.mark.slow
def test_checkpoints_contain_adapters_and_record_their_model(base: Path, tmp_path: Path) -> None:
    """The run starts from the model, resumes bit for bit, and generates text."""
    start: dict[str, Any] = {"load": base / "base", "finetune": "true"}
    whole = configured(base, LORA, train_iters=4, save=tmp_path / "whole", **start)
    first = configured(base, LORA, train_iters=2, save=tmp_path / "parts", base_checkpoint=base / "base")
    second = configured(base, LORA, train_iters=4, save=tmp_path / "parts", load=tmp_path / "parts")
    run_ranks(trained, 1, [whole, first, second])
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    ends = [saved(tmp_path / name / "global_step4") for name in ("whole", "parts")]
    assert ends[0].keys() == ends[1].keys() and all(map(is_adapter, ends[0]))
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    model = base / "base" / "global_step2"
    assert checkpoint_folder.recorded_base(tmp_path / "parts" / "global_step4") == checkpoint_folder.Base.of(model)
    folders = tmp_path / "parts" / "global_step4", model
    sizes = [sum(file.stat().st_size for file in folder.rglob("*.pt")) for folder in folders]
    assert sizes[0] < sizes[1] / 2
    plain = prompted(base, tmp_path, "", base / "base", "some w")
    assert prompted(base, tmp_path, LORA, tmp_path / "parts", "some w") != plain


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_every_layout_resumes_the_checkpoint_of_every_other(base: Path, tmp_path: Path) -> None:
    """A run of one process is continued on each layout, and each layout's on one process."""
    text = LORA.replace("dropout: 0.1", "dropout: 0")

    def run(name: str, iterations: int, load: str = "", **sizes: Any) -> Any:
        loaded = {"load": tmp_path / load, "iteration": 2} if load else {"base_checkpoint": base / "base"}
        return configured(base, text, train_iters=iterations, save=tmp_path / name, **loaded, **sizes)

    run_ranks(trained, 1, [run("one", 4)])
    runs = []
    for name, sizes in LAYOUTS.items():
        runs += [run(name, 4, **sizes), run(f"{name} resumed", 4, name, **sizes)]
        runs += [run(f"one to {name}", 4, "one", **sizes)]
    run_ranks(trained, 2, runs, timeout=300)
    run_ranks(trained, 1, [run(f"{name} to one", 4, name) for name in LAYOUTS], timeout=200)
    expected, end = losses(tmp_path / "one"), saved(tmp_path / "one" / "global_step4")
    for name in LAYOUTS:
        assert losses(tmp_path / name) == pytest.approx(expected, rel=1e-5), name
        assert losses(tmp_path / f"{name} resumed") == losses(tmp_path / name)[2:], name
        for other in (f"one to {name}", f"{name} to one"):
            assert losses(tmp_path / other) == pytest.approx(expected[2:], rel=1e-5), other
        for folder in (name, f"{name} resumed", f"one to {name}", f"{name} to one"):
            found = saved(tmp_path / folder / "global_step4")
            assert found.keys() == end.keys()
            for weight, value in end.items():
                torch.testing.assert_close(found[weight], value, rtol=1e-3, atol=1e-4, msg=f"{folder}: {weight}")


PROMPT = "soft_prompt_tuning: {enabled: true, num_tokens: 2}\n"


def refusals(runs: list[tuple[str, Config]]) -> list[list[str]]:
    """Return the ids of the problems with which each run ends, on this rank."""
    found = []
    for program, config in runs:
        try:
            trained([config]) if program == "train" else generated(config)
            found.append([])
        except Problems as problems:
            found.append([problem.id for problem in problems.problems])
            mesh.destroy_groups()
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_damaged_frozen_model_is_noticed_wherever_it_is_loaded(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage that keeps the sizes of files: training, resuming, generating and both exports read every byte first."""
    model, damaged = tmp_path / "base" / "global_step2", ["base-checkpoint-damaged"]
    shutil.copytree(base / "base", model.parent)
    start: dict[str, Any] = {"train_iters": 2, "base_checkpoint": model.parent}
    runs = [configured(base, text, save=tmp_path / name, **start) for name, text in (("lora", LORA), ("soft", PROMPT))]
    run_ranks(trained, 1, runs)
    file = damage_weights(model)

    def resumed(name: str, text: str, **more: Any) -> Config:
        return configured(base, text, load=tmp_path / name, **{"train_iters": 4, "save": tmp_path / "x", **more})

    prompt: dict[str, Any] = {"text_gen_type": "unconditional", "prompt": "some", "train_iters": 1}
    [found] = run_ranks(refusals, 1, [
        *(("train", configured(base, text, save=tmp_path / "new", **start)) for text in (LORA, PROMPT)),
        *(("train", resumed(*which)) for which in (("lora", LORA), ("soft", PROMPT))),
        *(("generate", resumed(*which, **prompt)) for which in (("lora", LORA), ("soft", PROMPT))),
    ])  # fmt: skip
    assert found == [damaged] * 6
    [on_two, again] = run_ranks(refusals, 2, [("train", resumed("lora", LORA, gpus=2))])
    assert on_two == again == [damaged]
    configured(base, LORA, train_iters=1)  # writes my.yml
    words = [str(base / "my.yml"), "--gpus", "1", "--set", "train_iters=1", "--set", f"load={tmp_path / 'lora'}"]
    for kind in ("huggingface", "neox"):
        assert exporting.main([*words, "--format", kind, "--to", str(tmp_path / kind)]) == 1
        told = capsys.readouterr().err
        assert f"the model in {model} cannot be loaded: {file.name} has the checksum" in told
        assert not (tmp_path / kind).exists()


MATRIX = "layers.1.attention.query_key_value.weight"


def merged_rows(folder: Path) -> torch.Tensor:
    """Return MATRIX of an exported model."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")[f"gpt_neox.{MATRIX}"]


@pytest.mark.slow
def test_peft_and_transformers_load_what_is_exported(base: Path, tmp_path: Path) -> None:
    """Logits of the model with exported adapters are those of the model into which they are merged."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    run_ranks(trained, 1, [configured(base, LORA, train_iters=2, save=tmp_path / "run", base_checkpoint=base / "base")])
    words = [str(base / "my.yml"), "--gpus", "1", "--set", "train_iters=1"]
    adapter = ["--adapter", "--base-model", "base"]
    for name, load, options in (("merged", "run", []), ("adapter", "run", adapter), ("base", "base", [])):
        chosen = ["lora.rank=0", f"load={base / 'base'}"] if load == "base" else [f"load={tmp_path / 'run'}"]
        changes = [word for change in chosen for word in ("--set", change)]
        assert exporting.main([*words, *changes, "--to", str(tmp_path / name), *options]) == 0
    gpt_neox = ["--set", f"load={tmp_path / 'run'}", "--format", "neox", "--to", str(tmp_path / "neox")]
    assert exporting.main([*words, *gpt_neox]) == 0
    assert importing.main([str(tmp_path / "neox"), "--to", str(tmp_path / "back")]) == 0
    tokens = torch.arange(97, 113).unsqueeze(0)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(tokens).logits
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    before = model(tokens).logits
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (settings["r"], settings["base_model_name_or_path"]) == (4, "base")
    with warnings.catch_warnings():  # peft 0.21 calls a function that transformers 5 has deprecated
        warnings.simplefilter("ignore", FutureWarning)
        adapted = peft.PeftModel.from_pretrained(model, tmp_path / "adapter")
    rows = merged_rows(tmp_path / "merged")
    torch.testing.assert_close(saved(next((tmp_path / "back").glob("global_step*")))[MATRIX], rows, rtol=0, atol=1e-6)
    torch.testing.assert_close(adapted.eval()(tokens).logits, merged, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(merged, before, rtol=1e-2, atol=1e-3)


ADAPTERS: dict[str, Any] = {"lora.rank": 4, "lora.targets": ["all-linear"]}
HALF, ZERO_2 = {"bf16": {"enabled": True}}, {"zero_optimization": {"stage": 2}}
OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}


@pytest.mark.slow
def test_every_precision_and_optimizer_trains_them() -> None:
    """Also with tied weights whose gradients a pipeline would otherwise sum, and with recomputed layers."""
    pipeline, bf16 = {**ADAPTERS, "pipe_parallel_size": 2}, {"precision": "bfloat16"}
    trials = {
        "replicas": Trial(ADAPTERS), "pipeline": Trial(pipeline),
        "selective": Trial(ADAPTERS | {"checkpoint_activations": "selective"}),
        "DeepSpeed's recomputation": Trial(
            ADAPTERS | {"checkpoint_activations": True, "deepspeed_activation_checkpointing": True}
        ),
        "offloaded": Trial(
            ADAPTERS | {"zero_optimization.stage": 2, "zero_optimization.offload_optimizer.device": "cpu"}, OFFLOADED
        ),
        "bf16": Trial(ADAPTERS | bf16, HALF), "bf16 pipeline": Trial(pipeline | bf16, HALF),
        "bf16 ZeRO-2": Trial(ADAPTERS | bf16 | {"zero_optimization.stage": 2}, HALF | ZERO_2),
        "bf16 tp2": Trial(ADAPTERS | bf16 | {"model_parallel_size": 2, "sequence_parallel": True}, HALF),
    }  # fmt: skip
    [found, _] = run_ranks(train, 2, trials, 3, timeout=300)
    expected = found["replicas"]
    assert expected.train[2] < expected.train[0]
    for name, outcome in found.items():
        tolerance = 2e-3 if "bf16" in name else 1e-5
        assert outcome.train == pytest.approx(expected.train, rel=tolerance), name
        assert outcome.norms == pytest.approx(expected.norms, rel=20 * tolerance), name
