"""Datasets: one source of training data, one weight per dataset, a split that leaves training data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.facts import mixture
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.data import SPLITS, Paths, blend, path_list, shares, split_proportions
from neoxargs.facts.lengths import Sizes
from neoxargs.facts.lr_phases import CONSTANT
from neoxargs.facts.mistakes import Mistakes
from neoxargs.facts.validation_sets import validation_sets
from neoxargs.resolve.rules.rule import (
    Finding,
    Findings,
    check,
    check_each_split,
    derive_each_split,
    refuse,
    refuse_entries,
    refuse_phases,
    true_names,
    warn,
)

Weights = Sequence[float] | None
Blend = str | Sequence[str | float] | None
WEIGHT_NAMES = ("train_data_weights", "valid_data_weights", "test_data_weights")


@derive_each_split
def SPLIT_data_weights(split: str, SPLIT_data_paths: Paths, pos_SPLIT_data_paths: Paths) -> list[float] | None:
    """every dataset has the same weight"""
    return [1.0] * len(path_list(SPLIT_data_paths) or path_list(pos_SPLIT_data_paths)) or None


@check_each_split
def SPLIT_weights_match_paths(
    split: str, SPLIT_data_paths: Paths, pos_SPLIT_data_paths: Paths, SPLIT_data_weights: Weights
) -> Findings:
    """SPLIT_data_weights holds one weight for each of SPLIT_data_paths, in the same order. The data of all splits is
    built before the first step: with too few or too many weights, every rank stops there; with only zeros, there is
    nothing to sample from.

        train_data_paths: web
        valid_data_paths: web
        test_data_paths: web
        SPLIT_data_weights: [1, 2]
    """
    # In preference training, the datasets are those of the preferred answers.
    names, weights = path_list(SPLIT_data_paths) or path_list(pos_SPLIT_data_paths), SPLIT_data_weights
    if weights is None or not names:
        return
    about = [f"{split}_data_paths", f"{split}_data_weights"]
    if len(weights) != len(names):
        what = f"the number of {about[1]} ({len(weights)}) must equal the number of {about[0]} ({len(names)})"
        yield refuse(what, "write one weight for each dataset, in the order of the datasets", about)
    elif not any(weights):
        yield refuse(f"{about[1]} must not all be 0", "set at least one weight to a value above 0", about[1:])


@check
def weight_by_num_documents_excludes_weights(
    weight_by_num_documents: bool,
    train_data_weights: Weights,
    valid_data_weights: Weights,
    test_data_weights: Weights,
    written: Collection[str],
) -> Findings:
    """weight_by_num_documents computes the weight of each dataset from its size. Weights that are set explicitly are
    ignored, so the run does not train on the mixture that they describe.

        weight_by_num_documents: true
        train_data_weights: [2, 1]
    """
    weights = (train_data_weights, valid_data_weights, test_data_weights)
    given = [name for name, values in zip(WEIGHT_NAMES, weights, strict=True) if name in written and values is not None]
    if weight_by_num_documents and given:
        names = " and ".join(given)
        what = f"{names} {'has' if len(given) == 1 else 'have'} no effect: weight_by_num_documents computes the weights"
        yield warn(what, f"remove {names}, or weight_by_num_documents", about=["weight_by_num_documents", *given])


@check
def one_source_of_data(
    text_path: Paths, data_path: object, train_data_paths: Paths, pos_train_data_paths: Paths
) -> Findings:
    """The training data is text to be tokenised (text_path), one dataset to be split (data_path), separate datasets
    (train_data_paths), or preference pairs (pos_train_data_paths). If two of them were set, one would be ignored, and
    the model could be trained on the wrong data.

        text_path: python-stdlib
        data_path: my_text_document
    """
    given = true_names(
        text_path=text_path, data_path=data_path, train_data_paths=train_data_paths,
        pos_train_data_paths=pos_train_data_paths,
    )  # fmt: skip
    if len(given) > 1:
        removed = " or ".join(f"--set {name}=null" for name in given)
        advice = f"keep only one of {listed(given, 'and')}; to remove a key that a file sets, use {removed}"
        yield refuse(f"{listed(given, 'and')} each select the training data", advice, about=given)


@check
def validation_names_its_sets(validation: Mapping[str, Any] | None) -> Findings:
    """validation names sets of validation data. A set that is not understood would not be evaluated, or with another
    weight than the one that was meant.

        validation: {code: {data_path: code_text_document}}
        split: 98, 0, 2
    """
    if validation is not None and not validation:
        yield refuse("validation has no sets", "remove it, or name at least one set")
    try:
        validation_sets(validation)
    except Mistakes as error:
        yield from refuse_entries("validation", error)


@check
def validation_replaces_other_validation_data(
    validation: Mapping[str, Any] | None,
    valid_data_paths: Paths,
    valid_label_data_paths: Paths,
    dataset_impl: str,
    train_impl: str,
) -> Findings:
    """validation is all of the validation data, of plain text or with labels. Other validation data would not be
    evaluated, and preference pairs have no named sets.

        train_data_paths: web
        valid_data_paths: web_valid
        test_data_paths: web_test
        validation: {code: code_text_document}
    """
    if not validation:
        return
    if valid_data_paths:
        what = "validation and valid_data_paths both name validation data"
        advice = "add the datasets of valid_data_paths to validation, as a set of their own"
        yield refuse(what, advice, ["validation", "valid_data_paths"])
    elif valid_label_data_paths:
        advice = "write label_data_paths in the sets of validation, and remove valid_label_data_paths"
        what = "valid_label_data_paths has no effect on the sets of validation, which name their own label files"
        yield refuse(what, advice, ["valid_label_data_paths", "validation"])
    elif dataset_impl == "pairwise" or train_impl == "kto":
        about = ["validation", "dataset_impl" if dataset_impl == "pairwise" else "train_impl"]
        yield refuse("validation cannot name the data of preference training", "use the paths of the splits", about)


@check
def train_data_mixture_has_valid_phases(  # noqa: PLR0913, PLR0917 - what lengths are converted with
    train_data_mixture: Sequence[Any] | None,
    data_path: Blend,
    train_data_paths: Paths,
    pos_train_data_paths: Paths,
    train_iters: int,
    train_batch_size: int,
    rampup_batch_size: Sequence[int] | None,
    batch_size_schedule: Sequence[Any] | None,
    seq_length: int,
) -> Findings:
    """train_data_mixture lists phases with the weights of the datasets. A phase that is not understood would train on
    another mixture than the one that was meant.

        train_data_paths: [web, code]
        valid_data_paths: web_valid
        test_data_paths: web_test
        train_data_mixture: [{until: 60%, weights: [0.8, 0.2]}, {weights: [0.3, 0.3, 0.4]}]
    """
    batches = BatchSizes.with_ramp(train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    datasets, found = _datasets(data_path, train_data_paths, pos_train_data_paths), list[mixture.Phase]()

    def parse() -> None:
        found.extend(mixture.phases(train_data_mixture or (), datasets, Sizes(train_iters, batches, seq_length)))

    yield from refuse_phases("train_data_mixture", train_data_mixture, parse)
    ends = [phase.until or 0 for phase in found[:-1]]  # none after a mistake
    late = next((number for number, end in enumerate(ends, 2) if end >= batches.samples_after(train_iters)), None)
    if late is not None:
        what = f"train_data_mixture, phase {late}: it begins after {ends[late - 2]:,} samples, when the run has ended"
        hint = "remove it, let the phase before it end earlier, or increase train_iters"
        yield Finding(what, hint, ("train_data_mixture", "train_iters"), "warning", inside=f"phase {late}")


def _datasets(data_path: Blend, *paths: Paths) -> int:
    """Return the number of training datasets; text is one."""
    return len(blend(data_path or next(filter(None, paths), "text")))


@check
def train_data_max_epochs_matches_datasets(
    train_data_max_epochs: float | Sequence[float | None] | None,
    data_path: Blend,
    train_data_paths: Paths,
    pos_train_data_paths: Paths,
) -> Findings:
    """train_data_max_epochs is one number, or a list with one entry for each dataset. With fewer entries, it would not
    be known which datasets they limit.

        train_data_paths: [web, code]
        valid_data_paths: web_valid
        test_data_paths: web_test
        train_data_max_epochs: [4]
    """
    count = _datasets(data_path, train_data_paths, pos_train_data_paths)
    if isinstance(train_data_max_epochs, list) and len(train_data_max_epochs) != count:
        what = f"train_data_max_epochs has {len(train_data_max_epochs)} entries, but the number of datasets is {count}"
        hint = "write one entry for each dataset (null for no limit), or one number for all of them"
        yield refuse(what, hint, about=["train_data_max_epochs"])


@check
def train_data_mixture_defines_the_order(
    train_data_mixture: Sequence[Any] | None,
    train_data_max_epochs: object,
    data_path: Blend,
    sample_order: str,
    weight_by_num_documents: bool,
    written: Collection[str],
) -> Findings:
    """train_data_mixture defines how often each dataset is read, and in which order. Weights from elsewhere only say
    where its first phase begins if that moves away from them, and megatron-core's order has no mixtures.

        train_data_mixture: [{weights: [1]}]
        sample_order: megatron-core
    """
    names = true_names(train_data_mixture=train_data_mixture, train_data_max_epochs=train_data_max_epochs)
    if names and sample_order == "megatron-core":
        what = f"{listed(names, 'and')} cannot be combined with sample_order (megatron-core), which has no mixtures"
        yield refuse(what, "set sample_order: gpt-neox", [*names, "sample_order"])
        return
    first = train_data_mixture[0] if train_data_mixture else None
    given = true_names(
        train_data_weights="train_data_weights" in written,
        weight_by_num_documents=weight_by_num_documents,
        data_path=any(weight is not None for _, weight in blend(data_path or ())),
    )
    if given and isinstance(first, Mapping) and first.get("style", CONSTANT) == CONSTANT:
        named = listed(["the weights in data_path" if name == "data_path" else name for name in given], "and")
        have = "have" if given[-1] == "data_path" or len(given) > 1 else "has"
        what = f"{named} {have} no effect: the first phase of train_data_mixture has weights from its beginning"
        yield warn(what, f"remove {named}", about=["train_data_mixture", *given])


@check
def data_paths_for_every_split(
    train_data_paths: Paths, valid_data_paths: Paths, test_data_paths: Paths, validation: Mapping[str, Any] | None
) -> Findings:
    """Separate datasets are needed for training, validation and test. If one of them is missing, the ranks stop when
    they build the data, or the first evaluation has no data. With validation, only those for training are needed.

        train_data_paths: web
        valid_data_paths: books
    """
    # Without sets, it is the only mistake to report.
    if validation is not None and (train_data_paths or not test_data_paths):
        return
    parts = {"train": train_data_paths, "valid": valid_data_paths or validation, "test": test_data_paths}
    missing = [f"{part}_data_paths" for part, paths in parts.items() if not paths]
    if len(missing) not in (0, 3):
        given = [f"{part}_data_paths" for part, paths in parts.items() if paths]
        are_set, are_not = ("is" if len(names) == 1 else "are" for names in (given, missing))
        yield refuse(
            f"{' and '.join(given)} {are_set} set, but {' and '.join(missing)} {are_not} not",
            f"set {' and '.join(missing)} as well, or use data_path with split",
        )


@check
def split_leaves_out_validation(
    split: str | Sequence[float], data_path: object, text_path: object, validation: Mapping[str, Any] | None
) -> Findings:
    """With validation, the share of split that is meant for validation is in none of the parts: no step reads these
    documents.

        data_path: my_text_document
        validation: {code: code_text_document}
    """
    train, valid, test = shares(split)
    if validation and (data_path or text_path) and train and valid:
        what = f"{valid / (train + valid + test):.1%} of the documents are not used: split ({split}) has a share for "
        what += "validation, and the sets of validation take its place"
        yield warn(what, f"set split: {train + valid:g}, 0, {test:g} to train on them", ["split", "validation"])


@check
def split_is_proportions(split: str | Sequence[float]) -> Findings:
    """split is up to three proportions, for training, validation and test data. A value that cannot be read stops
    every rank when it builds the datasets, and a first proportion of 0 leaves no sample to train on.

        split: 0, 1, 1
    """
    numbers = split_proportions(split)
    if numbers is None:
        what = f"split ({split}) must be one to three non-negative numbers, separated by commas"
        advice = "for example, write `split: 969, 30, 1` for 96.9 % training, 3 % validation and 0.1 % test data"
        yield refuse(what, advice)
    elif not numbers or numbers[0] == 0:
        advice = "set the first number, the share of training data, to a value above 0"
        yield refuse(f"split ({split}) leaves no training data", advice)


@check
def restarting_positions_have_the_mask(
    reset_position_ids: bool, reset_attention_mask: bool, pack_impl: str
) -> Findings:
    """Positions that restart with every document do not separate documents: a token still attends to earlier documents
    in its sample, and sees several tokens at the same position
    (https://github.com/DeepOpt-com/WrinkleFree-Monorepo/issues/53).

        reset_position_ids: true
    """
    if reset_position_ids and not reset_attention_mask and pack_impl not in ("best_fit", "unpacked"):
        what = "reset_position_ids (true) without reset_attention_mask: tokens attend to other documents at equal "
        yield warn(
            f"{what}positions", "set reset_attention_mask to true", ["reset_position_ids", "reset_attention_mask"]
        )


@check
def validation_data_is_not_training_data(
    train_data_paths: Paths,
    valid_data_paths: Paths,
    test_data_paths: Paths,
    pos_train_data_paths: Paths,
    pos_valid_data_paths: Paths,
    pos_test_data_paths: Paths,
) -> Findings:
    """A validation or test loss on training data says nothing about new text: it falls even if the model only memorises
    (https://github.com/Alexander-H-Liu/End-to-end-ASR-Pytorch/issues/31,
    https://github.com/herniqeu/extract0/issues/1).

        train_data_paths: [web, books]
        valid_data_paths: [web]
        test_data_paths: [wiki]
    """
    for prefix, train, *others in (
        ("", train_data_paths, valid_data_paths, test_data_paths),
        ("pos_", pos_train_data_paths, pos_valid_data_paths, pos_test_data_paths),
    ):
        trained = set(path_list(train))
        names = [f"{prefix}{split}_data_paths" for split in SPLITS]
        both = {name: trained & {*path_list(paths)} for name, paths in zip(names[1:], others, strict=True)}
        if about := [name for name, paths in both.items() if paths]:
            files = listed(sorted(set().union(*both.values())), "and")
            what = f"{listed(about, 'and')} {'contains' if len(about) == 1 else 'contain'} training data: {files}"
            use = "use other documents for validation" if about[0] == names[1] else "use other documents for the test"
            yield warn(what, use + ", or data_path with split" * (not prefix), [*about, names[0]])
            return
