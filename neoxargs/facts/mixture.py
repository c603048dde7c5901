"""How often a run reads each source of its training data: `train_data_mixture` and `train_data_max_epochs`.

A run has phases. In a phase of the style `constant`, a sample is from a source with the share of its weight. In others,
the shares move from those before to those of the phase, which they reach at its end, along the curves of `lr_schedule`.
A source that has been read `train_data_max_epochs` times is left out from then on, and the others share what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from neoxargs.base.problems import Problem, did_you_mean
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.data import added
from neoxargs.facts.length_units import UNITS, order_hint
from neoxargs.facts.lengths import Sizes, samples
from neoxargs.facts.lr_phases import CONSTANT, LEFT
from neoxargs.facts.mistakes import Mistakes, is_finite, refuse_each, wrong_keys
from neoxargs.facts.position import Position

KEYS = ("style", "until", "weights", "temperature")
STYLES = (CONSTANT, *LEFT)
#: A phase in which the shares move has at most so many steps, in each of which they are constant.
STEPS = 100
#: The parameters that define a mixture, each of which gives the samples the order of one.
PARAMETERS = ("train_data_mixture", "train_data_max_epochs")
#: Of a source that may be read any number of times.
LIMITLESS = 1 << 62
#: Differences of numbers of samples that are due to rounding.
CLOSE = 1e-6


class Phase(NamedTuple):
    """A part of the run, up to sample `until`, counted from 0; the last one lasts until its end."""

    style: str
    until: int | None
    weights: Sequence[float] | None
    """Of the sources; None if they follow from the sizes of the datasets and the temperature."""
    temperature: float


class Mixture(NamedTuple):
    """A mixture, before the sizes of its sources are known."""

    phases: Sequence[Phase]
    max_epochs: Sequence[float | None]
    """How often each source may be read; None for any number of times."""


class Piece(NamedTuple):
    """Samples from `begin` on, before the run's end or that of the piece, that are drawn with the same shares."""

    begin: float
    """Samples before the piece. A number with a fraction if a source ends there."""
    shares: Sequence[float]
    """Of the sources; they add up to 1."""


class MixtureSchedule(NamedTuple):
    """The pieces of a run."""

    pieces: Sequence[Piece]
    end: float
    """The samples that were asked for, or fewer if all sources of a phase have been read as often as they may."""

    def drawn(self) -> list[tuple[float, list[float]]]:
        """Return samples of the run where a piece begins, and `end`, and how many each source has until then.

        They are exact numbers; those of whole samples differ from them by a few.
        """
        read = [0.0] * len(self.pieces[0].shares)
        curve = [(0.0, read)]
        for piece, end in self.with_ends():
            read = [of + share * (end - piece.begin) for share, of in zip(piece.shares, read, strict=True)]
            curve.append((end, read))
        return curve

    def shares_at(self, samples: int) -> Sequence[float]:
        """Return the shares of the sample that follows after so many."""
        return [piece.shares for piece in self.pieces if piece.begin <= samples][-1]

    def with_ends(self) -> Iterator[tuple[Piece, float]]:
        """Yield the pieces, each with the samples before its end."""
        return zip(self.pieces, [*(piece.begin for piece in self.pieces[1:]), self.end], strict=True)


def mixture_of(get: Callable[[str], Any], sources: int) -> Mixture | None:
    """Return the mixture of a run's parameters; None if it has none. Raises Mistakes if there are any in its phases.

    sources: their number; 0 if they are not known yet.
    """
    listed, most = (get(name) for name in PARAMETERS)
    if not sources or (not listed and most is None):
        return None
    return Mixture(phases(listed or (), sources, Sizes.of(get)), most if isinstance(most, list) else [most] * sources)


def schedule_of(
    mixture: Mixture, first: Sequence[float], sizes: Sequence[int], total: int, reach: int = 0
) -> MixtureSchedule:
    """Return the pieces of a run of `total` samples.

    first: weights of the sources before the first phase. sizes: samples in one pass over each. reach: the last sample
    if the run reads others than the first `total`; the last shares stay to it.
    """
    most, last = limits(mixture, sizes), max(total, reach)
    planned = list(_planned(mixture.phases, _shares(first), sizes, total, last))
    read = [0.0] * len(sizes)
    found: list[Piece] = []
    for (begin, wanted), end in zip(planned, [*(begin for begin, _ in planned[1:]), float(last)], strict=True):
        while end - begin > CLOSE:
            left = [share if limit - of > CLOSE else 0.0 for share, limit, of in zip(wanted, most, read, strict=True)]
            if not any(left):
                return MixtureSchedule(found, begin)
            # Not normalised twice, so that they round as those of GPT-NeoX.
            shares = wanted if left == wanted else _shares(left)
            found.append(Piece(begin, shares))
            ends = [(limit - of) / share for share, limit, of in zip(shares, most, read, strict=True) if share]
            length = min(end - begin, *ends)
            read = [min(limit, of + share * length) for share, limit, of in zip(shares, most, read, strict=True)]
            begin += length
    return MixtureSchedule(found, float(last))


def limits(mixture: Mixture, sizes: Sequence[int]) -> list[int]:
    """Return how many samples of each source a run may read, LIMITLESS for any number. sizes: of one pass over each."""
    each = zip(mixture.max_epochs, sizes, strict=True)
    return [LIMITLESS if size and most is None else int((most or 0) * size) for most, size in each]


def used_up(found: MixtureSchedule, total: int) -> Problem | None:
    """Return the problem of a run of `total` samples whose mixture has fewer."""
    if found.end >= total:
        return None
    what = f"after {int(found.end + CLOSE):,} of {total:,} samples, every dataset that has a share has been read as "
    what += "often as train_data_max_epochs allows"
    hint = "increase train_data_max_epochs, give other datasets a share, or decrease train_iters"
    return Problem(what, hint=hint, id="mixture-used-up", about=("train_data_max_epochs", "train_iters"))


def ends_early(found: MixtureSchedule, position: Position, sizes: BatchSizes, iterations: int) -> Problem:
    """Return the warning that a run of so many iterations which goes on from a position ends before the last one.

    sizes: of the run from its beginning.
    """
    left_out = position.left_out
    steps = position.onwards(sizes).iterations_in(int(found.end + CLOSE) - left_out)
    what = f"the run will end after {steps:,} of {iterations:,} iterations: after {left_out:,} samples that were "
    what += "left out at spikes, every dataset that has a share will have been read as often as train_data_max_epochs "
    what += "allows"
    hint = "increase train_data_max_epochs, or give other datasets a share"
    about = ("train_data_max_epochs", "on_spike")
    return Problem(what, hint=hint, severity="warning", id="mixture-ends-early", about=about)


def _planned(
    phases: Sequence[Phase], before: Sequence[float], sizes: Sequence[int], total: int, last: int
) -> Iterator[tuple[float, Sequence[float]]]:
    """Yield where new shares begin, up to `last`, and these, as if no source ended."""
    begin = 0
    for style, until, weights, temperature in phases or [Phase(CONSTANT, None, before, 1.0)]:
        # Samples that are ordered together must not depend on where the run ends, but moving shares do anyway.
        limit = last if style == CONSTANT else total
        end = max(begin, min(until or limit, limit))
        shares = _shares(weights or [size ** (1 / temperature) for size in sizes])
        steps = 1 if style == CONSTANT else max(1, min(STEPS, end - begin))
        for step in range(steps):
            left = 0.0 if style == CONSTANT else LEFT[style]((step + 0.5) / steps)
            if end > begin:
                mixed = [to + (of - to) * left for of, to in zip(before, shares, strict=True)]
                yield float(begin + (end - begin) * step // steps), mixed
        begin, before = end, shares
    if begin < last:
        yield float(begin), before


def _shares(weights: Sequence[float]) -> list[float]:
    return [weight / (added(weights) or 1) for weight in weights]


def phases(listed: Sequence[Any], sources: int, sizes: Sizes) -> list[Phase]:
    """Return the phases of `train_data_mixture`. Raises Mistakes with everything that is wrong."""
    refuse_each(listed, lambda given, number: _wrong(given, number == len(listed), sources, sizes))
    found: list[Phase] = []
    for number, given in enumerate(listed, 1):
        until = samples(given["until"], sizes) if "until" in given else None
        if until and found and until <= (found[-1].until or 0):
            what = f"until ({until:,} samples) must be after the end of the phase before it ({found[-1].until:,})"
            raise Mistakes([(f"phase {number}", what, order_hint(given["until"]))])
        style, temperature = given.get("style", CONSTANT), float(given.get("temperature", 1))
        found.append(Phase(style, until, given.get("weights"), temperature))
    return found


def _wrong(given: Any, is_last: bool, sources: int, sizes: Sizes) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a phase by itself, and what to write instead."""
    yield from wrong_keys(given, KEYS, "phase", "{until: 60%, weights: [0.8, 0.2]}")
    if not isinstance(given, Mapping):
        return
    style = given.get("style", CONSTANT)
    if style not in STYLES:
        yield f"style ({style!r}) is not known", did_you_mean(str(style), STYLES) or f"write one of {', '.join(STYLES)}"
    if "until" in given and samples(given["until"], sizes) is None:
        yield f"until ({given['until']!r}) is no length", f"write {UNITS}"
    if "until" not in given and not is_last:
        yield "until is missing", "only the last phase ends with the run by default"
    if ("weights" in given) is ("temperature" in given):
        what = "it has both weights and temperature" if "weights" in given else "it has neither weights nor temperature"
        yield what, "write weights, or temperature for weights from the sizes of the datasets"
    if "weights" in given:
        yield from _wrong_weights(given["weights"], sources)
    temperature = given.get("temperature", 1)
    if not is_finite(temperature) or temperature <= 0:
        hint = "write 1 for shares in proportion to the sizes of the datasets, or more for more equal ones"
        yield f"temperature ({temperature!r}) must be a number above 0", hint


def _wrong_weights(weights: Any, sources: int) -> Iterator[tuple[str, str]]:
    valid = isinstance(weights, list) and all(is_finite(each) and each >= 0 for each in weights) and any(weights)
    each = "for each dataset, in their order"
    if not valid:
        yield f"weights ({weights!r}) must be a list of numbers of at least 0, not all 0", f"write one {each}"
    elif len(weights) != sources:
        yield f"it has {len(weights)} weights, but the number of datasets is {sources}", f"write one weight {each}"
