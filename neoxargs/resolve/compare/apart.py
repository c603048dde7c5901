"""What a comparison of configurations leaves out: tables of reason -> names.

The levels of `continuing` say which parameters do not matter to the weights of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from neoxargs.facts.lr_schedule import PARAMETERS as SCHEDULE

#: `deepy diff`, and `deepy check run.lock.yml`.
NOT_OF_THE_RUN: Mapping[str, str] = {
    "it describes the files or the start of the run": "dialect config_files user_script git_hash",
    "it only sets other parameters": "optimizer.params.max_grad_norm sparsity",
}
#: A run that continues a checkpoint.
REPORTED_ELSEWHERE: Mapping[str, str] = {
    "checks/checkpoint/schedule.py compares the learning rates": " ".join((*SCHEDULE, "lr_decay_fraction")),
    "the user chooses one of two schedules": "override_lr_scheduler use_checkpoint_lr_scheduler",
    "checks/checkpoint/vocabulary.py compares the tokenizers": "tokenizer_type vocab_file merge_file",
}
#: A checkpoint of GPT-NeoX and the configuration stored with it.
SHOWN_BY_SHAPES: Mapping[str, str] = {
    "the shapes of the weights show it": (
        "num_layers hidden_size num_attention_heads num_kv_heads intermediate_size max_position_embeddings "
        "no_weight_tying"
    )
}


def names(table: Mapping[str, str]) -> frozenset[str]:
    """Return the names in a table."""
    return frozenset(" ".join(table.values()).split())
