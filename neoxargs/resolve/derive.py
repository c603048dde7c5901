"""Complete a draft: defaults, retired parameters, derivations in dependency order, cross-checks.

All problems are collected. A rule that reads a value made unknown by an earlier problem is skipped, which keeps one
mistake from causing several problems. Rules that need neither the number of ranks nor the samples of an epoch, directly
or through others, run first (`before_ranks`), because the hosts and the samples are found from what they derive.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeVar

from neoxargs.base.problems import Place, Problem, Problems, listed
from neoxargs.config.config import Config, Uncertain
from neoxargs.config.value import Source, Value
from neoxargs.registry import ABSENT, REGISTRY, Group, Parameter
from neoxargs.resolve.guess import guess_warnings, other_dialect
from neoxargs.resolve.merge import Draft
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.rules.precision import PRECISION_ALIASES
from neoxargs.resolve.rules.rule import Contradiction, Finding, Rule
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.values.describe_type import describe_type
from neoxargs.resolve.yaml.nodes import Mapping as MappingNode
from neoxargs.resolve.yaml.nodes import Sequence as SequenceNode
from neoxargs.resolve.yaml.nodes import format_node, node_of

if TYPE_CHECKING:
    from neoxargs.config.certain import CertainConfig

#: Variants of Adam that files of 2021 combine (`optimizer.type: Adam` with `cpu_adam: true`), from general to specific.
ADAM_VARIANTS = ("adam", "cpu_adam", "cpu_torch_adam")
#: Places of one problem that are rendered at most.
MAX_PLACES = 4
#: Inputs of rules that are known only when the hosts and the training data have been found.
FOUND_LATER = ("gpus", "samples_per_epoch")

G = TypeVar("G", bound=Group)


class Unresolved(Problems):
    """Raised if the configuration has errors. `partial` is what was resolved, `certain` the values that are known."""

    def __init__(self, problems: Iterable[Problem], partial: Partial) -> None:
        super().__init__(problems)
        self.partial = partial
        self.certain = partial.certain_values()


def complete(
    draft: Draft,
    gpus: int | None,
    derivations: Sequence[Rule] = DERIVATIONS,
    checks: Sequence[Rule] = CHECKS,
    samples_per_epoch: int | None = 0,
) -> Config:
    """Return the configuration of a run with this number of ranks; raises Problems with all errors and warnings.

    gpus: None if the number is unknown because of a problem; rules that read it are then skipped.
    samples_per_epoch: likewise; 0 without `train_epochs`, or if there is nothing to count.
    """
    return before_ranks(draft, derivations).complete(gpus, samples_per_epoch, checks)


def before_ranks(draft: Draft, derivations: Sequence[Rule] = DERIVATIONS) -> Partial:
    """Return the values that need no number of ranks; raises Problems if a file cannot be read."""
    if not draft.readable:
        raise Problems(draft.problems)
    return Partial(draft, ordered(tuple(derivations)))


@lru_cache(maxsize=2)  # the rules, and in tests those of one subject
def ordered(rules: tuple[Rule, ...]) -> tuple[tuple[Rule, bool], ...]:
    """Sort rules topologically: each rule after those whose results it reads.

    The second value is True for a rule that needs the number of ranks or samples, directly or through other rules.
    """
    makers: dict[str, int] = {}
    for index, rule in enumerate(rules):
        for result in rule.results:
            assert result not in makers, f"two rules derive {result}"
            makers[result] = index
    # A rule that reads its own results does not wait for itself.
    needs = {i: {makers[name] for name in r.inputs if name in makers} - {i} for i, r in enumerate(rules)}
    try:
        sorted_rules = [rules[index] for index in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        cycle = " <- ".join(rules[index].id for index in error.args[1])
        raise AssertionError(f"circular dependency between rules: {cycle}") from None
    found_later = set(FOUND_LATER)
    for rule in sorted_rules:
        if not found_later.isdisjoint(rule.inputs):
            found_later.update(rule.results)
    return tuple((rule, not found_later.isdisjoint(rule.inputs)) for rule in sorted_rules)


class Partial:
    """The values of a draft that need no number of ranks; `complete` runs the rules that need it.

    values: grow with each rule.
    broken: names whose value is unknown because of a problem.
    waiting: those of them that would be derived from others.
    given: names set by the user, directly or through a retired parameter.
    special: inputs of rules that are not parameters.
    problems: each with the position of its rule, because the order of messages is that of the rules.
    """

    def __init__(self, draft: Draft, rules: Sequence[tuple[Rule, bool]]) -> None:
        self.draft, self.rules = draft, rules
        self.values = {**draft.dialect.defaults(), **draft.values}
        self.given = set(draft.values)
        self.broken = set(draft.broken)
        self.waiting = set[str]()
        self.problems: list[tuple[int, Problem]] = []
        self.position = -1
        self.special: dict[str, Any] = {
            **dict.fromkeys(FOUND_LATER),
            "written": self.given,
            "sections": draft.sections,
            "auto": draft.auto,
            "default": self.default,
            "day": draft.dialect.date,
        }
        self.places = _written_places(draft)
        # Retired names first, because rules read only current ones; then missing parameters, so that each is reported
        # once and not by every rule that reads it.
        self.rewrite_retired()
        self.require_values()
        self.derive_all(found_later=False)

    def complete(
        self,
        gpus: int | None,
        samples_per_epoch: int | None = 0,
        checks: Sequence[Rule] = CHECKS,
        found: Iterable[Problem] = (),
    ) -> Config:
        """Return the configuration of a run with this number of ranks; see `complete`.

        found: problems of finding the ranks and the samples.
        """
        work = self.completed(gpus, samples_per_epoch, checks)
        # After those of the draft, in the order of the rules.
        in_order = sorted(work.problems, key=lambda found: found[0])
        problems = [*self.draft.problems, *found, *(problem for _, problem in in_order)]
        if any(problem.severity == "error" for problem in problems):
            raise Unresolved(problems, work)
        config = Config(work.values, self.draft.sections, problems, self.draft.dialect)
        config.auto = self.draft.auto
        if other := other_dialect(self.draft.dialect):
            with_other = Partial(self.draft._replace(dialect=other), self.rules).completed(gpus, samples_per_epoch, ())
            config.warnings += guess_warnings(config, with_other.certain_values())
        return config

    def completed(self, gpus: int | None, samples_per_epoch: int | None, checks: Sequence[Rule]) -> Partial:
        """Return a copy after all rules."""
        work = Partial.__new__(Partial)
        work.__dict__.update(self.__dict__)
        work.values, work.broken, work.problems = dict(self.values), set(self.broken), list(self.problems)
        work.waiting = set(self.waiting)
        work.special = {**self.special, "gpus": gpus, "samples_per_epoch": samples_per_epoch}
        work.derive_all(found_later=True)
        # After all derivations, so that a check sees final values whatever the order of the modules.
        work.position = len(work.rules)
        work.check(checks)
        return work

    def group(self, cls: type[G]) -> G:
        """Return a group; reading a value that is unknown because of a problem raises Uncertain."""
        known = {p.attribute: self.values[p.name].value for p in cls.parameters.values() if p.name in self.values}
        if not self.broken:
            return cls(**known)
        from neoxargs.config.certain import watched  # few runs need it

        return watched(cls(**known), self.ask)

    def ask(self, name: str) -> None:
        """Raise Uncertain if the value of a parameter is unknown because of a problem."""
        if self.is_broken(name):
            raise Uncertain(name)

    def is_set(self, name: str) -> bool:
        """True if the user set a parameter."""
        return name in self.given

    def place(self, name: str) -> Place | None:
        """Return the place of a value that the user set."""
        return self.values[name].source.where if name in self.values else None

    def certain_values(self) -> Config:
        """Return the values that are not affected by any problem."""
        values = {name: value for name, value in self.values.items() if not self.is_broken(name)}
        return Config(values, self.draft.sections, [], self.draft.dialect, frozenset(self.broken))

    def certain(self, problems: Iterable[Problem], found: Mapping[str, Iterable[str]]) -> CertainConfig:
        """Return what checks may read of the values, given the errors.

        found: those of FOUND_LATER that are uncertain -> the keys because of which they are.
        """
        wrong = {name: {name} for name in self.broken - self.waiting}
        for about in (problem.about for problem in problems if problem.severity == "error"):
            for name in about:
                wrong.setdefault(name, set()).update(about)
        # Of two values that contradict each other, both are known; one that is not set may be what is missing.
        disputed = {
            name for name in self.given if not wrong.keys().isdisjoint(_prefixes(name)) and not self.is_broken(name)
        }
        unknown = {name: why for name, why in self.affected({**wrong, **found}).items() if name not in disputed}
        from neoxargs.config.certain import CertainConfig

        return CertainConfig(self.certain_values(), unknown, disputed)

    def skipped(self, config: CertainConfig, checks: Sequence[Rule] = CHECKS) -> frozenset[str]:
        """Return the keys because of which rules could not run."""
        inputs = {name for rule in (*(rule for rule, _ in self.rules), *checks) for name in rule.inputs}
        unread = {name for name in inputs if self.is_broken(name)}
        return frozenset().union(*(config.unknown.get(name, (name,)) for name in unread))

    def affected(self, wrong: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
        """Return what is wrong or derived from a wrong value, each with the keys because of which it is affected.

        wrong: the names of the wrong values, with these keys.
        """
        affected = {name: frozenset(keys) for name, keys in wrong.items()}
        for name in REGISTRY.parameters:  # a problem can be about a whole section
            if above := [affected[part] for part in _prefixes(name) if part in affected]:
                affected[name] = frozenset().union(*above)
        for rule, _ in self.rules:
            reasons = frozenset().union(*(affected[name] for name in rule.inputs if name in affected))
            for name in rule.results if reasons else ():
                if name not in self.given or name in rule.inputs:
                    affected[name] = affected.get(name, frozenset()) | reasons
        return affected

    # -- retired parameters ------------------------------------------------------------------------------------------

    def rewrite_retired(self) -> None:
        """Set the parameters that replace retired ones: `geglu: true` sets `activation: geglu`."""
        for name, value in self.draft.values.items():
            rows = REGISTRY.parameters[name].replaced_by
            if rows is None or isinstance(value.value, list | dict):  # no key of a table
                continue
            for target, today in rows.get(value.value, {}).items():
                self.rewrite(name, value, target, today)

    def rewrite(self, name: str, old: Value, target: str, today: Any) -> None:
        """Set the replacement of a retired parameter; if the user set it as well, both must agree."""
        written = f"{name}: {format_node(node_of(old.value))}"
        present = self.values.get(target) if target in self.given else None
        if present is None or _is_narrower(today, present.value, target):
            where = f" ({old.source.where})" if old.source.where else ""
            self.values[target] = Value(today, Source("derived", text=f"`{written}`{where}", inputs=(name,)))
            self.given.add(target)  # by its old name
        elif not (_is_same(present.value, today, target) or _is_narrower(present.value, today, target)):
            now = f"{target}: {format_node(node_of(present.value))}"
            means = f"{target}: {format_node(node_of(today))}"
            what = f"`{written}` is the old form of `{means}`, which contradicts `{now}`"
            self.report(Finding(what, f"remove {name}", id="retired-key-contradicts"), (name, target))
            self.broken.add(target)

    # -- required parameters -----------------------------------------------------------------------------------------

    def require_values(self) -> None:
        """Report required parameters that are not set, unless a problem with them is already reported."""
        absent = [parameter for parameter in REGISTRY.required if parameter.name not in self.values]
        unreported = [parameter for parameter in absent if not self.is_broken(parameter.name)]
        missing = [_no_model(unreported)] if len(unreported) == len(REGISTRY.required) else map(_missing, unreported)
        self.problems += [(self.position, problem) for problem in missing]
        self.broken.update(parameter.name for parameter in absent)

    # -- rules -------------------------------------------------------------------------------------------------------

    def derive_all(self, found_later: bool) -> None:
        """Run the derivations that need the number of ranks or samples, or those that do not."""
        for position, (rule, is_late) in enumerate(self.rules):
            if is_late == found_later:
                self.position = position
                self.derive(rule)

    def derive(self, rule: Rule) -> None:
        """Run a derivation, unless all its results are set or one of its inputs is unknown."""
        # a rule that reads its own results also checks or normalises them (`zero_stage`), so it runs if they are set
        own = {*rule.results}.intersection(rule.inputs)
        wanted = [name for name in rule.results if name not in self.given or name in own]
        if not wanted:
            return
        if not self.can_run(rule, own):
            self.wait_for(*wanted)
            return
        try:
            unknown = set(filter(self.is_broken, rule.even_without))
            result = rule.function(*(None if n in unknown else self.input(n, n in own) for n in rule.inputs))
        except Contradiction as contradiction:
            self.report(contradiction.finding, rule.inputs, rule.id)
            self.broken.update(rule.results)
            return
        results = (result if len(rule.results) > 1 else {rule.results[0]: result}) or {}
        for name in wanted:
            if unknown and results.get(name) is None:
                self.wait_for(name)
            else:
                self.put(name, results.get(name), rule)

    def wait_for(self, *names: str) -> None:
        """Mark results as unknown because an input is."""
        self.broken.update(names)
        self.waiting.update(names)

    def put(self, name: str, value: Any, rule: Rule) -> None:
        """Store a result of a rule; None keeps the default."""
        if value is None:
            if name not in self.values and REGISTRY.parameters[name].default is ABSENT:
                self.put_nothing(name, rule)
        elif name in self.given and self.values[name].value == value:
            pass  # keep the source of the value that the user set
        elif name in self.draft.values:  # normalised by the rule, but still set by the user
            self.values[name] = Value(value, self.draft.values[name].source._replace(text=rule.reason))
        else:
            self.values[name] = Value(value, Source("derived", text=rule.reason, inputs=rule.inputs))

    def put_nothing(self, name: str, rule: Rule) -> None:
        """Store None if the type allows it, else mark the name broken; a check then reports why."""
        try:
            coerce(None, REGISTRY.parameters[name].type)
            self.values[name] = Value(None, Source("derived", text=rule.reason, inputs=rule.inputs))
        except Mismatch:
            self.broken.add(name)

    def check(self, checks: Sequence[Rule]) -> None:
        """Run checks, apart from those one of whose inputs is unknown."""
        read = set[str]().union(*(rule.inputs for rule in checks))
        known = {name: self.input(name) for name in read if not self.is_broken(name)}
        unknown = {name for name in read if known.get(name, ABSENT) is ABSENT}
        for rule in checks:
            if unknown.isdisjoint(rule.inputs):
                found = rule.function(*[known[name] for name in rule.inputs])
                for finding in [found] if isinstance(found, Finding) else found or ():
                    self.report(finding, rule.inputs, rule.id)

    def can_run(self, rule: Rule, own: Container[str]) -> bool:
        """True if a derivation's inputs all have known values. own: results of the rule itself, which need no value."""
        for name in rule.inputs:
            if name in rule.even_without:
                continue
            if name in self.values:
                if self.broken and self.is_broken(name):
                    return False
            elif self.is_broken(name) or (name not in own and self.is_missing(name)):
                return False
        return True

    def is_broken(self, name: str) -> bool:
        # None: a number of ranks or samples that could not be determined.
        if self.special.get(name, 0) is None:
            return True
        # A problem can make the value of a whole section unknown.
        return bool(self.broken) and any(part in self.broken for part in _prefixes(name))

    def is_missing(self, name: str) -> bool:
        if name in self.special or name in self.values:
            return False
        return REGISTRY.parameters[name].default is ABSENT

    def default(self, name: str) -> Any:
        """Return a parameter's default in this dialect; ABSENT if it has none."""
        value = self.draft.dialect.defaults().get(name)
        return value.value if value else REGISTRY.parameters[name].default

    def input(self, name: str, own: bool = False) -> Any:
        """Return the value of a rule's input. own: a result of the rule itself, which is None unless it is set."""
        if name in self.special:
            return self.special[name]
        if own and name not in self.given:
            return None
        return self.values[name].value if name in self.values else REGISTRY.parameters[name].default

    # -- problems ----------------------------------------------------------------------------------------------------

    def report(self, finding: Finding, inputs: Sequence[str], rule_id: str = "") -> None:
        """Add a problem for a finding. inputs: the inputs of the rule.

        Its places are those of the parameters it is about, or of values that these derive from, or else of the rule's
        other inputs.
        """
        read = tuple(name for name in inputs if name not in self.special)
        about = finding.about or read
        places = self.places_of(about) or [self.places[name] for name in read if name in self.places]
        places = list(dict.fromkeys(places or self.places_of(read)))[:MAX_PLACES]
        if finding.inside and (key := self.place_inside(about[0], finding.inside)):
            places = [key]
        where, also = places[0] if places else None, tuple(places[1:])
        problem = Problem(
            finding.sentence, where, finding.advice, also, finding.severity, id=finding.id or rule_id, about=about
        )
        self.problems.append((self.position, problem))

    def place_inside(self, name: str, part: str) -> Place | None:
        """Return the place of a key in the value of a parameter, or of an entry of a list, which has a name such as
        `phase 2`; None for a value that has no places."""
        entry = self.draft.sets.parameters.get(name) or self.draft.entries.parameters.get(name)
        if entry and isinstance(entry.value, SequenceNode):
            place = entry.value.items[int(part.rpartition(" ")[2]) - 1].place
            return place if place.file else None
        within = entry.value.entries if entry and isinstance(entry.value, MappingNode) else []
        return next((each.place for each in within if each.key == part and each.place.file), None)

    def places_of(self, names: Iterable[str]) -> list[Place]:
        """Return the places of parameters; places of values that they derive from come last."""
        names = list(names)
        # The user's own line about the subject is a better place than that of a value it follows from.
        written = [self.places[name] for name in names if name in self.places]
        return written + [place for name in names if name not in self.places for place in self.roots(name, set())]

    def roots(self, name: str, seen: set[str]) -> list[Place]:
        """Return the places of the user's values that a derived value comes from."""
        if name in seen or name not in self.values:
            return []
        seen.add(name)
        source = self.values[name].source
        if source.where:
            return [source.where]
        return [place for read in source.inputs for place in self.roots(read, seen)]


def _written_places(draft: Draft) -> dict[str, Place]:
    """Return the places of parameters and sections, including parameters set to `auto` or null."""
    values = {name: value.source.where for name, value in draft.values.items() if value.source.where}
    return {**draft.open_places, **values, **draft.section_places}


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _is_same(one: Any, other: Any, target: str) -> bool:
    """True if two values of a parameter mean the same: `precision: bf16` is `bfloat16`."""
    words = PRECISION_ALIASES if target == "precision" else {}
    return one == other or (bool(words) and words.get(one, one) == words.get(other, other))


def _is_narrower(one: Any, other: Any, target: str) -> bool:
    """True if `one` is a more specific variant of Adam than `other`: `cpu_torch_adam: true` refines `type: Adam`."""
    if target != "optimizer.type" or not {str(one).lower(), str(other).lower()} <= set(ADAM_VARIANTS):
        return False
    return ADAM_VARIANTS.index(str(one).lower()) > ADAM_VARIANTS.index(str(other).lower())


def _no_model(required: Sequence[Parameter]) -> Problem:
    """The problem if no required parameter is set: only a partial file was given, such as paths or a schedule."""
    names = listed((parameter.name for parameter in required), "and")
    hint = "add a model file to the command, such as configs/models/pythia-160m.yml, or set these parameters in a file"
    about = tuple(parameter.name for parameter in required)
    return Problem(f"no model is configured: {names} are missing", hint=hint, id="model-missing", about=about)


def _missing(parameter: Parameter) -> Problem:
    example = EXAMPLES.get(parameter.name, describe_type(parameter.type))
    what = f"{parameter.name} is missing ({parameter.brief})"
    hint = f"add it, for example `{parameter.name}: {example}`"
    return Problem(what, hint=hint, id="required-parameter-missing", about=(parameter.name,))


#: Example value (GPT-2) for every required parameter.
EXAMPLES = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "seq_length": 1024}
