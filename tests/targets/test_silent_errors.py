"""Where GPT-NeoX fails or silently does something else: what docs/from-gpt-neox.md says deepy does, it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import render
from neoxargs.checks.data.files import missing_files
from neoxargs.hosts.hosts import resources
from neoxargs.registry.runner import Runner
from neoxargs.resolve import File, complete, draft
from neoxargs.targets.deepspeed import deepspeed_json
from tests.support.paths import DOCS
from tests.support.refused import refused
from tests.support.targets import SHAPE, configured

MIGRATING = DOCS / "from-gpt-neox.md"


def problems_of(*texts: str) -> str:
    """Every problem's sentence, and the hints."""
    files = [File(f"{index}.yml", text) for index, text in enumerate(texts)]
    return render(refused(lambda: complete(draft(files), 8)))


def varied(text: str) -> str:
    return problems_of(SHAPE, text)


def told(text: str) -> dict[str, Any]:
    """Return what DeepSpeed is told."""
    return deepspeed_json(configured(text))


def numbers(_: Path) -> bool:
    config = configured('{lr: 1e-4, zero_optimization: {reduce_bucket_size: 5e8}, num_workers: "10"}')
    found = (config.optimizer_options.lr, config.zero_optimization.reduce_bucket_size, config.data.num_workers)
    return found == (1e-4, 500_000_000, 10) and "must be a number" in varied("optimizer: {params: {eps: 1.0e_8}}")


def typos(_: Path) -> bool:
    said = varied("{zero_optimization: {recude_bucket_size: 1}, optimizer: {params: {epss: 1}}}")
    return "reduce_bucket_size" in said and "optimizer.params has no key epss" in said


def stray_keys(_: Path) -> bool:
    sent = told("{fp16: {fp16: true, enabled: true}, bf16: {loss_scale: 0, bf16: true, enabled: false}}")
    return sent["fp16"] == {"enabled": True} and sent["bf16"] == {"enabled": False}


def twice(_: Path) -> bool:
    said = problems_of("num-layers: 2", "num_layers: 4\nnum_layers: 5")
    return said.count("num_layers is set twice") == 2


def hosts(folder: Path) -> bool:
    (folder / "hosts").write_text("a slots=8\nb slots=8\n")
    runner = Runner(hostfile=str(folder / "hosts"), include="a:0,1", num_gpus=8)
    return resources(runner, 1, {"CUDA_VISIBLE_DEVICES": "0"}).gpus == 2


def layouts(folder: Path) -> bool:
    texts = ("pipe_parallel_size: 8", "model_parallel_size: 8", "{zero_stage: 2, pipe_parallel_size: 1}")
    said = [
        problem.what for problem in missing_files(configured(f"vocab_file: {folder}/v\ntokenizer_type: HFTokenizer"))
    ]
    return all(varied(text) for text in texts) and any("my_text_document" in what for what in said)


def loss_scaling(_: Path) -> bool:
    sent = told("{precision: fp16, loss_scale_window: 500, min_scale: 4, hysteresis: 3, clip_grad: 0.5}")
    section = {"enabled": True, "loss_scale_window": 500, "min_loss_scale": 4, "hysteresis": 3}
    return sent["fp16"] == section and sent["gradient_clipping"] == 0.5


def rates(_: Path) -> bool:
    said = varied("{lr: 0.1, optimizer: {params: {lr: 0.2}}}")
    return configured("lr: 0.1").optimizer_params.lr == 0.1 and "are the same setting and must be equal" in said


def accumulated(_: Path) -> bool:
    alone = complete(draft([File("my.yml", SHAPE), File("gas.yml", "gas: 3")]), 8)
    both = complete(draft([File("my.yml", SHAPE), File("gas.yml", "{gas: 1, gradient_accumulation_steps: 1}")]), 8)
    warned = [any(warning.about == ("gas",) for warning in found.warnings) for found in (alone, both)]
    return alone.batch.gradient_accumulation_steps == 3 and warned == [True, False]


def schedules(_: Path) -> bool:
    sent = told("scheduler: {type: WarmupLR}")["scheduler"]
    return sent["type"] == "WarmupLR" and "both define the learning rate schedule" in varied(
        "{scheduler: {type: WarmupLR}, lr_decay_style: cosine}"
    )


def llama(_: Path) -> bool:
    mlp = configured("mlp_type: llama\nactivation: silu").mlp
    return mlp.activation == "swiglu" and not mlp.use_bias_in_mlp


def interspersed(_: Path) -> bool:
    kinds = [
        configured(f"sparsity: interspersed\npipe_parallel_size: {stages}").attention.attention_config
        for stages in (0, 2)
    ]
    return kinds[0] == kinds[1] == ["global", "sparse_variable"] * 2


BFLOAT16 = "fp16: {type: bfloat16, enabled: true}"
#: The beginning of an item in the document -> whether what it says of deepy is so.
SILENT: dict[str, Callable[[Path], bool]] = {
    "`gradient_clipping: 1.0` does not clip.": lambda _: told("gradient_clipping: 1.0")["gradient_clipping"] == 1.0,
    "`steps_per_print: 10` prints nothing.": lambda _: told("steps_per_print: 10")["steps_per_print"] == 10,
    "`precision: bf16` trains in fp32.": lambda _: configured("precision: bf16").precision.precision == "bfloat16",
    "Numbers such as": numbers,
    "A typo inside a section is reported late or never.": typos,
    "`fp16: {fp16: true}` stops every rank.": stray_keys,
    "`fp16: {type: bfloat16}` trains in fp16.": lambda _: told(BFLOAT16)["bf16"] == {"enabled": True},
    "Setting both `train_batch_size` and": lambda _: told("train_batch_size: 64")["gradient_accumulation_steps"] == 4,
    "A key in two files": twice,
    "With `include` and `num_gpus`, GPT-NeoX computes": hosts,
    "Layouts that cannot run are launched anyway.": layouts,
    "Loss scaling keys at the top level have no effect.": loss_scaling,
    "`lr` is ignored if `optimizer.params.lr` is set": rates,
    "`gas` is ignored": accumulated,
    "`fp32_allreduce` sums in 16 bits.": lambda _: told("fp32_allreduce: true")["communication_data_type"] == "fp32",
    "`scheduler` is ignored": schedules,
    "`precision: bfloat16` without": lambda _: told("precision: bfloat16")["bf16"] == {"enabled": True},
    "`mlp_type: llama` became": llama,
    "`sparsity: interspersed` makes": interspersed,
}


@pytest.mark.parametrize("item", SILENT)
def test_deepy_does_what_the_document_says(item: str, tmp_path: Path) -> None:
    assert SILENT[item](tmp_path)


def test_the_document_lists_each_of_them() -> None:
    heading = "### Where GPT-NeoX fails or silently does something else"
    _, _, section = MIGRATING.read_text(encoding="utf-8").partition(heading)
    section = section.partition("###")[0]
    items = re.findall(r"^- \*\*(.*)", section, flags=re.M)
    assert len(items) == len(SILENT)
    assert all(item.startswith(start) for item, start in zip(items, SILENT, strict=True))
