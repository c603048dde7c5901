"""The loss that `train_impl` selects, and what it measures."""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.train.losses import dpo, kto, reward_model
from neoxargs.train.losses.cross_entropy import Loss, Vocabulary
from neoxargs.train.losses.means import Means
from neoxargs.train.parallel.layers import Ranks

MEASURES = {"dpo": dpo.MEASURES, "kto": kto.MEASURES, "rm": reward_model.MEASURES}


def loss_of(config: Config, vocabulary: Vocabulary, ranks: Ranks, measures: Means) -> Loss:
    """Return the loss that the configuration trains with, and that adds to `measures`."""
    plain, options = Loss.of(config, vocabulary, ranks), config.post_training
    fields = {**vars(plain), "measures": measures}
    if options.train_impl == "dpo":
        return dpo.DpoLoss(**{**fields, "half": not options.dpo_fp32}, beta=options.dpo_beta)
    if options.train_impl == "kto":
        weights = options.kto_desirable_weight, options.kto_undesirable_weight
        return kto.KtoLoss(**{**fields, "half": not options.kto_fp32}, beta=options.kto_beta, weights=weights)
    if options.train_impl == "rm":
        return reward_model.RewardLoss(**fields)
    return plain


def measures(config: Config) -> tuple[str, ...]:
    """Return the names of what the loss measures besides its value."""
    return MEASURES.get(config.post_training.train_impl, ())
