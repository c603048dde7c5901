"""Preference pairs and rated answers for tests, and DPO and KTO on them written with transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.finetuning import IGNORED, drawn, token_file

BETA, RATE = 0.5, 0.1
#: ByteLevelTokenizer's end-of-document token.
END = 256
#: Of desirable and of undesirable answers.
WEIGHTS = 1.5, 0.75


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
        for split in ("train", "valid", "test"):
            values[f"{answer}_{split}_data_paths"] = folder / answer
            values[f"{answer}_{split}_label_data_paths"] = folder / f"{answer}_label"
    return values


def rated(folder: Path, count: int, longest: int, stored: type[np.generic] = np.float32) -> Answers:
    """Write both answers of pairs as the documents of one file, in turns, with their rewards; return them.

    stored: type of the rewards in their file; int32 is that of GPT-NeoX's tool.
    """
    return _rated(folder, written(folder, count, longest), rewards_of(2 * count), stored)


def learnable_rated(folder: Path, count: int, longest: int, stored: type[np.generic]) -> Answers:
    """Write answers of which the desirable ones consist of one token, and the undesirable ones of another."""
    return _rated(folder, learnable(folder, count, longest), [1.0, -1.0] * count, stored)


def _rated(folder: Path, pairs: Pairs, rewards: Sequence[float], stored: type[np.generic]) -> Answers:
    both = Answers(*([row for turn in zip(*rows, strict=True) for row in turn] for rows in zip(*pairs, strict=True)))
    token_file(folder / "rated", both.documents)
    token_file(folder / "rated_label", both.labels)
    token_file(folder / "rated_reward", [[reward] for reward in rewards], stored)
    return both


def rewards_of(count: int) -> list[float]:
    """Return the rewards of documents, of which every other one is undesirable."""
    return [(-1.0 if index % 2 else 1.0) * (1 + index % 3) for index in range(count)]


def settings_of_kto(folder: Path) -> dict[str, Any]:
    """Return the settings of training on all rated answers of the folder."""
    values: dict[str, Any] = {
        "data_path": "null", "train_impl": "kto", "pack_impl": "unpacked", "kto_beta": BETA,
        "kto_desirable_weight": WEIGHTS[0], "kto_undesirable_weight": WEIGHTS[1],
    }  # fmt: skip
    for split in ("train", "valid", "test"):
        for kind in ("", "_label", "_reward"):
            values[f"{split}{kind}_data_paths"] = folder / f"rated{kind}"
    return values


def steps_of_kto(model: Any, documents: Answers, steps: Sequence[Sequence[Sequence[int]]]) -> list[float]:
    """Train transformers' model by gradient descent; return the loss of each step.

    steps: the documents of each micro batch of each step.
    """
    rewards = rewards_of(len(documents.documents))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with torch.no_grad():
        before = _log_probabilities(model, documents)

    def loss_of(chosen: Sequence[int]) -> Tensor:
        policy = _log_probabilities(model, Answers(*([part[index] for index in chosen] for part in documents)))
        ratios = policy - before[list(chosen)]
        half, terms = len(chosen) // 2, []
        for place, index in enumerate(chosen):
            others = ratios[half:] if place < half else ratios[:half]
            divergence = sum(max(float(ratio), 0.0) for ratio in others.detach()) / half
            value = torch.sigmoid(BETA * rewards[index] * (ratios[place] - divergence))
            terms.append(WEIGHTS[0 if rewards[index] > 0 else 1] * (1 - value))
        return torch.stack(terms).mean()

    return _descent(optimizer, [partial(_mean, loss_of, micro_batches) for micro_batches in steps])


def _mean(loss_of: Callable[[Sequence[int]], Tensor], micro_batches: Sequence[Sequence[int]]) -> Tensor:
    return torch.stack([loss_of(chosen) for chosen in micro_batches]).mean()


def ended(folder: Path, count: int, longest: int) -> Pairs:
    """Write pairs as `deepy data --chat --for-rm` does: two end tokens, of which the second has the only label."""
    return _ended(folder, written(folder, count, longest - 2))


def learnable_ended(folder: Path, count: int, longest: int) -> Pairs:
    return _ended(folder, learnable(folder, count, longest - 2))


def _ended(folder: Path, pairs: Pairs) -> Pairs:
    found = []
    for name, answers in zip(("pos", "neg"), pairs, strict=True):
        documents = [[*ids, END, END] for ids in answers.documents]
        labels = [[*[IGNORED] * (len(ids) - 1), END] for ids in documents]
        token_file(folder / name, documents)
        token_file(folder / f"{name}_label", labels)
        found.append(Answers(documents, labels))
    return Pairs(*found)


def steps_of_a_reward_model(model: Any, pairs: Pairs, penalty: float, count: int) -> tuple[list[float], list[float]]:
    """Train transformers' model for sequence classification by gradient descent on all pairs at once.

    Returns the losses, and the margins after the last step.
    """
    optimizer = torch.optim.SGD(model.parameters(), RATE)

    def rewards(answers: Answers) -> Tensor:
        """Return the scores at the first end token; the model's own way to find the last token depends on padding."""
        last = [model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -2] for ids in answers.documents]
        return model.score(torch.stack(last)).squeeze(-1)  # type: ignore[no-any-return]

    def loss() -> Tensor:
        chosen, rejected = map(rewards, pairs)
        bounded = penalty * (chosen.square() + rejected.square()).mean()
        return bounded - torch.log(torch.sigmoid(chosen - rejected)).mean()

    losses = _descent(optimizer, [loss] * count)
    with torch.no_grad():
        return losses, (rewards(pairs.chosen) - rewards(pairs.rejected)).tolist()


def of_dpo(differences: Tensor) -> Tensor:
    return -F.logsigmoid(BETA * differences).mean()


def steps_on_pairs(
    model: Any, pairs: Pairs, count: int, loss_of: Callable[[Tensor], Tensor] = of_dpo, rate: float = RATE
) -> list[float]:
    """Train transformers' model by gradient descent on all pairs at once; return the losses.

    loss_of: the loss, of the differences of the pairs' log-ratios.
    """
    reference, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), rate)
    with torch.no_grad():
        before = [_log_probabilities(reference, answers) for answers in pairs]

    def loss() -> Tensor:
        chosen, rejected = (_log_probabilities(model, answers) for answers in pairs)
        return loss_of((chosen - before[0]) - (rejected - before[1]))

    return _descent(optimizer, [loss] * count)


def _descent(optimizer: torch.optim.Optimizer, steps: Sequence[Callable[[], Tensor]]) -> list[float]:
    """Take a step with each of these functions of the weights; return the losses."""
    losses = []
    for loss_of in steps:
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
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
