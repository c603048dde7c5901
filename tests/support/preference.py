"""Preference pairs for tests, and DPO on them written with transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.finetuning import IGNORED, drawn, token_file

BETA, RATE = 0.5, 0.1


class Answers(NamedTuple):
    """The documents of one of the two answers, prompt first, and their labels."""

    documents: list[list[int]]
    labels: list[list[int]]


class Pairs(NamedTuple):
    chosen: Answers
    rejected: Answers


def written(folder: Path, count: int, longest: int) -> Pairs:
    """Write the four token files of pairs of prompt and answer, with at most `longest` tokens; return the documents."""
    return _written(folder, count, longest, *(drawn(count, longest - longest // 2, seed) for seed in (2, 3)))


def learnable(folder: Path, count: int, longest: int) -> Pairs:
    """Write pairs of which the preferred answers consist of one token, and the rejected ones of another."""
    return _written(folder, count, longest, *([[token] * (longest // 2)] * count for token in b"AB"))


def _written(folder: Path, count: int, longest: int, *answers: list[list[int]]) -> Pairs:
    prompts = drawn(count, longest // 2, seed=1)
    found = [_answers(prompts, each) for each in answers]
    for name, each in zip(("pos", "neg"), found, strict=True):
        token_file(folder / name, each.documents)
        token_file(folder / f"{name}_label", each.labels)
    return Pairs(*found)


def _answers(prompts: list[list[int]], answers: list[list[int]]) -> Answers:
    both = list(zip(prompts, answers, strict=True))
    return Answers([[*a, *b] for a, b in both], [[*[IGNORED] * len(a), *b] for a, b in both])


def settings(folder: Path) -> dict[str, Any]:
    """Return the settings of training on all pairs of the folder."""
    values: dict[str, Any] = {
        "data_path": "null", "train_impl": "dpo", "dataset_impl": "pairwise", "pack_impl": "unpacked", "dpo_beta": BETA,
    }  # fmt: skip
    for answer in ("pos", "neg"):
        for split in ("train", "valid"):
            values[f"{answer}_{split}_data_paths"] = folder / answer
            values[f"{answer}_{split}_label_data_paths"] = folder / f"{answer}_label"
    return values


def steps_of_dpo(model: Any, pairs: Pairs, count: int) -> list[float]:
    """Train transformers' model by gradient descent on all pairs at once; return the losses."""
    reference, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), RATE)
    with torch.no_grad():
        before = [_log_probabilities(reference, answers) for answers in pairs]
    losses = []
    for _ in range(count):
        chosen, rejected = (_log_probabilities(model, answers) for answers in pairs)
        loss = -F.logsigmoid(BETA * ((chosen - before[0]) - (rejected - before[1]))).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _log_probabilities(model: Any, answers: Answers) -> Tensor:
    """Return the sum of the log-probabilities of each document's labels, one document after the other."""
    sums = []
    for ids, labels in zip(*answers, strict=True):
        logs = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        target = torch.tensor(labels[1:])
        chosen = logs.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        sums.append(chosen[target != IGNORED].sum())
    return torch.stack(sums)
