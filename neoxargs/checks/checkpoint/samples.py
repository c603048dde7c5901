"""Which samples a resumed run reads again or skips, because its data or their order have changed.

A run continues at the number of samples that it has read. The order of samples depends on seed, sizes and shares, and
in `packed` on the number of passes over a source, which GPT-NeoX and megatron-core shuffle together, and a mixture
(facts/mixture.py) does not. A blend gives each source its share of any number of samples, so another weight moves the
position in each source; so does a mixture whose shares before that number are others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.data import path_list
from neoxargs.facts.mixture import PARAMETERS as MIXTURE
from neoxargs.facts.timeline import Drawn
from neoxargs.files.token_files.sources import Source, sources
from neoxargs.files.token_files.timeline import drawn

#: A source, and what a run draws of it.
Drawing = tuple[Source, Drawn]

#: Parameters with another value of which the samples have another order.
ORDER = ("seed", "seq_length", "pack_impl", "sample_order", "allow_chopped")
#: GPT-NeoX makes more samples than the share of a source in a blend.
SURPLUS = 1.005


def moved_samples(config: Config, saved: Config, read: int) -> Iterator[str]:
    """Yield how many samples of which source are read again or skipped, as parts of a sentence.

    read: samples that have been read or left out.
    """
    before, now = _by_prefix(saved, read), _by_prefix(config, read)
    if len(before) == len(now) and not before.keys() & now.keys():  # a folder that was moved
        before = dict(zip(now, before.values(), strict=True))
    if not before or not now:
        return
    is_new = any(saved.get(name) != config.get(name) for name in ORDER)
    for prefix, each in now.items():
        then = before.get(prefix)
        place, earlier = (of[1].after(read) / config.shape.seq_length if of else 0.0 for of in (each, then))
        changed = then and (then[0].share != each[0].share or _passes(saved, then) != _passes(config, each))
        if then and then[1].available and (is_new or changed):
            known = min(1.0, then[1].after(read) / then[1].available)
            yield f"the samples of {prefix} are shuffled anew, so that {known:.0%} of the next ones were read before"
        elif round(moved := place - earlier):
            yield f"about {abs(moved):,.0f} samples of {prefix} are {'skipped' if moved > 0 else 'read again'}"


def _by_prefix(config: Config, read: int) -> dict[str, Drawing]:
    """Return prefix -> what a run of at least so many samples draws of it.

    Empty where that is not known, or counted in another way.
    """
    known = all(isinstance(config.get(name), int) for name in ("train_batch_size", "train_iters"))
    if not known or config.data.dataset_impl == "pairwise" or config.training.train_epochs:
        return {}
    if path_list(config.data.text_path) and not config.data.data_path:
        return {}
    used = {source.prefix: source for source in sources(config.data, config.post_training)["train"]}
    last = max(read, _planned(config))
    found = {each.name: (used[each.name], each) for each in drawn(config, list(used.values()), last)}
    return found if all(each.available for _, each in found.values()) else {}


def _passes(config: Config, drawing: Drawing) -> int:
    """Return how many passes over a source are shuffled together; 1 where each pass is shuffled by itself."""
    source, each = drawing
    if config.data.pack_impl != "packed" or not each.available or any(config.get(name) for name in MIXTURE):
        return 1
    length, is_blend = config.shape.seq_length, source.weight is not None
    samples = math.ceil(each.after(_planned(config)) / length * (SURPLUS if is_blend else 1))
    return max(1, math.ceil((samples * length + 1) / each.available))


def _planned(config: Config) -> int:
    """Return the samples of a run that goes from its beginning to its end."""
    return BatchSizes.of(config.get).samples_after(config.training.train_iters)
