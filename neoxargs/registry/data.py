"""What the model reads: text or token files, how they are mixed and cut into samples, and the tokenizer."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Natural, NonNegative, Paths


class Data(Group, origin="NeoX"):
    """Datasets and the data loader."""

    text_path: Paths | None = param(None)
    data_path: str | list[str | float] | None = param(None, origin="Meg", megatron="data-path")
    split: str | list[NonNegative] = param("969, 30, 1", origin="Meg", megatron="split")
    train_data_paths: Paths | None = param(None, megatron="train-data-path", renamed_from="train_data_path")
    valid_data_paths: Paths | None = param(None, megatron="valid-data-path", renamed_from="valid_data_path")
    test_data_paths: Paths | None = param(None, megatron="test-data-path", renamed_from="test_data_path")
    train_data_weights: list[NonNegative] | None = param(None)
    valid_data_weights: list[NonNegative] | None = param(None)
    test_data_weights: list[NonNegative] | None = param(None)
    weight_by_num_documents: bool = param(False)
    weighted_sampler_alpha: NonNegative = param(1.0)
    train_label_data_paths: Paths | None = param(None, renamed_from="label_data_paths")
    valid_label_data_paths: Paths | None = param(None)
    test_label_data_paths: Paths | None = param(None)
    use_shared_fs: bool = param(True)
    data_impl: Literal["infer", "mmap", "cached", "lazy"] = param("infer", origin="Meg")
    dataset_impl: Literal["gpt2", "pairwise", "online"] = param("gpt2")
    pack_impl: Literal["packed", "pack_until_overflow", "unpacked"] = param("packed")
    allow_chopped: bool = param(True)
    mmap_warmup: bool = param(False, origin="Meg")
    num_workers: Natural = param(2, origin="Meg", megatron="num-workers")
    eod_mask_loss: bool = param(False, origin="Meg", megatron="eod-mask-loss")
    reset_position_ids: bool = param(False, origin="Meg", megatron="reset-position-ids")
    reset_attention_mask: bool = param(False, origin="Meg", megatron="reset-attention-mask")


class Tokenizer(Group, origin="Meg"):
    """How text becomes numbers."""

    tokenizer_type: Literal[
        "GPT2BPETokenizer", "HFTokenizer", "HFGPT2Tokenizer", "SPMTokenizer", "CharLevelTokenizer",
        "TiktokenTokenizer", "ByteLevelTokenizer",
    ] = param("GPT2BPETokenizer", megatron="tokenizer-type")  # fmt: skip
    vocab_file: str | None = param(None, megatron="vocab-file")
    merge_file: str | None = param(None, megatron="merge-file")
