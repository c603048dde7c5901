"""Pairs of a preferred and a rejected answer, for preference training."""

from __future__ import annotations

from neoxargs.base.problems import listed
from neoxargs.facts.data import Paths, path_list
from neoxargs.facts.objectives import objective
from neoxargs.resolve.rules.rule import Findings, check, check_each_split, refuse


@check
def preference_training_needs_pairs(train_impl: str, dataset_impl: str) -> Findings:
    """DPO and reward models compare a preferred with a rejected answer. Samples without such pairs give them nothing to
    compare, and next-token prediction has no use for rejected answers.

        train_impl: dpo
        train_data_paths: answers
        valid_data_paths: answers
        test_data_paths: answers
    """
    pairs, pairwise = objective(train_impl).pairs, dataset_impl == "pairwise"
    if pairs and not pairwise:
        yield refuse(
            f"train_impl ({train_impl}) needs preference pairs, but dataset_impl is {dataset_impl}",
            "set dataset_impl: pairwise, pos_train_data_paths to the preferred answers and neg_train_data_paths to the "
            "rejected ones",
        )
    elif pairwise and not pairs:
        what = f"dataset_impl (pairwise) does not work with train_impl ({train_impl}), which does not compare answers"
        yield refuse(what, "set train_impl: dpo, or remove dataset_impl", ["dataset_impl", "train_impl"])


@check
def pairs_are_not_packed(dataset_impl: str, pack_impl: str) -> Findings:
    """The loss of a pair compares the log-probabilities of two whole answers. A sample with parts of several documents
    has no such log-probability.

        train_impl: dpo
        dataset_impl: pairwise
        pos_train_data_paths: preferred
        neg_train_data_paths: rejected
    """
    if dataset_impl == "pairwise" and pack_impl != "unpacked":
        what = f"dataset_impl (pairwise) needs one pair per sample, but pack_impl is {pack_impl}"
        yield refuse(what, "set pack_impl: unpacked")


@check
def pairs_have_data(dataset_impl: str, pos_train_data_paths: Paths, neg_train_data_paths: Paths) -> Findings:
    """Preference pairs are read from pos_train_data_paths and neg_train_data_paths. Without both, there are no pairs to
    train on.

        train_impl: dpo
        dataset_impl: pairwise
        pack_impl: unpacked
        pos_train_data_paths: preferred
    """
    given = {"pos_train_data_paths": pos_train_data_paths, "neg_train_data_paths": neg_train_data_paths}
    absent = [name for name, paths in given.items() if not path_list(paths)]
    if dataset_impl == "pairwise" and absent:
        yield refuse(
            f"dataset_impl (pairwise) needs {listed(absent, 'and')}",
            "set pos_train_data_paths to the token files of the preferred answers, and neg_train_data_paths to those "
            "of the rejected answers",
            about=["dataset_impl", *absent],
        )


@check_each_split
def SPLIT_pairs_match(
    split: str,
    dataset_impl: str,
    pos_SPLIT_data_paths: Paths,
    neg_SPLIT_data_paths: Paths,
    pos_SPLIT_label_data_paths: Paths,
    neg_SPLIT_label_data_paths: Paths,
) -> Findings:
    """The datasets of preferred and of rejected answers belong together, in the order of the lists, and so do their
    label files. With lists of different lengths, answers or labels of different prompts would be compared; with labels
    for one answer only, an answer would be compared with a prompt and an answer.

        train_impl: dpo
        dataset_impl: pairwise
        pack_impl: unpacked
        pos_train_data_paths: {train}
        neg_train_data_paths: a
        pos_valid_data_paths: {valid}
        neg_valid_data_paths: a
        pos_test_data_paths: {test}
        neg_test_data_paths: a
    """
    counts = {
        f"pos_{split}_data_paths": len(path_list(pos_SPLIT_data_paths)),
        f"neg_{split}_data_paths": len(path_list(neg_SPLIT_data_paths)),
        f"pos_{split}_label_data_paths": len(path_list(pos_SPLIT_label_data_paths)),
        f"neg_{split}_label_data_paths": len(path_list(neg_SPLIT_label_data_paths)),
    }
    (first, count), second, *labels = counts.items()
    # Without one of the two for training, `pairs_have_data` says so.
    if dataset_impl != "pairwise" or (split == "train" and not (count and second[1])):
        return
    # Labels may be left out, but then for both answers.
    required = [second, *(labels if any(number for _, number in labels) else [])]
    wrong = [(name, number) for name, number in required if number != count]
    if wrong:
        name, number = wrong[0]
        what = f"the number of {name} ({number}) must equal the number of {first} ({count})"
        yield refuse(what, "write one path per dataset in each of these lists, in the same order", [name, first])
