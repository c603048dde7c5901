"""Which style of context parallelism a configuration gets, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problem, Problems
from neoxargs.cli import main
from neoxargs.facts.context import in_words, parts_of_sequence, style_of, undivided_evaluation
from tests.support.configure import configure
from tests.support.smallest import YAML

LLAMA = {
    "context_parallel_style": "auto", "context_parallel_size": 8, "model_parallel_size": 1, "num_attention_heads": 32,
    "num_kv_heads": 8, "hidden_size": 4096, "head_dim": None, "attention_dropout": 0.0, "pos_emb": "rotary",
    "attention_backend": "auto", "attention_config": ["global"], "soft_prompt_tuning.enabled": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "style"),
    [
        ({}, "all_to_all"),
        ({"context_parallel_size": 16}, "all_to_all"),
        ({"context_parallel_size": 6}, "hybrid"),
        ({"context_parallel_size": 3}, "ring"),
        ({"context_parallel_size": 16, "model_parallel_size": 4}, "hybrid"),
        ({"model_parallel_size": 8}, "ring"),
        ({"context_parallel_size": 3, "attention_dropout": 0.1}, "all_to_all"),
        ({"context_parallel_size": 3, "pos_emb": "rpe"}, "all_to_all"),
        ({"context_parallel_style": "ring"}, "ring"),
        ({"context_parallel_style": "hybrid"}, "all_to_all"),
        ({"context_parallel_style": "hybrid", "model_parallel_size": 8}, "ring"),
        ({"context_parallel_style": "hybrid", "model_parallel_size": 4}, "hybrid"),
        ({"context_parallel_size": 6, "attention_config": ["mamba", "global"]}, "hybrid"),
        ({"context_parallel_size": 6, "attention_config": ["mamba", "rwkv"]}, "all_to_all"),
    ],
)
def test_a_ring_where_ranks_cannot_divide_the_heads(changes: dict[str, Any], style: str) -> None:
    found, why = style_of((LLAMA | changes).__getitem__)
    assert found == style and why


@pytest.mark.parametrize("asked", ["eval_prompts: [a]", "eval_prompts_file: prompts.txt", "eval_tasks: [lambada]"])
def test_generation_within_training_is_refused(asked: str) -> None:
    with pytest.raises(Problems) as refused:
        configure(f"context_parallel_size: 2\n{asked}\n", gpus=2)
    [problem] = refused.value.problems
    assert {"context_parallel_size", asked.partition(":")[0]} <= {*problem.about}


SHOWN = {"check": [], "plan": ["--device", "H100-80GB"], "preview": [], "explain": ["context_parallel_style"]}


@pytest.mark.parametrize("command", SHOWN)
@pytest.mark.parametrize("ranks", [1, 4])
def test_the_style_and_why_are_shown_before_a_launch(
    command: str, ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = YAML.replace("heads: 4", "heads: 6") + f"num_kv_heads: 2\nhead_dim: 16\ncontext_parallel_size: {ranks}\n"
    (file := tmp_path / "my.yml").write_text(text, encoding="utf-8")
    main([command, *SHOWN[command], str(file), "--gpus", "4"])
    words = in_words(configure(text, gpus=4))
    assert words.startswith("hybrid over 2 x 2 ranks") if ranks > 1 else not words
    shown = " ".join(capsys.readouterr().out.split())
    assert words in shown and ("hybrid over" in shown) == (ranks > 1)
    if command != "explain":
        main([command, *SHOWN[command], str(file), "--gpus", "4", "--json"])
        found = json.loads(capsys.readouterr().out)["context_parallel"]
        assert found is None if ranks == 1 else (found["style"], found["ranks_exchanging_heads"]) == ("hybrid", 2)


@pytest.mark.parametrize(
    ("iters", "steps", "unit"), [(10, 1, 4), (10, 2, 0), (8, 1, 0), (0, 1, 0), (1, 2, 2), (1, 6, 2)]
)
def test_what_eval_py_cannot_divide_is_told_at_its_line(iters: int, steps: int, unit: int) -> None:
    def found(iters: int) -> list[Problem]:
        lines = f"context_parallel_size: 4\neval_iters: {iters}\ngradient_accumulation_steps: {steps}\n"
        return list(undivided_evaluation(configure(lines + "num_attention_heads: 4\nhidden_size: 64\n", gpus=4)))

    told = found(iters)
    assert [problem.where.line for problem in told if problem.where] == [2] * bool(unit)
    if told:
        assert int(told[0].hint.split()[-1]) == unit == min(n for n in range(1, 9) if not found(n))


def test_a_sequence_has_two_chunks_for_each_rank_of_what_may_be_a_ring() -> None:
    assert parts_of_sequence("auto", 4, 1) == {"2": 2, "context_parallel_size": 4}
    assert parts_of_sequence("all_to_all", 4, 2) == {"context_parallel_size": 4, "model_parallel_size": 2}
    assert parts_of_sequence("ring", 1, 2) == {"model_parallel_size": 2}
