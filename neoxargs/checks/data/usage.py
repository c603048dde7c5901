"""What a run makes of its documents: where they end, how often they are read, and how much of samples is padding.

Headers and the beginnings of token files are read, without numpy.
"""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.base.record import replace
from neoxargs.checks.checkpoint.model import continued_checkpoint
from neoxargs.checks.data.files import EXAMINED, end_of_document_token
from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.mixture import ends_early, mixture_of, used_up
from neoxargs.facts.trained import is_frozen, prompt_length
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.token_files import index
from neoxargs.files.token_files.sources import Part, Source, sources
from neoxargs.files.token_files.timeline import BEGINNING, drawn, mixture_schedule

#: How often documents can be read before repetitions are worth less than new ones (Muennighoff et al. 2023).
MOST_EPOCHS = 4
#: Narrower models, of tests and tutorials, are trained on a few texts.
NARROWEST = 512
#: The parts of samples that may be padding, and the part of tokens that may be cut off.
MOST_PADDING, MOST_CUT = 0.5, 0.2
#: Documents whose lengths are read.
DOCUMENTS = 1 << 14
#: The settings that take effect at end-of-document tokens.
AT_ENDS = ("eod_mask_loss", "reset_position_ids", "reset_attention_mask")


def missing_ends(config: Config) -> Iterator[Problem]:
    """Yield a warning for each token file without the end-of-document tokens that a setting looks for."""
    # In samples of best_fit, the places of the documents are known.
    relying = AT_ENDS if config.data.pack_impl != "best_fit" else AT_ENDS[:1]
    names = [name for name in relying if config.get(name)]
    if not names:
        return
    try:
        end = end_of_document_token(config)
    except Problems:  # reported with the tokenizer
        return
    for prefix in _prefixes(config) if end is not None else ():
        if not any(end in ids for _, ids in index.some_ids(prefix, EXAMINED)):
            what = f"{prefix} has no end-of-document token ({end}) where it was read, so that "
            what += f"{listed(names, 'and')} {'has' if len(names) == 1 else 'have'} no effect on it"
            hint = "tokenise the text again, and append the token to each document (deepy data does; --append-eod in "
            hint += "tools of GPT-NeoX and Megatron)"
            about = (*names, "data_path")
            yield Problem(what, config.place(names[0]), hint, severity="warning", id="data-without-ends", about=about)


def often_repeated(config: Config) -> Iterator[Problem]:
    """Yield a warning for each source of pretraining that is read more often than is useful."""
    data, training = config.data, config.training
    continues = config.checkpoint.finetune or is_frozen(config) or config.post_training.train_impl != "normal"
    if data.pack_impl != "packed" or data.text_path or training.train_epochs or continues:
        return
    used = sources(data, config.post_training)["train"] if config.shape.hidden_size >= NARROWEST else []
    found, sizes = drawn(config, used), BatchSizes.of(config.get)
    for each in found:
        if each.epochs is None or each.available is None or each.epochs <= MOST_EPOCHS:
            continue
        share = each.tokens / sum(other.tokens for other in found)
        what = f"{each.name} is read {each.epochs:,.3g} times: the run draws {each.tokens:,.3g} tokens from "
        what += f"it{f' ({share:.2g} of all)' if share < 1 else ''}, and it has {each.available:,.3g}; the first "
        what += f"repetitions are in iteration {sizes.iterations_in(each.repeats_at or 0) + 1:,}"
        fewer = sizes.iterations_in(int(sizes.samples_after(training.train_iters) * MOST_EPOCHS / each.epochs))
        weighing = ("train_data_mixture", "train_data_weights")
        weight = next((name for name in weighing if config.is_set(name)), "data_path")
        hint = f"use more text, or set train_iters to at most {fewer}"
        if weight == "train_data_mixture":
            hint += f", or train_data_max_epochs to {MOST_EPOCHS}"
        elif share < 1:
            hint += f", or give it {share * MOST_EPOCHS / each.epochs:.2g} of the weight"
        place = config.place(weight) or config.place("train_data_paths")
        yield Problem(what, place, hint, severity="warning", id="data-repeated", about=(weight, "train_iters"))


def mixture_ends_early(config: Config) -> Iterator[Problem]:
    """Yield the error of a run that is longer than its mixture of datasets, or a warning if that is due to a spike."""
    of = sources(config.data, config.post_training)["train"] if not config.data.text_path else []
    mixture = mixture_of(config.get, len(of)) if of else None
    if not mixture:
        return
    checkpoint = continued_checkpoint(config)
    position = checkpoint_folder.position_of(checkpoint, config.get) if checkpoint else BEGINNING
    sizes, iterations = BatchSizes.of(config.get), config.training.train_iters
    last = position.last_sample(sizes, iterations)
    found = mixture_schedule(config, of, mixture, last)
    where = config.source("train_data_max_epochs").where
    if found and (problem := used_up(found, last - position.left_out)):
        yield replace(problem, where=where)
    elif found and found.end < last:
        yield replace(ends_early(found, position, sizes, iterations), where=where)


def wasted_samples(config: Config) -> Iterator[Problem]:
    """Yield a warning for samples that are mostly padding, and for documents of which much is cut off or left out."""
    data, window = config.data, config.shape.seq_length + 1 - prompt_length(config.soft_prompt)
    if data.pack_impl == "packed" or data.text_path or window < 1:
        return
    for prefix in _prefixes(config, "train"):
        lengths = list(index.some_lengths(prefix, DOCUMENTS))
        kept = [min(length, window) for length in lengths if length <= window or data.allow_chopped]
        if not sum(kept):  # reported elsewhere
            continue
        lost, padding = 1 - sum(kept) / sum(lengths), 1 - sum(kept) / (len(kept) * window)
        if data.pack_impl == "unpacked" and padding > MOST_PADDING and lost <= MOST_CUT:
            what = f"about {padding:.0%} of each sample of {prefix} is padding, which takes as long as text"
            hint = f"set seq_length to {max(lengths)}" if max(lengths) < window - 1 else "set a smaller seq_length"
            hint += ", or pack_impl to best_fit" * (config.post_training.train_impl == "normal")
            about, id_ = ("pack_impl", "seq_length"), "data-mostly-padding"
        elif lost > MOST_CUT:
            what = f"about {lost:.0%} of the tokens of {prefix} are "
            what += "cut off" if data.allow_chopped else "left out (allow_chopped: false)"
            what += f": they are in documents of more than {window:,} tokens"
            hint = "set a larger seq_length, or shorten the documents"
            about, id_ = ("seq_length", "allow_chopped"), "data-mostly-cut"
        else:
            continue
        yield Problem(what, config.place(about[0]), hint, severity="warning", id=id_, about=about)


def _prefixes(config: Config, *parts: Part) -> list[str]:
    """Return the prefixes of the token files of these splits that exist, of all splits by default, each once."""
    if config.data.text_path:
        return []
    chosen = sources(config.data, config.post_training)
    named: Iterator[Source] = (source for part in parts or chosen for source in chosen[part])
    both = (each for source in named for each in (source, source.rejected) if each)
    return [prefix for prefix in dict.fromkeys(source.prefix for source in both) if index.extent(prefix)]
