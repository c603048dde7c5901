"""BERT, ICT and REALM: Megatron's retrieval models, which a GPT run does not use."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction


class Retrieval(Group, origin="Meg", effect="none", no_effect_reason="only BERT, ICT and REALM read it"):
    """Masked language models and retrieval indices."""

    mask_prob: Fraction = param(0.15, megatron="mask-prob")
    """Fraction of tokens hidden from BERT's masked language model. A GPT run does not read it."""

    short_seq_prob: Fraction = param(0.1, megatron="short-seq-prob")
    """Fraction of BERT samples that are made shorter than `seq_length`. A GPT run does not read it."""

    ict_head_size: Count | None = param(None, megatron="ict-head-size")
    """Width of the block and query embeddings of ICT and REALM. A GPT run does not read it."""

    ict_load: str | None = param(None, megatron="ict-load")
    """Folder of an ICT checkpoint. A GPT run does not read it."""

    bert_load: str | None = param(None, megatron="bert-load")
    """Folder of a BERT checkpoint that ICT and REALM start from. A GPT run does not read it."""

    titles_data_path: str | None = param(None, megatron="titles-data-path")
    """Prefix of the dataset of document titles for ICT. A GPT run does not read it."""

    query_in_block_prob: Fraction = param(0.1, megatron="query-in-block-prob")
    """Probability that ICT leaves the query sentence inside its block. A GPT run does not read it."""

    use_one_sent_docs: bool = param(False, megatron="use-one-sent-docs")
    """Whether ICT also uses documents of a single sentence. A GPT run does not read it."""

    report_topk_accuracies: list[Count] = param([], megatron="retriever-report-topk-accuracies")
    """Values of k for which retrieval reports how often the right block is among the top k. A GPT run does not read
    it."""

    faiss_use_gpu: bool = param(False)
    """Whether the retrieval index is searched on a GPU. A GPT run does not read it."""

    block_data_path: str | None = param(None, megatron="block-data-path")
    """File of block embeddings that indexing writes and retrieval reads. A GPT run does not read it."""

    indexer_batch_size: Count = param(128, megatron="indexer-batch-size")
    """Number of blocks embedded at once while building the retrieval index. A GPT run does not read it."""

    indexer_log_interval: Count = param(1000, megatron="indexer-log-interval")
    """Number of batches between two progress reports while building the retrieval index. A GPT run does not read it."""
