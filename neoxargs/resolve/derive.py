"""From what was written to a complete configuration: defaults, rewrites, rules in order, cross-checks.

Everything that is wrong is collected; a rule or a check that would read a value which is unknown because of an
earlier problem is left out, so that one mistake is told once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from neoxargs.problems import Place, Problem, Problems, listed
from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.resolve.config import Config
from neoxargs.resolve.dialect import guess_warnings
from neoxargs.resolve.merge import Draft
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.rules.rule import Contradiction, Rule
from neoxargs.resolve.value import Source, Value
from neoxargs.resolve.values.coerce import Mismatch, conform
from neoxargs.resolve.values.describe_type import expectation
from neoxargs.resolve.yaml.nodes import node_of, shown

#: Forms of Adam that in 2021 were written one beside the other, each narrower than the one before.
ADAMS = ("adam", "cpu_adam", "cpu_torch_adam")


class Unresolved(Problems):
    """A configuration that did not come to one; what of it is certain can be looked at for further problems."""

    def __init__(self, problems: Iterable[Problem], known: Config, broken: Iterable[str]) -> None:
        super().__init__(problems)
        self.known = known
        self.broken = frozenset(broken)


def complete(
    draft: Draft,
    gpus: int | None,
    derivations: Sequence[Rule] = DERIVATIONS,
    checks: Sequence[Rule] = CHECKS,
) -> Config:
    """The configuration of a run on so many processes; raises Problems with all of them, the draft's too.

    gpus: None when that is unknown because of a problem; what depends on it is then not looked at.
    """
    if not draft.readable:
        raise Problems(draft.problems)
    work = _Completion(draft, gpus)
    work.rewrite_retired()
    work.require()
    for rule in ordered(derivations):
        work.derive(rule)
    for rule in checks:
        work.check(rule)
    if any(problem.severity == "error" for problem in work.problems):
        raise Unresolved(work.problems, work.known(), work.broken)
    config = Config(work.values, draft.sections, work.problems, draft.dialect)
    config.warnings += guess_warnings(draft.dialect, config.values)
    config.auto = draft.auto
    return config


def ordered(rules: Sequence[Rule]) -> list[Rule]:
    """Every rule after those whose results it reads."""
    makers: dict[str, int] = {}
    for index, rule in enumerate(rules):
        for result in rule.results:
            assert result not in makers, f"two rules derive {result}"
            makers[result] = index
    needs = {i: {makers[name] for name in r.inputs if name in makers} - {i} for i, r in enumerate(rules)}
    try:
        return [rules[index] for index in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        cycle = " <- ".join(rules[index].function.__name__ for index in error.args[1])
        raise AssertionError(f"rules wait for each other: {cycle}") from None


class _Completion:
    def __init__(self, draft: Draft, gpus: int | None) -> None:
        self.draft = draft
        self.values = {**draft.dialect.defaults(), **draft.values}
        self.given = set(draft.values)
        self.broken = set(draft.broken)
        self.problems = list(draft.problems)
        self.special: dict[str, Any] = {
            "gpus": gpus,
            "written": self.given,
            "sections": draft.sections,
            "auto": draft.auto,
            "default": self.default,
        }

    def known(self) -> Config:
        """The values that no problem touches."""
        values = {name: value for name, value in self.values.items() if not self.is_broken(name)}
        return Config(values, self.draft.sections, [], self.draft.dialect, frozenset(self.broken))

    # -- retired parameters ------------------------------------------------------------------------------------------

    def rewrite_retired(self) -> None:
        """`geglu: true` says `activation: geglu` today."""
        for name, value in self.draft.values.items():
            rows = REGISTRY.parameters[name].replaced_by
            if rows is None or isinstance(value.value, list | dict):
                continue
            for target, today in rows.get(value.value, {}).items():
                self.rewrite(name, value, target, today)

    def rewrite(self, name: str, old: Value, target: str, today: Any) -> None:
        said = f"{name}: {shown(node_of(old.value))}"
        present = self.values.get(target) if target in self.given else None
        if present is None or _is_narrower(today, present.value, target):
            where = f" ({old.source.where})" if old.source.where else ""
            self.values[target] = Value(today, Source("derived", text=f"`{said}`{where}", inputs=(name,)))
            self.given.add(target)
        elif present.value != today and not _is_narrower(present.value, today, target):
            now = f"{target}: {shown(node_of(present.value))}"
            what = f"{said} means {target}: {shown(node_of(today))} today, which contradicts {now}"
            self.report(Problem(what, hint=f"leave {name} out"), (name, target))
            self.broken.add(target)

    # -- required parameters -----------------------------------------------------------------------------------------

    def require(self) -> None:
        required = [parameter for parameter in REGISTRY.parameters.values() if parameter.required]
        absent = [parameter for parameter in required if parameter.name not in self.values]
        told = [parameter for parameter in absent if not self.is_broken(parameter.name)]
        self.problems += [_no_model(told)] if len(told) == len(required) else map(_missing, told)
        self.broken.update(parameter.name for parameter in absent)

    # -- rules -------------------------------------------------------------------------------------------------------

    def derive(self, rule: Rule) -> None:
        own = set(rule.results) & set(rule.inputs)
        wanted = [name for name in rule.results if name not in self.given or name in own]
        if not wanted:
            return
        if not self.is_known(rule, own):
            self.broken.update(wanted)
            return
        try:
            result = rule.function(*(self.input(name, name in own) for name in rule.inputs))
        except Contradiction as contradiction:
            self.report(Problem(contradiction.sentence, hint=contradiction.hint), rule.inputs)
            self.broken.update(rule.results)
            return
        results = result if len(rule.results) > 1 else {rule.results[0]: result}
        for name in wanted:
            self.put(name, (results or {}).get(name), rule)

    def put(self, name: str, value: Any, rule: Rule) -> None:
        if value is None:
            if name not in self.values and REGISTRY.parameters[name].default is ABSENT:
                self.absent(name, rule)
        elif name in self.given and self.values[name].value == value:
            pass  # as it was written, or as a retired name says it
        elif name in self.draft.values:  # put into its full form; still the user's
            self.values[name] = Value(value, replace(self.draft.values[name].source, text=rule.sentence))
        else:
            self.values[name] = Value(value, Source("derived", text=rule.sentence, inputs=rule.inputs))

    def absent(self, name: str, rule: Rule) -> None:
        """The rule has no value: None where the type admits it, else nobody knows (a check says why)."""
        try:
            conform(None, REGISTRY.parameters[name].type)
            self.values[name] = Value(None, Source("derived", text=rule.sentence, inputs=rule.inputs))
        except Mismatch:
            self.broken.add(name)

    def check(self, rule: Rule) -> None:
        if not self.is_known(rule, set()):
            return
        answer = rule.function(*(self.input(name) for name in rule.inputs))
        if isinstance(answer, Problem):
            self.report(answer, rule.inputs)
        elif answer is not None:
            what, hint = (answer, "") if isinstance(answer, str) else answer
            self.report(Problem(what, hint=hint), rule.inputs)

    def is_known(self, rule: Rule, own: set[str]) -> bool:
        return not any(self.is_broken(name) or (name not in own and self.is_missing(name)) for name in rule.inputs)

    def is_broken(self, name: str) -> bool:
        return any(part in self.broken for part in _prefixes(name)) or self.special.get(name, 0) is None

    def is_missing(self, name: str) -> bool:
        if name in self.special or name in self.values:
            return False
        return REGISTRY.parameters[name].default is ABSENT

    def default(self, name: str) -> Any:
        """What a parameter is in this dialect where nobody writes it; ABSENT if it has no default."""
        found = self.draft.dialect.defaults().get(name)
        return found.value if found else REGISTRY.parameters[name].default

    def input(self, name: str, own: bool = False) -> Any:
        if name in self.special:
            return self.special[name]
        if own and name not in self.given:
            return None
        return self.values[name].value if name in self.values else REGISTRY.parameters[name].default

    # -- problems ----------------------------------------------------------------------------------------------------

    def report(self, problem: Problem, names: Iterable[str]) -> None:
        """Add a problem about these parameters, at the places where they were written."""
        if problem.where is None:
            places = self.places(problem.what, list(names))
            problem = replace(problem, where=places[0] if places else None, also=(*problem.also, *places[1:]))
        self.problems.append(problem)

    def places(self, sentence: str, names: list[str]) -> list[Place]:
        """Where the parameters and sections that the sentence names were written, those that others follow from last;
        if it names none, where any of the rule's inputs comes from."""
        sections = self.draft.section_places
        values = {name: value.source.where for name, value in self.draft.values.items()}
        written: dict[str, Place | None] = {**self.draft.open_places, **values, **sections}
        # a rule that reads `written` speaks of parameters that are not among its inputs
        others = [name for name in self.draft.values if "_" in name or "." in name] if "written" in names else []
        named = [name for name in dict.fromkeys([*names, *others, *sections]) if _names(sentence, name)]
        for choice in (named, names):
            found = [place for name in choice if (place := written.get(name))]
            if choice is named or not found:
                found += [place for name in choice if name not in written for place in self.roots(name, set())]
            if found:
                return list(dict.fromkeys(found))[:4]
        return []

    def roots(self, name: str, seen: set[str]) -> list[Place]:
        """Where the written values were written that a derived value comes from."""
        if name in seen or name not in self.values:
            return []
        seen.add(name)
        source = self.values[name].source
        if source.where:
            return [source.where]
        return [place for read in source.inputs for place in self.roots(read, seen)]


def _names(sentence: str, name: str) -> bool:
    """Does the sentence name exactly this parameter, not one whose name contains it?"""
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", sentence))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _is_narrower(one: Any, other: Any, target: str) -> bool:
    """`cpu_torch_adam: true` beside `optimizer: {type: Adam}` tells which Adam."""
    if target != "optimizer.type" or not {str(one).lower(), str(other).lower()} <= set(ADAMS):
        return False
    return ADAMS.index(str(one).lower()) > ADAMS.index(str(other).lower())


def _no_model(required: Iterable[Parameter]) -> Problem:
    """A file that is one of several, such as paths or a schedule."""
    names = listed((parameter.name for parameter in required), "and")
    hint = "name the file of a model beside this one, such as configs/models/pythia-160m.yml, or write them here"
    return Problem(f"no model is described: {names} are missing", hint=hint)


def _missing(parameter: Parameter) -> Problem:
    example = EXAMPLES.get(parameter.name, expectation(parameter.type))
    what = f"{parameter.name} is missing: {parameter.brief}"
    return Problem(what, hint=f"write for example `{parameter.name}: {example}`")


#: A GPT-2 sized value for every required parameter.
EXAMPLES = {
    "num_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "seq_length": 1024,
}
