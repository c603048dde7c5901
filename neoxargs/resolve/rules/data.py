"""Datasets: one source of tokens, weights that fit the paths, a split that adds up to something."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neoxargs.resolve.rules.rule import Finding, check, derive, refuse, warn

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


def one_each(part: str, paths: Paths, chosen: Paths, weights: Weights) -> Finding | None:
    """As many weights as paths, and at least one of them above 0."""
    names = listed(paths) or listed(chosen)
    if weights is None or not names:
        return None
    if len(weights) != len(names):
        what = f"{part}_data_weights must hold one number for each of {part}_data_paths ({len(names)})"
        advice = f"it holds {len(weights)}; they belong together in order"
        return refuse(what, advice, about=[f"{part}_data_paths", f"{part}_data_weights"])
    if not any(weights):
        what = f"{part}_data_weights are all 0, so no dataset is left"
        return refuse(what, "write a weight above 0 for at least one", about=[f"{part}_data_weights"])
    return None


@check
def train_weights_match_paths(
    train_data_paths: Paths, pos_train_data_paths: Paths, train_data_weights: Weights
) -> Finding | None:
    """Weights and datasets belong together in order. With one too few, the ranks would stop when they build the
    training data; with another order or only zeros, the run would train on a mixture that nobody chose.

        train_data_paths: [code, web]
        train_data_weights: [1]
        valid_data_paths: web
        test_data_paths: web
    """
    return one_each("train", train_data_paths, pos_train_data_paths, train_data_weights)


@check
def valid_weights_match_paths(
    valid_data_paths: Paths, pos_valid_data_paths: Paths, valid_data_weights: Weights
) -> Finding | None:
    """Weights and datasets belong together in order. Validation data is built with the training data, so that one
    weight too few stops the run before its first step.

        train_data_paths: web
        valid_data_paths: [web]
        valid_data_weights: [1, 2]
        test_data_paths: web
    """
    return one_each("valid", valid_data_paths, pos_valid_data_paths, valid_data_weights)


@check
def test_weights_match_paths(
    test_data_paths: Paths, pos_test_data_paths: Paths, test_data_weights: Weights
) -> Finding | None:
    """Weights and datasets belong together in order. Test data is built with the training data, so that weights which
    do not fit stop the run before its first step.

        train_data_paths: web
        valid_data_paths: web
        test_data_paths: web
        test_data_weights: [0]
    """
    return one_each("test", test_data_paths, pos_test_data_paths, test_data_weights)


@check
def weight_by_num_documents_excludes_weights(weight_by_num_documents: bool, written: Collection[str]) -> Finding | None:
    """weight_by_num_documents computes the weight of each dataset from its size. Weights written beside it are not
    read, and the run trains on another mixture than they say.

        weight_by_num_documents: true
        train_data_weights: [2, 1]
    """
    given = [name for name in WEIGHTS if name in written]
    if not weight_by_num_documents or not given:
        return None
    what = f"{' and '.join(given)} have no effect: weight_by_num_documents computes the weights"
    return warn(what, "keep one of the two", about=["weight_by_num_documents", *given])


@check
def one_source_of_data(text_path: Paths, data_path: object, train_data_paths: Paths) -> Finding | None:
    """Text to be tokenised, one dataset that is split, and separate datasets each say what to train on. With two of
    them one would be ignored, and hours later the model has been trained on the wrong data.

        text_path: python-stdlib
        data_path: my_text_document
    """
    sources = {"text_path": text_path, "data_path": data_path, "train_data_paths": train_data_paths}
    given = [name for name, value in sources.items() if value]
    if len(given) < 2:
        return None
    away = " or ".join(f"--set {name}=null" for name in given)
    advice = f"keep one of them: {' or '.join(given)}; {away} takes that of a file away"
    return refuse(f"{' and '.join(given)} each say what to train on", advice, about=given)


@check
def data_paths_for_every_split(
    train_data_paths: Paths, valid_data_paths: Paths, test_data_paths: Paths
) -> Finding | None:
    """Datasets that are not split from one another are given for training, validation and test alike. Without one of
    them the ranks stop when they build the data, or the first evaluation has nothing to evaluate.

        train_data_paths: web
        valid_data_paths: books
    """
    parts = {"train": train_data_paths, "valid": valid_data_paths, "test": test_data_paths}
    missing = [f"{part}_data_paths" for part, paths in parts.items() if not paths]
    if len(missing) in (0, 3):
        return None
    given = [f"{part}_data_paths" for part, paths in parts.items() if paths]
    verb = "is" if len(missing) == 1 else "are"
    return refuse(
        f"{' and '.join(given)} without {' and '.join(missing)}",
        f"{' and '.join(missing)} {verb} needed as well; or write data_path with split",
    )


@check
def label_paths_need_data_paths(train_label_data_paths: Paths, train_data_paths: Paths) -> Finding | None:
    """Labels lie beside tokens that train_data_paths names, document by document. Without them there is nothing that
    the labels belong to, and the loss mask they describe would be left out.

        train_label_data_paths: labels
    """
    if not train_label_data_paths or train_data_paths:
        return None
    return refuse("train_label_data_paths needs train_data_paths", "name the datasets that the labels belong to")


def proportions(split: str | Sequence[float]) -> list[float] | None:
    """The up to three numbers of `969, 30, 1`, `90/10` or a list; None if it is something else."""
    try:
        parts = split.replace("/", ",").split(",") if isinstance(split, str) else split
        numbers = [float(part) for part in parts]
    except ValueError:
        return None
    return numbers if len(numbers) <= 3 and all(number >= 0 for number in numbers) else None


@check
def split_is_proportions(split: str | Sequence[float]) -> Finding | None:
    """split is up to three proportions, for training, validation and test. What cannot be read stops every rank when
    the data is built, and a first proportion of 0 leaves a run without a single sample.

        split: 0, 1, 1
    """
    numbers = proportions(split)
    if numbers is None:
        what = f"split ({split}) is not one to three numbers with commas between them"
        advice = "write for example `split: 969, 30, 1` for 96.9 % training, 3 % validation and 0.1 % test data"
        return refuse(what, advice)
    if not numbers or numbers[0] == 0:
        return refuse(f"split ({split}) leaves nothing to train on", "write a first number above 0")
    return None
