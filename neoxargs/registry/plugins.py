"""Parameters and choices from outside the package: a plugin is a module that declares them while it is imported.

    class Hyena(Group, origin="NeoX", effect="model"):      # a fork's keys
        hyena_width: int = param(64)
        \"\"\"Width of the convolution's filters.\"\"\"

    choices("pos_emb", "xpos")                              # further values of a parameter that exists

It is named by `--plugin MODULE`, or installed with an entry point in the group `neoxargs.plugins`. Ways of starting
ranks are declared as records of `neoxargs.launch.launchers`.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from neoxargs.problems import Problem, Problems
from neoxargs.registry import REGISTRY, SUBJECTS, Group, Parameter, normal
from neoxargs.registry.declare import GROUPS

ENTRY_POINTS = "neoxargs.plugins"
#: The plugins of this process, in the order in which they were loaded.
LOADED: list[str] = []
#: Parameter -> the plugin that declared it, or that added choices to it.
DECLARED: dict[str, str] = {}
WIDENED: dict[str, dict[Any, str]] = {}
_waiting: list[_Choices] = []
SHIPPED = {module.__name__ for module in SUBJECTS}
#: What a value can be told to be by `resolve/values/coerce.py`.
TYPES = {Annotated, Literal, Union, types.UnionType, list, dict, bool, int, float, str, type(None), Any, object}


class _Choices(NamedTuple):
    name: str
    values: tuple[Any, ...]


def choices(name: str, *values: Any) -> None:
    """Add values to a parameter whose type is a choice; called while a plugin is imported."""
    _waiting.append(_Choices(normal(name), values))


def load(modules: Iterable[str]) -> None:
    """Import plugins and add what they declare to the registry; raises Problems with nothing of that plugin added."""
    for module in modules:
        if module not in LOADED:
            _import(module)
            _adopt(module, [group for group in GROUPS if group not in REGISTRY.groups])
            LOADED.append(module)


def installed() -> list[str]:
    """The modules that installed distributions name; importlib.metadata would cost every start 30 ms to say none."""
    if not any(ENTRY_POINTS.encode() in text for folder in sys.path for text in _entry_points(folder)):
        return []
    from importlib.metadata import entry_points

    return sorted({point.module for point in entry_points(group=ENTRY_POINTS)})


def subjects() -> list[types.ModuleType]:
    """The modules of plugins that declare groups."""
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
    if (here := os.getcwd()) not in sys.path:  # `deepy`, and a rank whose script is elsewhere
        sys.path.append(here)
    before = set(GROUPS)
    try:
        importlib.import_module(module)
    except Exception as error:
        GROUPS[:] = [group for group in GROUPS if group in before]
        _waiting.clear()
        raise Problems([_not_imported(module, error)]) from None


def _not_imported(module: str, error: Exception) -> Problem:
    missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    if missing or not module:
        hint = f"it is looked for where Python looks and in {os.getcwd()}; write it as after `import`, without .py"
        return Problem(f"there is no module {module or '(empty)'} for --plugin", hint=hint, id="plugin-missing")
    import traceback  # only a mistake needs it

    last = traceback.extract_tb(error.__traceback__)[-1]
    what = f"plugin {module} cannot be imported: {type(error).__name__}: {error}"
    return Problem(what, hint=f"it is raised in {last.filename}:{last.lineno}", id="plugin-not-importable")


def _adopt(plugin: str, groups: list[type[Group]]) -> None:
    """All that a plugin has declared, or nothing."""
    wider, _waiting[:] = list(_waiting), []
    problems = [problem for group in groups for problem in _group_problems(group, plugin)]
    problems += [problem for row in wider for problem in _choice_problems(row, plugin)]
    if not groups and not wider:
        what = f"plugin {plugin} declares nothing"
        hint = "it has a class derived from neoxargs.registry.Group, or choices(...)"
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
    """What keeps a group from becoming part of the registry."""
    if group.key() in {other.key() for other in REGISTRY.groups}:
        what = f"plugin {plugin}: a group is called {group.__name__} already"
        yield Problem(what, hint="rename the class", id="plugin-group-name-taken")
    elif not all(isinstance(parameter.annotation, str) for parameter in group.parameters.values()):
        hint = "begin the module with `from __future__ import annotations`"
        what = f"plugin {plugin}: the types in {group.__name__} are evaluated too early"
        yield Problem(what, hint=hint, id="plugin-types-evaluated")
        return
    for parameter in group.parameters.values():
        yield from _name_problems(parameter, plugin)
        yield from _type_problems(parameter, plugin)


def _name_problems(parameter: Parameter, plugin: str) -> Iterator[Problem]:
    for name in filter(_owner, _spellings(parameter)):
        what = f"plugin {plugin} declares {name}, which {_owner(name)} declares too"
        hint = "leave one of the plugins out" if name in DECLARED else "give it another name"
        yield Problem(what, hint=hint, id="plugin-parameter-name-taken", about=(name,))


def _type_problems(parameter: Parameter, plugin: str) -> Iterator[Problem]:
    """A type that cannot be used, or else a description that is missing."""
    try:
        is_writable = _is_writable(parameter.type)
    except Exception as error:
        what = f"plugin {plugin}: the type of {parameter.name} cannot be read: {error}"
        yield Problem(what, id="plugin-type-unsupported", about=(parameter.name,))
        return
    if not is_writable:
        what = f"plugin {plugin}: {parameter.name} cannot be of type {parameter.annotation}"
        yield Problem(what, hint=WRITABLE, id="plugin-type-unsupported", about=(parameter.name,))
    elif not parameter.description:
        what = f"plugin {plugin}: {parameter.name} says nothing about what it means"
        hint = "write a string below its declaration"
        yield Problem(what, hint=hint, id="plugin-parameter-without-description", about=(parameter.name,))


WRITABLE = "YAML has bool, int, float, str, None, list[...], dict[str, ...], Literal[...] and unions of them"


def _spellings(parameter: Parameter) -> list[str]:
    """Its name and its aliases, by their full names."""
    section = parameter.name.removesuffix(parameter.attribute)
    return [parameter.name, *(section + alias for alias in parameter.aliases)]


def _owner(name: str) -> str:
    """Who has declared this name or section already; empty where nobody has."""
    parameter = REGISTRY.find(name)
    if parameter is None and name not in REGISTRY.sections:
        return ""
    return f"plugin {DECLARED[parameter.name]}" if parameter and parameter.name in DECLARED else "the package"


def _is_writable(kind: Any) -> bool:
    """Can YAML say a value of this type?"""
    base = get_origin(kind) or kind
    if base not in TYPES:
        return False
    inner = () if base is Literal else get_args(kind)[:1] if base is Annotated else get_args(kind)
    return all(map(_is_writable, inner))


def _choice_problems(row: _Choices, plugin: str) -> Iterator[Problem]:
    """What keeps values from being added to a parameter's choices."""
    parameter = REGISTRY.parameters.get(row.name)
    if parameter is None:
        what = f"plugin {plugin} adds choices to {row.name}, which is no parameter"
        yield Problem(what, id="plugin-choice-not-possible")
        return
    present = _choices_of(parameter.type)
    if not present:
        what = f"plugin {plugin} adds choices to {row.name}, which takes any value of its type"
        yield Problem(what, id="plugin-choice-not-possible", about=(row.name,))
    for value in row.values:
        if value in present:
            owner = WIDENED.get(row.name, {}).get(value)
            whose = f"plugin {owner} adds too" if owner else "is one of its choices already"
            what = f"plugin {plugin} adds the choice {value} to {row.name}, which {whose}"
            yield Problem(what, id="plugin-choice-taken", about=(row.name,))


def _choices_of(kind: Any) -> set[Any]:
    """The values of every `Literal` in a type."""
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    return set().union(*(_choices_of(part) for part in get_args(kind) if get_args(part) or get_origin(part)))
