"""`deepy diff --deepspeed A..B FILE`: what another version of DeepSpeed changes for a configuration."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from neoxargs.base.problems import Problem, Problems, has_errors, listed, report
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.checks.receivers import receiver_problems
from neoxargs.commands.diff.side import short_json
from neoxargs.registry import receivers
from neoxargs.runs.run_spec import RunSpec, resolve_run
from neoxargs.targets.deepspeed import sent_values


def run(options: Namespace) -> int:
    """Print what changes between two versions; return 1 if the newer one refuses the file. Raises Problems."""
    given = {"--at": options.at, "--html": options.html, "--allow-rounding": options.allow_rounding}
    if apart := listed([option for option, value in given.items() if value], "and"):
        what = f"--deepspeed compares two versions for one file, and {apart} two runs"
        raise Problems(Problem(what, hint=f"remove {apart}, or --deepspeed", id="diff-of-two-runs"))
    versions, names = options.deepspeed, [name for name in (options.a, options.b, *options.more) if name]
    if len(names) != 1:
        option = f"--deepspeed {'..'.join(versions)}"
        what = f"{option} compares two versions for one configuration, but {len(names)} were given"
        raise Problems(Problem(what, hint="join YAML files with +", id="diff-of-two-runs"))
    spec = resolve_run(Request(names[0].split("+"), (), options.conf_dir, options.gpus), os.environ)
    before, after = (receiver_problems(replace(spec, assumed={"deepspeed": version})) for version in versions)
    new = [each for each in after if each.severity == "error" and not any(_same(each, other) for other in before)]
    gone = [problem for problem in before if not any(_same(problem, each) for each in after)]
    defaults = list(changed_defaults(spec, *versions))
    if options.json:
        answer: dict[str, Any] = {"ok": not has_errors(after), "a": versions[0], "b": versions[1]}
        answer["problems"] = [problem.to_json() for problem in after]
        answer["solved"] = [problem.to_json() for problem in gone]
        print(json.dumps(answer | {"defaults": defaults}, indent=2))
        return int(has_errors(after))
    report(after)
    print("\n".join(_lines(versions, new, gone, defaults)))
    return int(has_errors(after))


def _same(one: Problem, other: Problem) -> bool:
    return (one.id, one.about) == (other.id, other.about)


def changed_defaults(spec: RunSpec, a: str, b: str) -> Iterator[dict[str, Any]]:
    """Yield each key whose default differs and whose section is sent, with the value of the configuration."""
    config, sent = spec.config, sent_values(spec.config)
    for name in receivers.default_changes():
        before, after = receivers.default_in(name, a), receivers.default_in(name, b)
        section = name.rpartition(".")[0]
        concerns = not section or any(key.startswith(section + ".") for key in sent)
        if before != after and concerns:
            set_here = config.is_set(name)
            row = {"name": name, "a": before, "b": after, "sent": sent.get(name), "set": set_here}
            yield row | {"where": str(config.place(name) or "")}


def _lines(
    versions: tuple[str, str], new: list[Problem], gone: list[Problem], defaults: list[dict[str, Any]]
) -> Iterator[str]:
    a, b = versions
    yield f"DeepSpeed {a} -> {b}"
    if not (new or gone or defaults):
        yield "=> nothing changes for this configuration"
        return
    yield from (f"  no longer accepted: {', '.join(each.about)} ({each.where or 'not set'})" for each in new)
    yield from (f"  accepted now: {', '.join(each.about)} ({each.where or 'not set'})" for each in gone)
    for row in defaults:
        values = f"{short_json(row['a'])} -> {short_json(row['b'])}"
        what = f"{short_json(row['sent'])} is sent to both" if row["sent"] is not None else "it is not sent"
        yield f"  default changed: {row['name']}: {values}; {what}"
