"""What one sample of the data consists of: a token sequence, or the two answers of a preference pair."""

from __future__ import annotations

from neoxargs.config.config import Config


def sequences_per_sample(config: Config) -> int:
    """Return how many token sequences of `seq_length` tokens a sample has."""
    return 2 if config.data.dataset_impl == "pairwise" else 1


def sequences_per_micro_batch(config: Config) -> int:
    """Return how many token sequences a rank processes together."""
    return config.batch.train_micro_batch_size_per_gpu * sequences_per_sample(config)


def sequences_per_batch(config: Config) -> int:
    """Return how many token sequences all ranks process in one optimizer step."""
    return config.batch.train_batch_size * sequences_per_sample(config)
