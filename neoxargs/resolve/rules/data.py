"""Datasets: one source of tokens, weights that fit the paths, a split that adds up to something."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neoxargs.problems import Problem
from neoxargs.resolve.rules.rule import Refusal, check, derive

Paths = Sequence[str] | str | None
Weights = Sequence[float] | None
WEIGHTS = ("train_data_weights", "valid_data_weights", "test_data_weights")


def listed(paths: Paths) -> list[str]:
    """Several files, however they were written: a list, or one string with commas."""
    if isinstance(paths, str):
        return [path.strip() for path in paths.split(",") if path.strip()]
    return list(paths or ())


def equal_weights(paths: Paths, chosen: Paths) -> list[float] | None:
    """1 for each dataset of a list (of the preferred answers, where there are pairs of answers)."""
    return [1.0] * len(listed(paths) or listed(chosen)) or None


@derive
def train_data_weights(train_data_paths: Paths, pos_train_data_paths: Paths) -> list[float] | None:
    """all datasets weigh the same"""
    return equal_weights(train_data_paths, pos_train_data_paths)


@derive
def valid_data_weights(valid_data_paths: Paths, pos_valid_data_paths: Paths) -> list[float] | None:
    """all datasets weigh the same"""
    return equal_weights(valid_data_paths, pos_valid_data_paths)


@derive
def test_data_weights(test_data_paths: Paths, pos_test_data_paths: Paths) -> list[float] | None:
    """all datasets weigh the same"""
    return equal_weights(test_data_paths, pos_test_data_paths)


def one_each(part: str, paths: Paths, chosen: Paths, weights: Weights) -> Refusal:
    """As many weights as paths, and at least one of them above 0."""
    names = listed(paths) or listed(chosen)
    if weights is None or not names:
        return None
    if len(weights) != len(names):
        sentence = f"{part}_data_weights must hold one number for each of {part}_data_paths ({len(names)})"
        return sentence, f"it holds {len(weights)}; they belong together in order"
    if not any(weights):
        return f"{part}_data_weights are all 0, so no dataset is left", "write a weight above 0 for at least one"
    return None


@check
def train_weights_fit(train_data_paths: Paths, pos_train_data_paths: Paths, train_data_weights: Weights) -> Refusal:
    """Every training dataset has its weight."""
    return one_each("train", train_data_paths, pos_train_data_paths, train_data_weights)


@check
def valid_weights_fit(valid_data_paths: Paths, pos_valid_data_paths: Paths, valid_data_weights: Weights) -> Refusal:
    """Every validation dataset has its weight."""
    return one_each("valid", valid_data_paths, pos_valid_data_paths, valid_data_weights)


@check
def test_weights_fit(test_data_paths: Paths, pos_test_data_paths: Paths, test_data_weights: Weights) -> Refusal:
    """Every test dataset has its weight."""
    return one_each("test", test_data_paths, pos_test_data_paths, test_data_weights)


@check
def weights_are_used(weight_by_num_documents: bool, written: Collection[str]) -> Problem | None:
    """Weights by the number of documents take the place of written ones."""
    given = [name for name in WEIGHTS if name in written]
    if not weight_by_num_documents or not given:
        return None
    sentence = f"{' and '.join(given)} have no effect: weight_by_num_documents computes the weights"
    return Problem(sentence, hint="keep one of the two", severity="warning")


@check
def one_source_of_data(text_path: Paths, data_path: object, train_data_paths: Paths) -> Refusal:
    """Text to be tokenised, one dataset that is split, and separate datasets exclude each other."""
    sources = {"text_path": text_path, "data_path": data_path, "train_data_paths": train_data_paths}
    given = [name for name, value in sources.items() if value]
    if len(given) < 2:
        return None
    away = " or ".join(f"--set {name}=null" for name in given)
    hint = f"keep one of them: {' or '.join(given)}; {away} takes that of a file away"
    return f"{' and '.join(given)} each say what to train on", hint


@check
def all_three_or_none(train_data_paths: Paths, valid_data_paths: Paths, test_data_paths: Paths) -> Refusal:
    """Datasets that are not split from one another are given for training, validation and test alike."""
    parts = {"train": train_data_paths, "valid": valid_data_paths, "test": test_data_paths}
    missing = [f"{part}_data_paths" for part, paths in parts.items() if not paths]
    if len(missing) in (0, 3):
        return None
    given = [f"{part}_data_paths" for part, paths in parts.items() if paths]
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{' and '.join(given)} without {' and '.join(missing)}",
        f"{' and '.join(missing)} {verb} needed as well; or write data_path with split",
    )


@check
def labels_need_paths(train_label_data_paths: Paths, train_data_paths: Paths) -> Refusal:
    """Labels lie beside tokens that are given by train_data_paths."""
    if not train_label_data_paths or train_data_paths:
        return None
    return "train_label_data_paths needs train_data_paths", "name the datasets that the labels belong to"


def proportions(split: str | Sequence[float]) -> list[float] | None:
    """The up to three numbers of `969, 30, 1`, `90/10` or a list; None if it is something else."""
    try:
        parts = split.replace("/", ",").split(",") if isinstance(split, str) else split
        numbers = [float(part) for part in parts]
    except ValueError:
        return None
    return numbers if len(numbers) <= 3 and all(number >= 0 for number in numbers) else None


@check
def split_adds_up(split: str | Sequence[float]) -> Refusal:
    """`split` is up to three proportions, for training, validation and test."""
    numbers = proportions(split)
    if numbers is None:
        sentence = f"split ({split}) is not one to three numbers with commas between them"
        return sentence, "write for example `split: 969, 30, 1` for 96.9 % training, 3 % validation and 0.1 % test data"
    if not numbers or numbers[0] == 0:
        return f"split ({split}) leaves nothing to train on", "write a first number above 0"
    return None
