"""The catalogue of problems that `deepy explain ID` prints: for each id, what it protects from and an example.

Entries of rules are read from the rules (`neoxargs/resolve/rules/`). The tables in this package hold all other
problems, one module per subject and one row per id. A test compares them with the ids used in the package and runs
every example.
"""

from __future__ import annotations

from functools import cache

from neoxargs.commands.explain.catalogue import (
    adapters,
    commands,
    configuration,
    conversations,
    launch,
    migrate,
    training,
    yaml,
)
from neoxargs.commands.explain.catalogue.entry import Entry, Example
from neoxargs.registry import REGISTRY
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.rules.rule import Rule

SUBJECTS = (yaml, configuration, launch, training, adapters, conversations, migrate, commands)


@cache
def catalogue() -> dict[str, Entry]:
    """Return every problem id with its entry."""
    rules = {rule.id: _of_rule(rule) for rule in (*DERIVATIONS, *CHECKS) if rule.protects_from}
    return rules | {name: entry for subject in SUBJECTS for name, entry in subject.PROBLEMS.items()}


def _of_rule(rule: Rule) -> Entry:
    reads = tuple(name for name in rule.inputs if name in REGISTRY.parameters)
    return Entry(rule.protects_from, Example(rule.example), reads)
