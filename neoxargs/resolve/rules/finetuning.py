"""Finetuning data: labels for every token file, and how documents are packed into samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.facts.data import Paths, path_list
from neoxargs.resolve.rules.rule import Findings, check, check_each_split, refuse, true_names


@check_each_split
def SPLIT_labels_match_paths(
    split: str,
    SPLIT_data_paths: Paths,
    train_label_data_paths: Paths,
    valid_label_data_paths: Paths,
    test_label_data_paths: Paths,
    validation: Mapping[str, Any] | None,
) -> Findings:
    """SPLIT_label_data_paths holds the labels of SPLIT_data_paths, one file for each dataset, in the same order.
    Without labels, the loss would include the prompts; with labels in one split only, the losses of training and
    evaluations could not be compared. With a different number of files, a dataset would get the labels of another
    dataset, or none.

        SPLIT_label_data_paths: labels
    """
    # Beside the sets of validation, another rule refuses them.
    valid = None if validation else valid_label_data_paths
    labels = {"train": train_label_data_paths, "valid": valid, "test": test_label_data_paths}
    data, own = path_list(SPLIT_data_paths), path_list(labels[split])
    names = [f"{split}_label_data_paths", f"{split}_data_paths"]
    if own and not data:
        advice = f"set {names[1]} to the datasets that these labels belong to"
        yield refuse(f"{names[0]} needs {names[1]}", advice, about=names)
    elif data and not own and any(map(path_list, labels.values())):
        what = f"{names[1]} has no label files, although another split does"
        advice = f"set {names[0]} to a list with one label file for each dataset in {names[1]}"
        yield refuse(what, advice, about=names[::-1])
    elif own and len(own) != len(data):
        what = f"the number of {names[0]} ({len(own)}) must equal the number of {names[1]} ({len(data)})"
        yield refuse(what, "write one label file for each dataset, in the order of the datasets", about=names)


@check
def megatron_core_order_has_packed_samples_only(
    sample_order: str, pack_impl: str, train_label_data_paths: Paths
) -> Findings:
    """megatron-core's dataset joins and cuts documents, and reads no labels. With sample_order: megatron-core, other
    kinds of samples and label files would be ignored.

        sample_order: megatron-core
        pack_impl: unpacked
    """
    names = true_names(pack_impl=pack_impl != "packed", train_label_data_paths=train_label_data_paths)
    if sample_order == "megatron-core" and names:
        shown = f"pack_impl ({pack_impl})" if "pack_impl" in names else names[0]
        what = f"sample_order (megatron-core) cannot be combined with {shown}"
        yield refuse(what, f"remove sample_order or {listed(names, 'and')}", about=["sample_order", *names])
