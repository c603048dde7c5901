"""BERT, ICT and REALM: Megatron's retrieval models, which a GPT run does not read."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction


class Retrieval(Group, origin="Meg"):
    """Masked language models and retrieval indices."""

    mask_prob: Fraction = param(0.15, megatron="mask-prob")
    short_seq_prob: Fraction = param(0.1, megatron="short-seq-prob")
    ict_head_size: Count | None = param(None, megatron="ict-head-size")
    ict_load: str | None = param(None, megatron="ict-load")
    bert_load: str | None = param(None, megatron="bert-load")
    titles_data_path: str | None = param(None, megatron="titles-data-path")
    query_in_block_prob: Fraction = param(0.1, megatron="query-in-block-prob")
    use_one_sent_docs: bool = param(False, megatron="use-one-sent-docs")
    report_topk_accuracies: list[Count] = param([], megatron="retriever-report-topk-accuracies")
    faiss_use_gpu: bool = param(False)
    block_data_path: str | None = param(None, megatron="block-data-path")
    indexer_batch_size: Count = param(128, megatron="indexer-batch-size")
    indexer_log_interval: Count = param(1000, megatron="indexer-log-interval")
