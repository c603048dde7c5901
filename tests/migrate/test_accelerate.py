"""The YAML of Accelerate is converted to DeepSpeed's settings; nothing in it is left out silently."""

from __future__ import annotations

import inspect

import pytest
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin

from neoxargs.base.files import Text
from neoxargs.migrate.as_is.keys import entries
from neoxargs.migrate.deepspeed.accelerate import DEFAULTS, Accelerate
from neoxargs.migrate.deepspeed.convert import MICRO_BATCH
from neoxargs.migrate.result import Result
from neoxargs.migrate.source import Options
from neoxargs.migrate.sources import source_of
from neoxargs.resolve import File, draft
from neoxargs.resolve.yaml.nodes import Mapping, node_of
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

FILE = """\
debug: false
deepspeed_config:
  gradient_accumulation_steps: 3
  offload_optimizer_device: cpu
  offload_optimizer_nvme_path: null
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
fsdp_config: {}
main_process_ip: null
main_process_port: 29111
mixed_precision: bf16
num_machines: 3
num_processes: 12
"""


def migrated(text: str) -> Result:
    return Accelerate().converts([Text("a.yaml", text)], Options())


def missing(result: Result) -> tuple[str, ...]:
    [problem] = (each for each in result.problems if each.id == "migrate-model-missing")
    return problem.about


def test_settings_of_accelerate() -> None:
    result = migrated(FILE)
    pinned(result.text.splitlines()[1:-1])
    first, *_ = result.problems
    pinned(first)
    assert str(first.where) == "a.yaml:1:1"
    assert MICRO_BATCH in missing(result)


def test_a_json_that_the_file_names() -> None:
    result = migrated("deepspeed_config: {deepspeed_config_file: z3.json}\nnum_machines: 1\nnum_processes: 2\n")
    pinned(result.problems[0])
    # DeepSpeed's defaults are written into the other file; a key in both would be set twice.
    assert "gradient_clipping" not in result.text
    assert "migrate-optimizer-missing" not in ids(result.problems)
    assert MICRO_BATCH not in missing(result)


def test_absent_keys_have_the_defaults_of_accelerate() -> None:
    """Of what Accelerate passes to DeepSpeed, only these are not DeepSpeed's defaults, which deepy has too."""
    found = entries(node_of(DeepSpeedPlugin().deepspeed_config))
    values = {name: entry.value.to_python() for name, entry in found.items() if not isinstance(entry.value, Mapping)}
    assert {name for name, value in values.items() if value not in ("none", None, False)} == {
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",  # "auto"
        "steps_per_print", *DEFAULTS,
    }  # fmt: skip
    assert values["zero_optimization.stage"] == DEFAULTS["zero_optimization.stage"].value
    assert values["gradient_clipping"] == "auto"
    filled_in = f'"gradient_clipping": {DEFAULTS["gradient_clipping"].value},'
    assert filled_in in inspect.getsource(Accelerator._prepare_deepspeed)
    result = migrated("deepspeed_config: {zero3_init_flag: false}\n")
    pinned(result.text)
    pinned([str(change) for change in result.changes])
    result = migrated("deepspeed_config: {zero_stage: 1, gradient_clipping: 0.5}\n")
    assert result.changes == []


def test_precisions() -> None:
    for value, name in {"BF16": "bf16", "fp16": "fp16", "fp8": "bf16", "'no'": ""}.items():
        result = migrated(f"deepspeed_config: {{zero_stage: 1}}\nmixed_precision: {value}\n")
        on = [name for name, value in draft([File("a.yml", result.text)]).values.items() if value.value is True]
        assert on == ([f"{name}.enabled"] if name else [])
        assert bool(result.to_do) == (value == "fp8")
        assert ("mixed_precision" in str(result.problems)) == (value == "fp8")
    result = migrated("deepspeed_config: {zero_stage: 1}\nmixed_precision: fp8\n")
    pinned(result.to_do)
    pinned(result.problems[0])


def test_a_precision_that_accelerate_refuses() -> None:
    for value in ("bfloat16", "no", "[bf16]"):
        pinned(refused(migrated, f"deepspeed_config:\n  zero_stage: 5\nmixed_precision: {value}\n"))


@pytest.mark.parametrize("kind", ["sp", "cp"])
def test_ranks_that_divide_sequences(kind: str) -> None:
    both = "".join(f"  parallelism_config_{each}_size: {2 if each == kind else 1}\n" for each in ("sp", "cp", "tp"))
    result = migrated(f"deepspeed_config: {{zero_stage: 1}}\nparallelism_config:\n{both}")
    assert "context_parallel_size: 2\n" in result.text
    (problem,) = refused(migrated, f"distributed_type: FSDP\nparallelism_config:\n{both}")
    assert "context_parallel_size" in problem.hint


def test_a_wrong_value_has_its_place() -> None:
    assert str(refused(migrated, "deepspeed_config:\n  zero_stage: 5\n")[0].where) == "a.yaml:2:15"


def test_fsdp_is_refused() -> None:
    text = Text("fsdp.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n")
    source = source_of(text)
    assert source.name == "accelerate"
    pinned(refused(source.converts, [text], Options()))
    # accelerate config also writes the sections that it does not read, without keys
    assert ids(refused(migrated, f"{text.text}deepspeed_config: {{}}\n")) == ["migrate-accelerate-without-deepspeed"]
