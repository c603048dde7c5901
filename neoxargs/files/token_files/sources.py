"""The sources of the train, validation and test splits, from the configuration: token files, shares and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.config import value
from neoxargs.config.config import Config
from neoxargs.facts.data import ANSWERS, SPLITS, added, blend, path_list, shares
from neoxargs.facts.validation_sets import validation_sets
from neoxargs.registry.data import Data
from neoxargs.registry.post_training import PostTraining

#: Name of a split of the data, or `validation/NAME` of a named set.
Part = str
PARTS: tuple[Part, ...] = ("train", "validation", "test")
#: The parameters that name the datasets of the splits; those of the preferred and of the rejected answers begin with
#: `pos_` and `neg_`.
TOKEN_FILES = tuple(
    f"{answer}{split}_{kind}" for answer in ANSWERS for kind in ("data_paths", "label_data_paths") for split in SPLITS
)
#: The parameters that name their rewards.
REWARD_FILES = tuple(f"{split}_reward_data_paths" for split in SPLITS)
#: The parameters that name training data.
TRAINING_DATA = ("data_path", "text_path", "train_data_paths", "pos_train_data_paths")
#: How to get the file of `Source.rewards`.
REWARDS_HINT = "write the reward file together with the token file: deepy data --chat --reward-key KEY"


class Share(NamedTuple):
    """A contiguous range of a token file's sequences: one part of those that `proportions` divide it into."""

    proportions: tuple[float, ...]
    part: int

    def sequences(self, count: int) -> slice:
        """Return the sequences of a file with `count` of them, rounded as GPT-NeoX does.

        The parts are rounded one by one, and the first one takes what is left.
        """
        ends = [0]
        for proportion in self.proportions:
            ends.append(ends[-1] + round(proportion / added(self.proportions) * float(count)))
        surplus = ends[-1] - count
        ends[1:] = [max(0, end - surplus) for end in ends[1:]]
        return slice(ends[self.part], ends[self.part + 1])


WHOLE_FILE = Share((1.0,), 0)


class Source(NamedTuple):
    """A share of a token file that samples are drawn from.

    weight: how often, relative to the other sources of the split; None means its number of tokens.
    labels: prefix of its label file.
    rejected: for preference pairs, the source of the rejected answers; this one then has the chosen answers.
    rewards: for KTO, prefix of its reward file.
    """

    prefix: str
    share: Share = WHOLE_FILE
    weight: float | None = None
    labels: str | None = None
    rejected: Source | None = None
    rewards: str | None = None

    @property
    def files(self) -> list[str]:
        """The prefixes of its token files, label files and reward files."""
        own = [name for name in (self.prefix, self.labels, self.rewards) if name]
        return own + (self.rejected.files if self.rejected else [])


def sources(data: Data, answers: PostTraining) -> dict[Part, list[Source]]:
    """Return the sources of each split, from `data_path` and `split` or from the lists of paths of the splits.

    The sets of `validation`, each a part of its own, take the place of the split for validation. `text_path` is not
    read here: the launcher tokenises it before the ranks start and sets `data_path`.
    """
    if data.dataset_impl == "pairwise":
        return {part: _pairs(data, answers, split) for part, split in zip(PARTS, SPLITS, strict=True)}
    if data.data_path:
        found = {
            part: [Source(prefix, share, weight) for prefix, weight in blend(data.data_path)] if share else []
            for part, share in zip(PARTS, split_shares(data.split), strict=True)
        }
    else:
        found = {part: _split(data, answers, split) for part, split in zip(PARTS, SPLITS, strict=True)}
    named = {each.part: _listed(each.paths, each.weights, each.labels) for each in validation_sets(data.validation)}
    return found | {"validation": []} | named if named else found


def part_of(name: Part) -> Part:
    """Return the split of a part: itself, or that of a named set."""
    return name.partition("/")[0]


def files_of(chosen: Mapping[Part, Sequence[Source]]) -> list[str]:
    """Return the prefixes of all files of the splits, each once, in the order of the configuration."""
    return list(dict.fromkeys(name for part in chosen.values() for source in part for name in source.files))


def labelled(chosen: Mapping[Part, Sequence[Source]]) -> dict[str, str]:
    """Return the prefix of each label file of the splits -> that of its token file."""
    answers = [each for part in chosen.values() for source in part for each in (source, source.rejected) if each]
    return {source.labels: source.prefix for source in answers if source.labels}


def reward_files(chosen: Mapping[Part, Sequence[Source]]) -> set[str]:
    """Return the prefixes of the reward files of the splits, which contain no token ids."""
    return {source.rewards for part in chosen.values() for source in part if source.rewards}


def _split(data: Data, answers: PostTraining, split: str) -> list[Source]:
    """Return the sources of the lists of paths of a split."""
    kinds = ("data_paths", "data_weights", "label_data_paths")
    found = _listed(*(getattr(data, f"{split}_{kind}") for kind in kinds))
    if answers.train_impl != "kto":
        return found
    rewards = [name for name, _ in blend(getattr(answers, f"{split}_reward_data_paths") or ())]
    return [source._replace(rewards=name) for source, name in zip(found, rewards, strict=True)]


def _pairs(data: Data, answers: PostTraining, split: str) -> list[Source]:
    """Return the sources of preference pairs: those of the preferred answers, each with its rejected answers."""

    def listed(answer: str) -> list[Source]:
        paths, labels = (getattr(answers, f"{answer}_{split}_{kind}data_paths") for kind in ("", "label_"))
        return _listed(paths, getattr(data, f"{split}_data_weights"), labels)

    pairs = zip(listed("pos"), listed("neg"), strict=True)
    return [preferred._replace(rejected=rejected) for preferred, rejected in pairs]


def weights(
    present: Sequence[Source], data: Data, tokens: Callable[[Source], int], documents: Callable[[Source], int]
) -> list[float]:
    """Return how often each source is drawn from, relative to the others of its split."""
    if data.weight_by_num_documents:
        return _document_weights([documents(source) for source in present], data.weighted_sampler_alpha)
    return [float(tokens(source)) if source.weight is None else float(source.weight) for source in present]


def _document_weights(counts: Sequence[int], alpha: float) -> list[float]:
    """Return the weights of `weight_by_num_documents`, from the number of documents of each source.

    A source with the share p of all documents gets p^alpha (1 - p); the weights add up to 1.
    """
    # The formula would give its only source the weight 0.
    if len(counts) == 1:
        return [1.0]
    parts = [count / sum(counts) for count in counts]
    powers = [part**alpha for part in parts]
    total = added(powers)
    weights = [power / total * (1 - part) for power, part in zip(powers, parts, strict=True)]
    total = added(weights)
    return [weight / total for weight in weights]


def split_shares(split: str | Sequence[float]) -> list[Share | None]:
    """Parse `split`, such as `969, 30, 1`, into the share of each split; None for a split that gets no data."""
    proportions = tuple(shares(split))
    return [Share(proportions, part) if proportion else None for part, proportion in enumerate(proportions)]


def _listed(
    prefixes: Sequence[str] | str | None, weights: Sequence[float] | None, labels: Sequence[str] | str | None
) -> list[Source]:
    """Return sources with their weights and label files; without weights, all have weight 1."""
    names, own = ([name for name, _ in blend(paths or ())] for paths in (prefixes, labels))
    if not names:  # weights and labels without paths, which have no effect
        return []
    weighted = zip(names, weights or [1.0] * len(names), strict=True)
    found = [Source(name, weight=weight) for name, weight in weighted]
    return [source._replace(labels=label) for source, label in zip(found, own, strict=True)] if own else found


def named_token_files(get: Callable[[str], Any], name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the prefix of each token file and label file, with the parameter that names it.

    name: the only parameter to look at.
    """
    for each in [name] if name else ["data_path", *TOKEN_FILES, "validation"]:
        if each == "data_path":
            paths = [prefix for prefix, _ in blend(get(each) or ())]
        elif each == "validation":
            paths = [path for one in validation_sets(get(each)) for path in (*one.paths, *one.labels)]
        else:
            paths = path_list(get(each))
        yield from ((each, path) for path in paths)


def sets_with(prefix: str, get: Callable[[str], Any]) -> list[str]:
    """Return the names of the sets of `validation` that a token file or a label file belongs to."""
    return [each.name for each in validation_sets(get("validation")) if prefix in (*each.paths, *each.labels)]


def is_label_file(name: str, prefix: str, get: Callable[[str], Any]) -> bool:
    """Whether a prefix that a parameter names is that of a label file."""
    if name == "validation":
        return any(prefix in each.labels for each in validation_sets(get(name)))
    return "_label_" in name


def with_text(config: Config) -> Config:
    """Derive `data_path`, the prefix of the token file that is created, if only `text_path` is set."""
    if not config.data.text_path or config.data.data_path:
        return config
    origin = value.Source("derived", text="tokenised from text_path", inputs=("text_path", "run_dir"))
    return config.with_values({"data_path": str(Path(config.logging.run_dir, "data", "text"))}, origin)
