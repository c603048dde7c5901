"""Plugins: modules that declare parameters and choices when they are imported.

    class Hyena(Group, origin="NeoX", effect="model"):      # a fork's keys
        hyena_width: int = param(64)
        \"\"\"Width of the convolution's filters.\"\"\"

    choices("pos_emb", "xpos")                              # further values of an existing parameter

A plugin is named by `--plugin MODULE`, or installed with an entry point in the group `neoxargs.plugins`. Launchers are
declared with `neoxargs.hosts.launchers`.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from neoxargs.base.problems import Problem, Problems
from neoxargs.registry import REGISTRY, SUBJECTS, Group, Parameter, normal
from neoxargs.registry.declare import GROUPS
from neoxargs.registry.types import choices_of

ENTRY_POINTS = "neoxargs.plugins"
#: The plugins of this process, in the order in which they were loaded.
LOADED: list[str] = []
#: Parameter -> the plugin that declared it.
DECLARED: dict[str, str] = {}
#: Parameter -> added choice -> the plugin that added it.
WIDENED: dict[str, dict[Any, str]] = {}
#: Choices that the plugin being imported has declared.
_pending: list[_Choices] = []
SHIPPED = {module.__name__ for module in SUBJECTS}
#: The types that `resolve/values/coerce.py` can check.
TYPES = {Annotated, Literal, Union, types.UnionType, list, dict, bool, int, float, str, type(None), Any, object}


class _Choices(NamedTuple):
    name: str
    values: tuple[Any, ...]


def choices(name: str, *values: Any) -> None:
    """Add values to a parameter whose type is a choice. Call it at the top level of a plugin."""
    _pending.append(_Choices(normal(name), values))


def load(modules: Iterable[str]) -> None:
    """Import plugins and add their declarations to the registry.

    Raises Problems if a plugin cannot be used; nothing of that plugin is added then.
    """
    for module in modules:
        if module not in LOADED:
            _import(module)
            _adopt(module, [group for group in GROUPS if group not in REGISTRY.groups])
            LOADED.append(module)


def installed() -> list[str]:
    """Return the modules that installed distributions name as plugins.

    The entry point files are searched directly first, because importlib.metadata adds 30 ms to every start.
    """
    if not any(ENTRY_POINTS.encode() in text for folder in sys.path for text in _entry_points(folder)):
        return []
    from importlib.metadata import entry_points

    return sorted({point.module for point in entry_points(group=ENTRY_POINTS)})


def subjects() -> list[types.ModuleType]:
    """Return the plugins' modules that declare groups."""
    names = dict.fromkeys(group.__module__ for group in REGISTRY.groups if group.__module__ not in SHIPPED)
    return [sys.modules[name] for name in names]


def _entry_points(folder: str) -> Iterator[bytes]:
    try:
        distributions = [entry.path for entry in os.scandir(folder or ".") if entry.name.endswith("-info")]
    except OSError:
        return
    for path in distributions:
        try:
            with open(os.path.join(path, "entry_points.txt"), "rb") as file:
                yield file.read()
        except OSError:
            continue


def _import(module: str) -> None:
    # Without this, the installed `deepy` and ranks with a script in another folder would not find local plugins.
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    before = set(GROUPS)
    try:
        importlib.import_module(module)
    except Exception as error:
        GROUPS[:] = [group for group in GROUPS if group in before]
        _pending.clear()
        raise Problems([_not_imported(module, error)]) from None


def _not_imported(module: str, error: Exception) -> Problem:
    missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    if missing or not module:
        hint = f"write the module's name as in an `import` statement, without .py; searched: sys.path and {os.getcwd()}"
        return Problem(f"--plugin: there is no module {module or '(empty)'}", hint=hint, id="plugin-missing")
    import traceback  # only errors need it

    last = traceback.extract_tb(error.__traceback__)[-1]
    what, hint = f"plugin {module} cannot be imported: {type(error).__name__}: {error}", "fix the error"
    if isinstance(error, ImportError) and (error.name or "").startswith("neoxargs."):  # a module that has moved
        hint = "import the names for plugins from neoxargs.plugin (CHANGELOG.md)"
    return Problem(what, hint=f"{hint} in {last.filename}:{last.lineno}", id="plugin-not-importable")


def _adopt(plugin: str, groups: list[type[Group]]) -> None:
    """Add all declarations of a plugin to the registry, or none. Raises Problems."""
    wider, _pending[:] = list(_pending), []
    problems = [problem for group in groups for problem in _group_problems(group, plugin)]
    problems += [problem for row in wider for problem in _choice_problems(row, plugin)]
    if not groups and not wider:
        what = f"plugin {plugin} declares nothing"
        hint = "declare a class derived from neoxargs.registry.Group, or call choices(...)"
        problems.append(Problem(what, hint=hint, id="plugin-declares-nothing"))
    if problems:
        GROUPS[:] = [group for group in GROUPS if group not in groups]
        raise Problems(problems)
    for group in groups:
        REGISTRY.add(group)
        DECLARED.update(dict.fromkeys((parameter.name for parameter in group.parameters.values()), plugin))
    for name, values in wider:
        REGISTRY.parameters[name].extra_choices += values
        WIDENED.setdefault(name, {}).update(dict.fromkeys(values, plugin))


def _group_problems(group: type[Group], plugin: str) -> Iterator[Problem]:
    """Yield the reasons why a group cannot be added to the registry."""
    if group.key() in {other.key() for other in REGISTRY.groups}:
        what = f"plugin {plugin}: there is already a group named {group.__name__}"
        yield Problem(what, hint="rename the class", id="plugin-group-name-taken")
    elif not all(isinstance(parameter.annotation, str) for parameter in group.parameters.values()):
        hint = "start the module with `from __future__ import annotations`"
        what = f"plugin {plugin}: the annotations of {group.__name__} are not strings"
        yield Problem(what, hint=hint, id="plugin-types-evaluated")
        return
    for parameter in group.parameters.values():
        yield from _name_problems(parameter, plugin)
        yield from _type_problems(parameter, plugin)


def _name_problems(parameter: Parameter, plugin: str) -> Iterator[Problem]:
    for name in filter(_owner, _spellings(parameter)):
        what = f"plugin {plugin} declares {name}, which {_owner(name)} declares already"
        hint = "remove one of the plugins" if name in DECLARED else "rename the parameter"
        yield Problem(what, hint=hint, id="plugin-parameter-name-taken", about=(name,))


def _type_problems(parameter: Parameter, plugin: str) -> Iterator[Problem]:
    """Yield a problem if the type is unsupported, otherwise if the description is missing."""
    try:
        is_writable = _is_writable(parameter.type)
    except Exception as error:
        what = f"plugin {plugin}: the type of {parameter.name} cannot be evaluated: {error}"
        yield Problem(what, id="plugin-type-unsupported", about=(parameter.name,))
        return
    if not is_writable:
        what = f"plugin {plugin}: the type of {parameter.name} ({parameter.annotation}) is not supported"
        yield Problem(what, hint=SUPPORTED_TYPES, id="plugin-type-unsupported", about=(parameter.name,))
    elif not parameter.description:
        what = f"plugin {plugin}: {parameter.name} has no description"
        hint = "write the description as a string below the declaration"
        yield Problem(what, hint=hint, id="plugin-parameter-without-description", about=(parameter.name,))


SUPPORTED_TYPES = "use bool, int, float, str, None, list[...], dict[str, ...], Literal[...] or a union of them"


def _spellings(parameter: Parameter) -> list[str]:
    """Return the full names of a parameter and of its aliases."""
    section = parameter.name.removesuffix(parameter.attribute)
    return [parameter.name, *(section + alias for alias in parameter.aliases)]


def _owner(name: str) -> str:
    """Return who has declared a name or section: `plugin NAME`, `the package`, or ''."""
    parameter = REGISTRY.find(name)
    if parameter is None and name not in REGISTRY.sections:
        return ""
    return f"plugin {DECLARED[parameter.name]}" if parameter and parameter.name in DECLARED else "the package"


def _is_writable(kind: Any) -> bool:
    """Whether YAML can express the values of a type."""
    base = get_origin(kind) or kind
    if base not in TYPES:
        return False
    inner = () if base is Literal else get_args(kind)[:1] if base is Annotated else get_args(kind)
    return all(map(_is_writable, inner))


def _choice_problems(row: _Choices, plugin: str) -> Iterator[Problem]:
    """Yield the reasons why values cannot be added to the choices of a parameter."""
    parameter = REGISTRY.parameters.get(row.name)
    if parameter is None:
        what = f"plugin {plugin} adds choices to {row.name}, which is not a parameter"
        yield Problem(what, id="plugin-choice-not-possible")
        return
    present = {value for value in choices_of(parameter.type) if not isinstance(value, bool)}
    if not present:
        what = f"plugin {plugin} cannot add choices to {row.name}, which has no list of choices"
        yield Problem(what, id="plugin-choice-not-possible", about=(row.name,))
    for value in row.values:
        if value in present:
            owner = WIDENED.get(row.name, {}).get(value)
            reason = f"plugin {owner} has added it already" if owner else "it is already a choice"
            what = f"plugin {plugin} adds the choice {value} to {row.name}: {reason}"
            yield Problem(what, id="plugin-choice-taken", about=(row.name,))
