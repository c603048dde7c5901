"""What a run reads of each source along its iterations, from the sizes of its token files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.mixture import Mixture, MixtureSchedule, mixture_of, schedule_of
from neoxargs.facts.position import Position
from neoxargs.facts.timeline import Drawn, Timeline
from neoxargs.files.token_files import index
from neoxargs.files.token_files.one_pass import cut_of, samples_in
from neoxargs.files.token_files.sources import Source, part_of, sources, weights, with_text

#: A run that begins with its first step.
BEGINNING = Position()


def timeline_of(config: Config, start: Position = BEGINNING) -> Timeline:
    """Return the timeline of a run. start: where it goes on."""
    config, options = with_text(config), config.training
    found = sources(config.data, config.post_training)
    is_left = start.iteration < options.train_iters
    tests = bool(options.eval_iters and options.do_test is not False and found["test"] and is_left)
    validates = any(found[part] for part in found if part_of(part) == "validation")
    last = start.last_sample(BatchSizes.of(config.get), options.train_iters)
    return Timeline(config, start, drawn(config, found["train"], last), validates, tests)


def drawn(config: Config, of: Sequence[Source], reach: int = 0) -> list[Drawn]:
    """Return what training reads of each of its sources; empty if that depends on files that cannot be read.

    reach: the last sample, if it is not that of a run that goes from its beginning to its end.
    """
    total = reach or BatchSizes.of(config.get).samples_after(config.training.train_iters)
    mixture = mixture_of(config.get, len(of))
    chosen = of if mixture else [source for source in of if source.weight != 0]
    passes = {source: _one_pass(source, config) for source in chosen}
    if mixture:
        found = mixture_schedule(config, of, mixture, reach)
        curve = found.drawn() if found else []
    else:
        shares = _shares(config, chosen, passes)
        curve = [(0.0, [0.0] * len(shares)), (float(total), [total * share for share in shares])] if shares else []
    length = config.shape.seq_length
    return [
        Drawn(answers.prefix, [(samples, read[number] * length) for samples, read in curve], passes[source])
        for number, source in enumerate(chosen if curve else ())
        for answers in ([source, source.rejected] if source.rejected else [source])
    ]


def mixture_schedule(config: Config, of: Sequence[Source], mixture: Mixture, reach: int = 0) -> MixtureSchedule | None:
    """Return what a mixture draws of its sources in a run; None if that depends on files that cannot be read.

    reach: as in `drawn`.
    """
    total = BatchSizes.of(config.get).samples_after(config.training.train_iters)
    needs_sizes = any(most is not None for most in mixture.max_epochs)
    needs_sizes |= any(phase.weights is None for phase in mixture.phases)
    sizes = [samples_in(source, cut_of(config)) for source in of]
    if needs_sizes and None in sizes:
        return None
    counts = partial(_of_share, what="tokens"), partial(_of_share, what="sequences")
    # Of files that cannot be read, only the weights are known.
    found = [1 if size is None else size for size in sizes]
    return schedule_of(mixture, weights(of, config.data, *counts), found, total, reach) if any(found) else None


def _shares(config: Config, chosen: Sequence[Source], passes: Mapping[Source, float | None]) -> list[float]:
    """Return the share of the samples that each source has; empty if that is not known."""
    if len(chosen) == 1:
        return [1.0]
    if config.training.train_epochs:
        each = [passes[source] or 0.0 for source in chosen]
    elif all(source.weight for source in chosen) or all(index.extent(source.prefix) for source in chosen):
        tokens, documents = partial(_of_share, what="tokens"), partial(_of_share, what="sequences")
        each = weights(chosen, config.data, tokens, documents)
    else:
        return []
    return [weight / (sum(each) or 1) for weight in each]


def _one_pass(source: Source, config: Config) -> float | None:
    """Return the tokens of one pass over a source; None if its files cannot be read."""
    if config.data.pack_impl == "packed":
        return _of_share(source, "tokens") or None
    try:
        samples = samples_in(source, cut_of(config))
    except ImportError:
        return None
    return float(samples * config.shape.seq_length) if samples else None


def _of_share(source: Source, what: str) -> int:
    """Return the number of tokens or sequences in the share of a source; about as many, because documents differ."""
    size = index.extent(source.prefix)
    if size is None:
        return 0
    chosen = source.share.sequences(size.sequences)
    count: int = getattr(size, what)
    return int(count * (chosen.stop - chosen.start) / max(size.sequences, 1))
