"""Accelerate's configuration is judged as Accelerate does: planted mistakes are given to both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, render
from neoxargs.migrate.as_is.files import checked
from tests.support import deepspeed_spy
from tests.support.snapshots import pinned

GOOD = """\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  gradient_accumulation_steps: 2
  zero3_init_flag: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
use_cpu: false
"""


def check(text: str, gpus: int | None = None, name: str = "a.yaml", **versions: str) -> list[Problem]:
    found = checked(Text(name, text), versions, gpus)
    assert found and found.program.name == "Accelerate"
    return [*found.problems]


def accelerate_refuses(text: str, folder: Path) -> bool:
    path = folder / "a.yaml"
    path.write_text(text)
    try:
        load_config_from_file(str(path))
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("num_processes", "num_proceses"),
        ("distributed_type: DEEPSPEED\n", ""),
        ("DEEPSPEED", "DEEP_SPEED"),
        ("DEEPSPEED", "deepspeed"),
        ("LOCAL_MACHINE", "LOCAL"),
        ("num_processes", "tp_config: {}\nnum_processes"),
        ("debug: false", "debug: maybe"),
        ("  zero_stage", "  zero_stge"),
        ("use_cpu: false", "fp16: true\ndynamo_backend: 'NO'"),
        ("num_machines: 1", "num_machines: 1\nnum_machines: 2"),
    ],
)
def test_errors_are_what_accelerate_refuses(old: str, new: str, tmp_path: Path) -> None:
    text = GOOD.replace(old, new, 1) if old else GOOD
    found = check(text, accelerate="1.15.0")
    assert any(problem.severity == "error" for problem in found) == accelerate_refuses(text, tmp_path), render(found)
    assert bool(found) == bool(old) or "fp16" in new


@pytest.mark.parametrize(
    ("key", "value", "in_json"),
    [
        ("zero_stage", "5", {"stage": 5}),
        ("zero_stage", "2", {"stage": 2}),
        ("offload_optimizer_device", "cpuu", {"stage": 3, "offload_optimizer": {"device": "cpuu"}}),
        ("offload_param_device", "cpu", {"stage": 3, "offload_param": {"device": "cpu"}}),
        ("zero3_save_16bit_model", "maybe", {"stage3_gather_16bit_weights_on_model_save": "maybe"}),
    ],
)
def test_values_that_deepspeed_refuses(key: str, value: str, in_json: dict[str, Any]) -> None:
    """Accelerate passes them on; the training ends when DeepSpeed reads its JSON."""
    text = GOOD.replace("  zero_stage: 3\n", f"  {key}: {value}\n")
    try:
        deepspeed_spy.read({"train_batch_size": 8, "zero_optimization": in_json})
        refused = False
    except Exception:
        refused = True
    assert any(problem.severity == "error" for problem in check(text)) == refused
    if refused:
        pinned(render(check(text)))
        assert all(problem.severity == "warning" for problem in check(text.replace("DEEPSPEED", "FSDP")))


def test_beside_a_deepspeed_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}')
    text = GOOD.replace("  zero3_init", "  deepspeed_config_file: ds.json\n  zero3_init")
    pinned(render(check(text)))
    # what the launcher and the training process then do
    fields = [*yaml.safe_load(text)["deepspeed_config"], "mixed_precision"]
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", ",".join(fields))
    from accelerate.utils import DeepSpeedPlugin

    with pytest.raises(ValueError, match="will be ignored"):
        DeepSpeedPlugin(hf_ds_config="ds.json")
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0}')
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "zero3_init_flag")
    with pytest.raises(ValueError, match="ZeRO"):
        DeepSpeedPlugin(hf_ds_config="ds.json")
    text = "\n".join(line for line in text.split("\n") if "zero_stage" not in line and "mixed" not in line)
    pinned(render(check(text.replace("  gradient_accumulation_steps: 2\n", ""))))


def test_the_sentences() -> None:
    text = (
        GOOD.replace("num_machines: 1", "num_machines: 3").replace("bf16\n", "no\n").replace("zero_stage", "zero_stge")
    )
    text = text.replace("debug: false", "debug: maybe\nfsdp_config: {sharding_strategy: 1, fsdp_ofload: true}")
    pinned(render([*check(text + "num_proceses: 8\ntp_config: {}\n"), *check(GOOD, 4)]))
    pinned(render(check(GOOD + "tp_config: {}\n", accelerate="1.15.0")))
