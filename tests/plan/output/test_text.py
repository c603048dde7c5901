"""Verdict, tables and assumptions in the text of a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.plan.command import plan_and_suggest
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.output.text import to_text

YAML = """\
num_layers: 12
hidden_size: 768
num_attention_heads: 12
seq_length: 1024
max_position_embeddings: 1024
train_micro_batch_size_per_gpu: 4
gradient_accumulation_steps: 8
train_iters: 1000
pipe_parallel_size: 2
model_parallel_size: 2
tokenizer_type: HFTokenizer
vocab_file: nowhere.json
"""


def on_gpus_of(memory: float, folder: Path) -> str:
    path = folder / "run.yml"
    path.write_text(YAML)
    return to_text(*plan_and_suggest(PlanOptions([str(path)], gpus=16, gpu_memory=memory)))


@pytest.fixture
def text(tmp_path: Path) -> str:
    return on_gpus_of(40, tmp_path)


def test_the_verdict_comes_first(text: str) -> None:
    assert text.startswith("plan       fits: ")


def test_the_columns_of_the_memory_table_add_up(text: str) -> None:
    lines = text[text.index("memory ") :].split("\n\n")[0].splitlines()[2:]
    rows = [[0.0 if cell in (".", "<0.1") else float(cell) for cell in line.split()[1:]] for line in lines]
    for column in zip(*rows, strict=True):
        assert sum(column[:-1]) == pytest.approx(column[-1], abs=0.05 * len(rows))


def test_a_bar_far_beyond_the_limit_is_cut(tmp_path: Path) -> None:
    lines = on_gpus_of(0.5, tmp_path).splitlines()
    bars = [line.split()[1] for line in lines if "of the usable memory" in line]
    assert [bar[-1] for bar in bars].count("»") >= 1
    assert all(bar.index("┃") >= 10 for bar in bars)


def test_an_assumed_vocabulary_is_mentioned(text: str) -> None:
    assert "because the vocabulary of HFTokenizer is unknown without its file" in " ".join(text.split())


def test_every_stage_and_its_hosts_are_named(text: str) -> None:
    assert "0-5" in text and "6-11" in text
    assert "host0" in text and "host1" in text
