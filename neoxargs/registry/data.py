"""Data: text and token files, how they are mixed and cut into samples, and the tokenizer."""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Natural, NonNegative, Paths, Positive


class Data(Group, origin="NeoX", effect="data"):
    """Datasets and the data loader."""

    text_path: Paths | None = param(None, ours=True)
    """Raw text to train on: files, folders or glob patterns (`.txt`, `.md`, `.jsonl`, ...), tokenised on first use and
    cached. The value `python-stdlib` stands for the source of Python's standard library, for trials without a
    download."""

    data_path: str | list[str | float] | None = param(None, origin="Meg", megatron="data-path")
    """Tokenised dataset, as the common prefix of its `.bin` and `.idx` files; `split` divides it into training,
    validation and test. A list that alternates weights and prefixes blends several."""

    split: str | list[NonNegative] = param("969, 30, 1", origin="Meg", megatron="split", receiver_default=None)
    """Proportions of training, validation and test documents in `data_path` or `text_path`; they need not add up to 1
    or 100. `949,50,1` gives 94.9% to training."""

    train_data_paths: Paths | None = param(None, megatron="train-data-path", aliases="train_data_path")
    """Prefixes of the tokenised training datasets, in place of `data_path` and `split`. Set the paths for training,
    validation and test together."""

    valid_data_paths: Paths | None = param(None, megatron="valid-data-path", aliases="valid_data_path")
    """Prefixes of the tokenised validation datasets."""

    test_data_paths: Paths | None = param(None, megatron="test-data-path", aliases="test_data_path")
    """Prefixes of the tokenised test datasets."""

    train_data_weights: list[NonNegative] | None = param(None)
    """Relative frequencies with which `train_data_paths` are drawn from. If not set, they are equal."""

    train_data_mixture: list[dict[str, Any]] | None = param(None, ours=True)
    """Phases with different weights of the training datasets, as a list of `{until, weights, style}`. `until` counts
    iterations (`2000`), a share of the run (`60%`), tokens (`20B tokens`) or samples (`5M samples`); `1` is one
    iteration, `1.0` the whole run; the last phase ends with the run. A phase has its weights from its beginning
    (`constant`), or moves to them from those before it along a curve (`linear`, `cosine`, `exponential`, `minus_sqrt`).
    In place of weights, `temperature: T` gives each dataset the weight of its size to the power 1/T. Each dataset is
    read pass by pass."""

    train_data_max_epochs: Positive | list[Positive | None] | None = param(None, ours=True)
    """How often each training dataset is read at most, as one number or a list with one entry (null for no limit) for
    each dataset. After that, the other datasets share its part."""

    valid_data_weights: list[NonNegative] | None = param(None)
    """Relative frequencies with which `valid_data_paths` are drawn from. If not set, they are equal."""

    test_data_weights: list[NonNegative] | None = param(None)
    """Relative frequencies with which `test_data_paths` are drawn from. If not set, they are equal."""

    validation: dict[str, Any] | None = param(None, ours=True)
    """Validation data by name, in place of `valid_data_paths`, such as `{code: PREFIX, law: {data_paths: [PREFIX],
    weight: 2}}`. A set has `eval_iters` batches and a loss of its own in the log, the metrics, the trackers and the
    report; the validation loss is their mean, in which a set counts as often as its weight (by default 1). A set may
    also have data_weights and label_data_paths."""

    weight_by_num_documents: bool = param(False)
    """Computes the weights from the number of documents, in place of explicit weights: a dataset with a
    fraction p of all documents gets a weight proportional to p^a (1 - p), where a is `weighted_sampler_alpha`."""

    weighted_sampler_alpha: NonNegative = param(1.0)
    """Exponent on each dataset's share of the documents when `weight_by_num_documents` is on: smaller values favour
    small datasets."""

    sample_order: Literal["gpt-neox", "megatron-core"] = param("gpt-neox", ours=True)
    """Order of the samples in a dataset: `gpt-neox` shuffles all epochs together; `megatron-core` shuffles the last
    epoch separately if less than 80% of it is needed, and sizes the datasets of a blend differently. Set it to the
    order of the program whose run you continue, so that the run reads the data that it would have read."""

    repeat_eval_samples: bool = param(False, ours=True)
    """Evaluates on the same validation samples every time, so that the losses of different iterations are exactly
    comparable. Otherwise, an evaluation continues in the validation data where the previous one ended, as in
    GPT-NeoX."""

    train_label_data_paths: Paths | None = param(None, aliases="label_data_paths")
    """Prefixes of the label files of `train_data_paths`, one per dataset, for finetuning on parts of the text. A label
    file is a token file with the same documents, in which -100 replaces every token that does not count toward the
    loss. A label is at the position of its own token, not of the token before."""

    valid_label_data_paths: Paths | None = param(None)
    """Prefixes of the label files of `valid_data_paths`."""

    test_label_data_paths: Paths | None = param(None)
    """Prefixes of the label files of `test_data_paths`."""

    use_shared_fs: bool = param(True)
    """Whether all machines see the same files. If false, one rank on every machine builds the index caches, otherwise
    only rank 0."""

    data_impl: Literal["infer", "mmap", "cached", "lazy"] = param("infer", origin="Meg")
    """How token files are read: `mmap` and `infer` map them into memory; `cached` and `lazy` read each sample from the
    files."""

    dataset_impl: Literal["gpt2", "pairwise", "online"] = param(
        "gpt2",
        effect="data",
        refused={"online": "only reinforce reads samples from a server, and train.py does not support reinforce"},
    )
    """Kind of samples: `gpt2` for plain token sequences, `pairwise` for preferred and rejected answers, `online` for
    samples that are generated during training."""

    pack_impl: Literal["packed", "pack_until_overflow", "unpacked", "best_fit"] = param("packed")
    """How documents fill a sample: `packed` joins them and cuts wherever a sample is full; `pack_until_overflow` joins
    whole documents until the next one does not fit; `unpacked` has one document per sample; `best_fit` puts each
    document, the longest first, into the sample in which it leaves the least free space, and documents then neither
    attend to nor predict each other. The rest of a sample is padding, which does not count toward the loss."""

    allow_chopped: bool = param(True)
    """Cuts documents that are longer than a sample (`seq_length` + 1 tokens), unless `pack_impl` is `packed`. If false,
    those documents are skipped."""

    mmap_warmup: bool = param(False, origin="Meg")
    """Reads memory-mapped token files once from end to end before training, so that they are in the page cache."""

    num_workers: Natural = param(2, origin="Meg", megatron="num-workers")
    """Number of processes that load data for each data parallel rank. 0 loads in the training process."""

    eod_mask_loss: bool = param(False, origin="Meg", megatron="eod-mask-loss")
    """Leaves end-of-document tokens out of the loss."""

    reset_position_ids: bool = param(False, origin="Meg", megatron="reset-position-ids")
    """Restarts the positions at 0 after every end-of-document token, for every `pos_emb` that uses position numbers."""

    reset_attention_mask: bool = param(False, origin="Meg", megatron="reset-attention-mask")
    """Hides earlier documents in the same sample from the tokens after an end-of-document token. Attention then needs a
    mask for each sample, which is slower than a plain causal mask."""


class Tokenizer(Group, origin="Meg", effect="data"):
    """How text is converted to tokens."""

    tokenizer_type: Literal[
        "GPT2BPETokenizer", "HFTokenizer", "HFGPT2Tokenizer", "SPMTokenizer", "CharLevelTokenizer",
        "TiktokenTokenizer", "ByteLevelTokenizer",
    ] = param("GPT2BPETokenizer", megatron="tokenizer-type", receiver_default=None)  # fmt: skip
    """Type of the tokenizer: `GPT2BPETokenizer` (`vocab_file` and `merge_file`), `HFTokenizer` (a tokenizer.json as
    `vocab_file`), `HFGPT2Tokenizer`, `SPMTokenizer` (a SentencePiece model), `TiktokenTokenizer`, `CharLevelTokenizer`,
    or `ByteLevelTokenizer`, which has one token per byte and an end-of-document token, and needs no file."""

    vocab_file: str | None = param(None, megatron="vocab-file")
    """The tokenizer's file: a vocabulary, a tokenizer.json or a SentencePiece model, depending on `tokenizer_type`."""

    merge_file: str | None = param(None, megatron="merge-file")
    """The merges.txt of a byte pair encoding, read by `GPT2BPETokenizer`."""
