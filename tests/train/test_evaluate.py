"""What eval.py measures: log-probabilities that a model alone would give, on every layout, and tasks of the harness."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist

from neoxargs.base.problems import render
from neoxargs.files import metrics
from neoxargs.resolve import resolve
from neoxargs.targets.wire_format import parse_rank_arguments, script_arguments
from neoxargs.train import evaluate, run
from neoxargs.train.evaluate import Perplexity
from neoxargs.train.evaluation import lm_eval_harness
from neoxargs.train.evaluation.lm_eval_harness import Model
from neoxargs.train.evaluation.lm_eval_tasks import Tasks, harness
from neoxargs.train.generation.logprobs import Scorer, ScoringLoss, ScoringRow, windows
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process import setup
from neoxargs.train.process.mesh import Mesh
from tests.support.processes import TINY, write_tokens
from tests.support.ranks import run_ranks
from tests.support.refused import refused
from tests.support.sampling import CPU, EOD, SEQ, UNTIED, Letters, greedy_tokens, one_by_one, one_process
from tests.support.small_gpt import VOCABULARY, batch, small
from tests.support.snapshots import pinned
from tests.support.trials import Trial, staged, started

ROWS = [
    ScoringRow([7, 8, 9], 1),
    ScoringRow([5, *range(10, 26)], 16),
    ScoringRow([30, 31, 32, 33], 2),
    ScoringRow([40], 0),
    ScoringRow([41, 42], 1),
]


class Data:
    """Two micro batches of two samples, the first one with labels that do not count."""

    def has(self, _: str) -> bool:
        return True

    def held_out(self, _: str, evaluation: int = 0) -> Iterator[MicroBatch]:
        tokens, labels = batch(4)
        labels[0, :5] = IGNORED
        return iter([MicroBatch(tokens[:2], labels[:2]), MicroBatch(tokens[2:], labels[2:])])


def on_a_rank(trials: dict[str, Trial]) -> dict[str, tuple[list[tuple[float, bool]], Perplexity]]:
    found = {}
    for name, built in started(trials):
        built.engine.deepspeed.eval()
        scorer = Scorer(built.engine, built.mesh, micro_batch=2)
        found[name] = scorer.score(ROWS), evaluate.perplexity(scorer, Data(), 2, Letters())  # type: ignore[arg-type]
    return found


LAYOUTS = {
    "plain": Trial(UNTIED | {"model_parallel_size": 2}),
    "pipeline": Trial(UNTIED | {"model_parallel_size": 2, "pipe_parallel_size": 2}),
    "ZeRO-3": staged(3, UNTIED),
}


def test_every_layout_scores_as_a_model_alone() -> None:
    gpt = GPT(small(**UNTIED), VOCABULARY, Weights(1), Shared()).eval()
    expected = one_by_one(gpt, ROWS)
    assert len({score for score, _ in expected}) == len(ROWS)
    first, second = (gpt(**vars(each)).item() for each in Data().held_out("validation"))
    loss = (27 * first + 32 * second) / 59
    for ranks in run_ranks(on_a_rank, 4, LAYOUTS, timeout=240):
        for name, (scores, perplexity) in ranks.items():
            assert [best for _, best in scores] == [best for _, best in expected], name
            assert [score for score, _ in scores] == pytest.approx([score for score, _ in expected], abs=1e-3), name
            copies = 1 if name == "pipeline" else 2 if name == "plain" else 4  # each reads the same batches here
            assert perplexity.tokens == 59 * copies
            assert perplexity.to_json()["loss"] == pytest.approx(loss, rel=1e-5)


def test_padding_that_takes_part_in_the_softmax_takes_probability_here_too() -> None:
    gpt = GPT(small(**UNTIED, softmax_over_padding=True), VOCABULARY, Weights(1), Shared()).eval()
    tokens, labels = batch(2)
    expected = gpt(tokens, labels).item()
    gpt.loss = ScoringLoss(gpt.loss)  # type: ignore[assignment]
    assert gpt(tokens, labels).item() == pytest.approx(expected, rel=1e-6)
    assert gpt(tokens).shape[-1] == VOCABULARY.size


def test_windows_score_each_token_once_with_all_the_context_there_is() -> None:
    assert windows([1, 2, 3], 9, 4) == [ScoringRow([9, 1, 2, 3], 3)]
    assert windows([1, 2, 3, 4, 5], 9, 4) == [ScoringRow([9, 1, 2, 3, 4], 4), ScoringRow([1, 2, 3, 4, 5], 1)]
    assert windows([], 9, 4) == []


def test_a_continuation_that_merges_with_its_context_scores_nothing() -> None:
    class Merging(Letters):
        def tokenize(self, text: str) -> list[int]:
            return [40] if text == "abc" else super().tokenize(text)  # type: ignore[no-untyped-call, no-any-return]

    assert lm_eval_harness._scoring_row(("ab", "c"), Merging(), 8) == ScoringRow([40], 0)  # type: ignore[arg-type]
    assert lm_eval_harness._scoring_row(("ab", "cd"), Merging(), 8) == ScoringRow([0, 1, 2, 3], 2)  # type: ignore[arg-type]


def test_figures_by_token_word_and_byte() -> None:
    found = Perplexity(nats=10 * math.log(2), tokens=10, words=2, bytes=5).to_json()
    expected = {"loss": math.log(2), "perplexity": 2, "word_perplexity": 32, "byte_perplexity": 4, "bits_per_byte": 2}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert "bits_per_byte" not in Perplexity(1.0, 1, 0, 0).to_json()


class Engine:
    """A GPT as DeepSpeed's engine would hold it."""

    device = CPU

    def __init__(self) -> None:
        self.module = GPT(small(**UNTIED), VOCABULARY, Weights(1234), Shared())

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)

    def eval(self) -> None:
        self.module.eval()


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> Model:
    built = SimpleNamespace(deepspeed=Engine())
    return Model(Scorer(built, Mesh(), 2), one_process())  # type: ignore[arg-type]


def test_a_continuation_ends_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval_harness, "STOP_CHECK_INTERVAL", 4)
    ids, _ = greedy_tokens([0, 1, 2], 40)
    text = Letters().detokenize(ids[: ids.index(EOD)])
    assert len(text) > 2 * lm_eval_harness.STOP_CHECK_INTERVAL
    asked = model()
    assert asked.generate(["abc"], [], {"maximum_tokens": 40}) == [text]
    stop = text[5:7]
    assert asked.generate(["abc"], [stop], {"maximum_tokens": 40}) == [text[: text.index(stop)]]
    long = "abcdefghijklmnopqrst"  # loses its beginning, so that there is room for what follows
    assert asked.generate([long], [], {"maximum_tokens": 4}) == asked.generate([long[-12:]], [], {"maximum_tokens": 4})


def led() -> tuple[Any, Any]:
    """Rank 0 asks, the others follow."""
    asked = model()
    if dist.get_rank():
        asked.serve()
        return None, None
    found = asked.call("score", ROWS), asked.call("generate", ["abc", "x"], ["q"], {"maximum_tokens": 3})
    asked.call("end")
    return found


def test_all_ranks_answer_what_rank_0_asks() -> None:
    (scores, texts), _ = run_ranks(led, 2)
    expected = one_by_one(model().scorer.trainer.deepspeed.module, ROWS)
    assert [best for _, best in scores] == [best for _, best in expected]
    assert [score for score, _ in scores] == pytest.approx([score for score, _ in expected], abs=1e-3)
    assert texts == model().generate(["abc", "x"], ["q"], {"maximum_tokens": 3})


def trained_and_evaluated(folder: str) -> None:
    """Trained in a pipeline of one stage, where tied weights stand twice, evaluated with tensor parallelism."""
    with patch.object(setup, "stop"):
        for script, layout in ((run.run, "pipe_parallel_size=1"), (evaluate.run, "model_parallel_size=2")):
            config = resolve([f"{folder}/run.yml"], [layout], gpus=2)
            script(parse_rank_arguments(script_arguments(config)))
            dist.barrier()  # rank 0 finishes the checkpoint last


def reported_and_found(folder: Path, **changes: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train and evaluate; return the rows of evaluations in the metrics, and the results."""
    places = {"save": str(folder / "run"), "eval_results_prefix": str(folder / "mine")}
    (folder / "run.yml").write_text(json.dumps(TINY | places | {"train_iters": 2} | changes))
    run_ranks(trained_and_evaluated, 2, str(folder), timeout=240)
    [results] = folder.glob("mine_eval_results_*.json")
    rows = metrics.read(folder / "run" / metrics.FILE)
    return [row for row in rows if row["event"] == "evaluation"], json.loads(results.read_text())


@pytest.mark.parametrize(("changes", "equal"), [
    ({}, True), ({"eval_interval": 1, "repeat_eval_samples": True}, True), ({"eval_interval": 1}, False),
])  # fmt: skip
def test_the_loss_is_that_of_training_on_the_samples_of_its_first_evaluation(
    tmp_path: Path, changes: dict[str, Any], equal: bool
) -> None:
    rows, found = reported_and_found(tmp_path, data_path=str(write_tokens(tmp_path)), eval_iters=3, **changes)
    *_, reported = (row["loss"] for row in rows if row["split"] == "validation")
    assert found["checkpoint"].endswith("global_step2")
    assert (found["validation"]["loss"] == pytest.approx(reported, rel=1e-5)) == equal
    _, line = evaluate.result_lines(found)
    assert line.endswith(" | on the samples of the first evaluation of train.py")
    assert found["validation"]["tokens"] == 3 * 4 * 32


@pytest.mark.slow
def test_named_sets_have_their_mean_as_in_training(tmp_path: Path) -> None:
    tokens = str(write_tokens(tmp_path))
    sets = {"web": tokens, "law": {"data_paths": tokens, "weight": 3}}
    rows, found = reported_and_found(tmp_path, data_path=tokens, split="9,0,1", validation=sets)
    reported = {row["split"]: row["loss"] for row in rows}
    for part in ("validation/web", "validation/law", "validation"):
        assert found[part]["loss"] == pytest.approx(reported[part], rel=1e-5)
    assert found["validation"]["perplexity"] == pytest.approx(math.exp(reported["validation"]), rel=1e-5)
    pinned(
        [line.partition(" | ")[::2] for line in evaluate.result_lines({"checkpoint": "x", "validation": {"loss": 2.0}})]
    )


def test_results_are_written_completely_or_not_at_all(tmp_path: Path) -> None:
    config = small(eval_results_prefix=str(tmp_path / "mine"))
    written = evaluate.write_results({"checkpoint": "x"}, config)
    assert [*tmp_path.iterdir()] == [written] and json.loads(written.read_text()) == {"checkpoint": "x"}
    written.unlink()
    with patch("os.replace", side_effect=OSError(28, "No space left on device")), pytest.raises(OSError):
        evaluate.write_results({"checkpoint": "x"}, config)
    assert [*tmp_path.iterdir()] == []


def test_nothing_to_evaluate_on() -> None:
    pinned(refused(evaluate.for_evaluation, small(save="x")))


def test_data_without_evaluation_iterations() -> None:
    (problem,) = refused(evaluate.for_evaluation, small(save="x", data_path="d", eval_iters=0))
    pinned(problem)
    assert problem.about == ("eval_iters", "eval_tasks")


def test_without_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*(name for name in sys.modules if name.startswith("lm_eval.")), "lm_eval", "lm_eval.evaluator"]:
        monkeypatch.setitem(sys.modules, name, None)
    problems = refused(lambda: harness("evaluator"))
    pinned(render(problems), "[package-missing]")
    assert "pip install -c constraints.txt lm_eval" in render(problems)


TASKS: dict[str, dict[str, Any]] = {
    "choose": {
        "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": ["{{good}}", "{{bad}}"],
        "doc_to_target": 0, "target_delimiter": "", "metric_list": [{"metric": "acc"}],
    },
    "continue": {
        "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{good}}",
        "generation_kwargs": {"until": ["0"], "max_gen_toks": 4}, "metric_list": [{"metric": "exact_match"}],
    },
    "read": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestHarness:
    @pytest.fixture
    def files(self, tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The tasks; their right answer is what the model says."""
        pytest.importorskip("lm_eval", reason="lm_eval is not installed")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
        questions = ["abc", "xy", "hellofyou"]
        said = model().generate(questions, ["0"], {"maximum_tokens": 4})
        data = tmp_path / "data.json"
        rows = [{"question": q, "good": a, "bad": "zzzz"} for q, a in zip(questions, said, strict=True)]
        data.write_text("\n".join(map(json.dumps, rows)))
        common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
        for name, task in TASKS.items():
            (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": f"mine_{name}", **common, **task}))
        return [str(tmp_path / f"{name}.yaml") for name in TASKS]

    def test_local_tasks(self, files: list[str]) -> None:
        found = lm_eval_harness.run_tasks(Tasks(files, seed=1), model())["results"]
        assert found["mine_choose"]["acc,none"] == 1
        assert found["mine_continue"]["exact_match,none"] == 1
        texts = ["abc", "xy", "hellofyou"]
        rows = [row for text in texts for row in windows(Letters().tokenize(text), Letters.eod, SEQ)]
        nats = -sum(score for score, _ in one_by_one(Engine().module.eval(), rows))
        bits = nats / math.log(2) / sum(map(len, texts))
        assert found["mine_read"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)

    def test_tasks_of_a_folder_and_the_first_examples(self, files: list[str]) -> None:
        folder = str(Path(files[0]).parent)
        tasks = Tasks(["mine_choose", "mine_read"], seed=1, folder=folder, limit=2)
        found = lm_eval_harness.run_tasks(tasks, model())
        assert found["n-samples"]["mine_choose"] == {"original": 3, "effective": 2}
        again = lm_eval_harness.run_tasks(tasks, model())  # the tasks that are loaded already
        assert lm_eval_harness.measured(again) == lm_eval_harness.measured(found)
        pinned(refused(lambda: Tasks(["mine_chose"], seed=1, folder=folder).load()))

    def test_unknown_tasks(self, files: list[str]) -> None:
        problems = refused(
            lambda: lm_eval_harness.run_tasks(Tasks([*files, "helaswag", "absent.yaml"], seed=1), model())
        )
        assert (
            "eval_tasks (helaswag): lm_eval has no such task [evaluation-task-unknown]\n  = did you mean hellaswag?"
            in render(problems)
        )
        assert "eval_tasks (absent.yaml): there is no such file" in render(problems)
