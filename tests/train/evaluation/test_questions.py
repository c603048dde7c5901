"""Tasks and prompts during training: answered by the model as it is, and training goes on as if nobody had asked."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from neoxargs.files import metrics as run_metrics
from neoxargs.registry.generation import Generation
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.generation.loading import make_generator
from neoxargs.train.generation.logprobs import Scorer, ScoringRow
from neoxargs.train.generation.paused import paused
from neoxargs.train.losses.cross_entropy import Loss
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process import mesh, setup
from tests.support.processes import start_ranks
from tests.support.ranks import run_ranks
from tests.support.sampling import CPU, EOD, UNTIED, Letters, greedy_tokens, one_by_one
from tests.support.small_gpt import VOCABULARY, small
from tests.support.trials import Training, Trial, staged

MODEL = UNTIED | {"hidden_dropout": 0.1, "attention_dropout": 0.1, "seed": 1234}
ROWS = [ScoringRow([7, 8, 9], 1), ScoringRow([5, *range(10, 26)], 16), ScoringRow([41, 42], 1)]
PROMPTS = ["abc", "x"]
QUICK = {
    "sequence parallel": Trial(MODEL | {"model_parallel_size": 2, "sequence_parallel": True}),
    "pipeline": Trial(MODEL | {"pipe_parallel_size": 2, "checkpoint_activations": True}),
}
SLOW = {
    "tensor, pipeline": Trial(MODEL | {"model_parallel_size": 2, "pipe_parallel_size": 2}),
    "tensor, pipeline, sequence": Trial(
        MODEL | {"model_parallel_size": 2, "pipe_parallel_size": 2, "sequence_parallel": True}
    ),
    "ZeRO-1, tensor": Trial(MODEL | {"model_parallel_size": 2}, {"zero_optimization": {"stage": 1}}),
    "ZeRO-2": staged(2, MODEL),
    "ZeRO-3": staged(3, MODEL),
    "experts": Trial(MODEL | {
        "moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", "moe_jitter_eps": 0.1,
        "moe_aux_loss_coeff": 0.1, "model_parallel_size": 2,
    }),
    "one of two layers": Trial(
        MODEL | {"num_layers": 4, "num_unique_layers": 2, "pipe_parallel_size": 2}
    ),
}  # fmt: skip


class Asked(Training):
    """A trial that is asked questions: scores of rows, continuations of prompts."""

    def ask(self) -> tuple[list[tuple[float, bool]], list[list[int]]]:
        process = setup.Process(0, 0, 1, self.engine.deepspeed.device)
        generator = make_generator(self.engine, self.config, Letters(), self.mesh, process)  # type: ignore[arg-type]
        generator.options = Generation(maximum_tokens=20)
        samples = [generator.sample(prompt) for prompt in PROMPTS]
        with paused(self.engine):
            scores = Scorer(self.engine, self.mesh, micro_batch=3).score(ROWS)
            generator.finish(samples)
            for draw in (random.random, np.random.random, lambda: torch.rand(3)):  # as a task may
                draw()
        return scores, [sample.ids for sample in samples]


def on_a_rank(trials: dict[str, Trial]) -> dict[str, Any]:
    """Train each trial without questions and with them; return its answers before the first step."""
    setup.start("gloo", seed=1)
    answers = {}
    for name, trial in trials.items():
        ends = []
        for asks in (False, True):
            run = Asked(trial)
            if asks:
                answers[name] = run.ask()
            steps = [run.engine.train_step(run.batches)]
            held_out = run.engine.evaluate(run.micro_batches(0), 1).loss
            if asks:
                run.ask()
            steps.append(run.engine.train_step(run.batches))
            weights = {
                key: weight.detach().clone() for key, weight in named_weights(run.engine.deepspeed.module).items()
            }
            draws = random.random(), np.random.random(), torch.rand(3).tolist()
            ends.append(([(step.loss, step.grad_norm) for step in steps], held_out, draws, weights))
            mesh.destroy_groups()
        (*plain, plain_weights), (*asked, asked_weights) = ends
        assert plain == asked, name
        for key, weight in plain_weights.items():
            assert torch.equal(weight, asked_weights[key]), (name, key)
    return answers


def check(trials: dict[str, Trial], ranks: int) -> None:
    alone = one_by_one(GPT(small(**UNTIED), VOCABULARY, Weights(1234), Shared()).eval(), ROWS)
    for of_rank in run_ranks(on_a_rank, ranks, trials, timeout=400):
        for name, (scores, ids) in of_rank.items():
            if trials[name].config.keys() & {"num_unique_layers", "moe_num_experts"}:  # another model
                continue
            for (score, best), (expected, likeliest) in zip(scores, alone, strict=True):
                assert (score, best) == (pytest.approx(expected, abs=1e-3), likeliest), name
            assert ids == [greedy(prompt) for prompt in PROMPTS], name


def greedy(prompt: str) -> list[int]:
    ids, _ = greedy_tokens(Letters().tokenize(prompt), 20)  # type: ignore[no-untyped-call]
    return ids[: ids.index(EOD)] if EOD in ids else ids


def test_training_continues_bit_for_bit() -> None:
    check(QUICK, 2)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_training_continues_bit_for_bit_on_other_layouts() -> None:
    check(SLOW, 4)


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() + 1


@pytest.mark.slow
def test_compiled_layers_are_not_compiled_for_every_length() -> None:
    lengths: list[int] = []

    def backend(graph: Any, inputs: list[torch.Tensor]) -> Any:
        lengths.append(len(inputs))
        return graph.forward

    module = torch.nn.Sequential(Layer())
    module.loss = Loss(VOCABULARY)  # type: ignore[assignment]
    module[0].compile(backend=backend, dynamic=False)
    engine = SimpleNamespace(module=module, device=CPU, eval=module.eval, train=module.train)
    with paused(SimpleNamespace(deepspeed=engine)):  # type: ignore[arg-type]
        assert not module.training
        for length in range(1, 12):
            module(torch.ones(length, 4))
    assert module.training and not lengths
    module(torch.ones(3, 4))
    assert len(lengths) == 1


TASK = {
    "task": "letters", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice",
    "doc_to_text": "{{question}}", "doc_to_choice": ["{{good}}", "{{bad}}"], "doc_to_target": 0,
    "metric_list": [{"metric": "acc"}],
}  # fmt: skip


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one task, whose data is a file."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = folder / "data.json"
    rows = [{"question": f"{n} is", "good": " a", "bad": " number"} for n in range(9)]
    data.write_text("\n".join(map(json.dumps, rows)))
    task = TASK | {"dataset_kwargs": {"data_files": {"test": str(data)}}}
    (folder / "letters.yaml").write_text(json.dumps(task))
    return folder


def rows_of(folder: Path, *events: str) -> list[dict[str, Any]]:
    return [row for row in run_metrics.read(folder / "out" / run_metrics.FILE) if row["event"] in events]


def train(folder: Path, **changes: Any) -> str:
    """Run train.py on two ranks and return what rank 0 printed."""
    folder.mkdir(exist_ok=True)
    with start_ranks(folder, 2, model_parallel_size=2, eval_interval=6, **changes) as ranks:
        codes, printed, errors = ranks.wait(300)
    assert codes == [0, 0], errors
    assert "it/s]" not in errors  # progress bars
    return printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_stops_and_continues_is_asked_once_at_each_iteration(tmp_path: Path, tasks: Path) -> None:
    train(tmp_path / "plain")
    folder, prompts = tmp_path / "asked", tmp_path / "prompts.txt"
    prompts.write_text(f"class\n{'x = 1; ' * 99}\n")
    asked = {
        "eval_tasks": ["letters"], "eval_tasks_path": str(tasks), "eval_tasks_interval": 4, "eval_tasks_limit": 5,
        "eval_prompts": ["def <b>"], "eval_prompts_file": str(prompts), "maximum_tokens": 8,
        "save": str(folder / "out"),
        "tensorboard_dir": str(folder / "tensorboard"),
    }  # fmt: skip
    train(folder, exit_interval=8, **asked)
    printed = train(folder, load=str(folder / "out"), **asked)
    losses = [[(row["step"], row["loss"]) for row in rows_of(run, "step")] for run in (tmp_path / "plain", folder)]
    assert losses[0] == losses[1]
    results, answers = rows_of(folder, "tasks"), rows_of(folder, "answers")
    assert [row["step"] for row in results] == [0, 4, 8, 12]
    assert [row["step"] for row in answers] == [0, 4, 6, 8, 12]
    assert all(0 <= row["results"]["letters"]["acc"] <= 1 for row in results)
    expected = ["def <b>", "class", ("x = 1; " * 99).strip()]
    assert all([answer["prompt"] for answer in row["answers"]] == expected for row in answers)
    assert "warning: the prompt 'x = 1;" in printed and " has 692 tokens; with up to 8 new tokens" in printed
    assert "letters after iteration 12 | acc " in printed
    assert "answer after iteration 12 | def <b> " in printed
    page = (folder / "out" / "report.html").read_text()
    assert all(f"<dt>{label}</dt>" in page for label in ("resumed at iteration 8", "written"))
    assert "def &lt;b&gt;" in page and "<b>\n" not in page
    assert ">letters</text>" in page
    assert (folder / "tensorboard").exists() and f"  tensorboard {folder / 'tensorboard'}" in printed
