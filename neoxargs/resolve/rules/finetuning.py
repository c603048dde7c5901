"""Finetuning data: labels for every token file, and how documents are packed into samples."""

from __future__ import annotations

from neoxargs.base.problems import listed
from neoxargs.facts.data import Paths, path_list
from neoxargs.resolve.rules.rule import Finding, check, refuse


def check_labels(split: str, paths: Paths, labels: Paths, others: Paths) -> Finding | None:
    """Refuse a split that has data but no labels, labels without data, and lists of different lengths.

    split: train, valid or test. others: label files of the other splits.
    """
    data, own = path_list(paths), path_list(labels)
    names = [f"{split}_label_data_paths", f"{split}_data_paths"]
    if own and not data:
        return refuse(
            f"{names[0]} needs {names[1]}", f"set {names[1]} to the datasets that these labels belong to", about=names
        )
    if data and not own and path_list(others):
        what = f"{names[1]} has no label files, although another split does"
        advice = f"set {names[0]} to a list with one label file for each dataset in {names[1]}"
        return refuse(what, advice, about=names[::-1])
    if own and len(own) != len(data):
        what = f"the number of {names[0]} ({len(own)}) must equal the number of {names[1]} ({len(data)})"
        return refuse(what, "write one label file for each dataset, in the order of the datasets", about=names)
    return None


@check
def train_labels_match_paths(
    train_label_data_paths: Paths,
    train_data_paths: Paths,
    valid_label_data_paths: Paths,
    test_label_data_paths: Paths,
) -> Finding | None:
    """train_label_data_paths holds the labels of train_data_paths, one file for each dataset, in the same order.
    Without labels, the run would train on the prompts too. Without datasets, there are no tokens that the labels belong
    to.

        train_label_data_paths: labels
    """
    others = [*path_list(valid_label_data_paths), *path_list(test_label_data_paths)]
    return check_labels("train", train_data_paths, train_label_data_paths, others)


@check
def valid_labels_match_paths(
    valid_label_data_paths: Paths,
    valid_data_paths: Paths,
    train_label_data_paths: Paths,
    test_label_data_paths: Paths,
) -> Finding | None:
    """valid_label_data_paths holds the labels of valid_data_paths. If only the training data has labels, evaluations
    would measure the loss of the prompts too, which is not comparable with the training loss.

        train_data_paths: a
        train_label_data_paths: a_labels
        valid_data_paths: b
        test_data_paths: c
        test_label_data_paths: c_labels
    """
    others = [*path_list(train_label_data_paths), *path_list(test_label_data_paths)]
    return check_labels("valid", valid_data_paths, valid_label_data_paths, others)


@check
def test_labels_match_paths(
    test_label_data_paths: Paths,
    test_data_paths: Paths,
    train_label_data_paths: Paths,
    valid_label_data_paths: Paths,
) -> Finding | None:
    """test_label_data_paths holds the labels of test_data_paths, one file for each dataset, in the same order. With a
    different number of files, a dataset would get the labels of another dataset, or none.

        train_data_paths: a
        train_label_data_paths: a_labels
        valid_data_paths: b
        valid_label_data_paths: b_labels
        test_data_paths: [c, d]
        test_label_data_paths: c_labels
    """
    others = [*path_list(train_label_data_paths), *path_list(valid_label_data_paths)]
    return check_labels("test", test_data_paths, test_label_data_paths, others)


@check
def megatron_core_order_has_packed_samples_only(
    sample_order: str, pack_impl: str, train_label_data_paths: Paths
) -> Finding | None:
    """megatron-core's dataset joins and cuts documents, and reads no labels. With sample_order: megatron-core, other
    kinds of samples and label files would be ignored.

        sample_order: megatron-core
        pack_impl: unpacked
    """
    given = {"pack_impl": pack_impl != "packed", "train_label_data_paths": bool(train_label_data_paths)}
    names = [name for name, is_set in given.items() if is_set]
    if sample_order != "megatron-core" or not names:
        return None
    shown = f"pack_impl ({pack_impl})" if given["pack_impl"] else names[0]
    what = f"sample_order (megatron-core) cannot be combined with {shown}"
    return refuse(what, f"remove sample_order or {listed(names, 'and')}", about=["sample_order", *names])
