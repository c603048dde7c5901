"""Names, types and choices of the settings of other programs by version: neoxargs/registry/other_keys.json.

`python -m tests.support.other_versions WHEELS MEGATRON` reads TrainingArguments and Accelerate's configuration from
wheels, which are downloaded to the folder WHEELS if they are not there, and the flags of Megatron-LM from the tags of a
clone of its repository. The sources are read with the syntax tree, never imported.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.steps import replaced, split, steps_of

PATH = ROOT / "neoxargs/registry/other_keys.json"
VERSIONS = {
    "transformers": ["4.46.3", "4.49.0", "4.53.3", "4.57.6", "5.0.0", "5.5.0", "5.10.0", "5.15.0", "5.23.0"],
    "accelerate": ["1.0.1", "1.4.0", "1.7.0", "1.10.1", "1.12.0", "1.15.0"],
    "megatron": ["1.0", "2.0", "2.6", *(f"0.{minor}.0" for minor in (1, 2, 4, 5, 6, 8, 10, *range(12, 20)))],
}
#: Tags of Megatron-LM that are not named core_v and the version: those before its core had numbers, and before 0.4.
TAGS = {"1.0": "v1.0", "2.0": "v2.0", "2.6": "v2.6", "0.1.0": "23.04", "0.2.0": "23.06"}
#: Of two flags, one of which replaces the other: how much of the words of their descriptions is the same.
SAME_HELP = 0.75


#: Type of an annotation -> the word of the table.
WORDS = {"bool": "bool", "int": "int", "float": "float", "str": "str", "dict": "dict", "list": "list"}

#: Key -> its type and choices.
Rows = dict[str, dict[str, Any]]
#: Returns the text of a file of a version; "" if there is none.
Read = Callable[[str], str]


def transformers_rows(read: Read) -> dict[str, Rows]:
    """Return the fields of TrainingArguments and of the class that adds those of sequence-to-sequence models."""
    texts = [read(f"transformers/{name}") for name in ("training_args.py", "trainer_utils.py", "utils/generic.py")]
    classes = _classes([*texts, read("transformers/training_args_seq2seq.py"), read("transformers/debug_utils.py")])
    rows = {name: _row(kind, classes) for name, kind, _, _ in fields("Seq2SeqTrainingArguments", classes)}
    for name, facts in _refusals(classes["TrainingArguments"], classes):
        rows[name] |= facts if name in rows else {}
    for name in ("fsdp", "debug"):  # texts of several words, each a member of an enumeration
        option = {"fsdp": "FSDPOption", "debug": "DebugOption"}[name]
        rows[name] |= {"words": list(_members(classes.get(option)))}
    return {"": rows}


def _refusals(cls: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields whose values a class makes members of an enumeration, compares with numbers or reads as paths.

    compared: the values of other fields with which alone it does so.
    """
    for node in ast.walk(cls):
        if isinstance(node, ast.Assign) and (
            made := re.fullmatch(r"self\.(\w+) = (\w+)\(self\.\1\)", ast.unparse(node))
        ):
            if made[2] in classes:
                yield made[1], {"refused": "choice"}
        elif isinstance(node, ast.Call) and (path := re.fullmatch(r"os\.path\.\w+\(self\.(\w+)\)", ast.unparse(node))):
            yield path[1], {"refused": "type"}
        elif isinstance(node, ast.FunctionDef) and node.name in ("__post_init__", "_validate_args"):
            for each in (each for each in ast.walk(node) if isinstance(each, ast.If)):
                yield from _compared(each, is_always=each in node.body)


def _compared(node: ast.If, is_always: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a field that a condition compares with a number. least: the smallest that is not refused.

    whole: whether a number above 1 must be a whole one. is_always: whether the condition is met in every run.
    """
    text, raises = ast.unparse(node.test), isinstance(node.body[0], ast.Raise)
    if raises and (whole := re.fullmatch(r"self\.(\w+) != int\(self\.\1\)", text)):
        yield whole[1], {"whole": True}
    if raises and (count := re.fullmatch(r"not \(isinstance\(self\.(\w+), int\) and self\.\1 > 0\)", text)):
        yield count[1], {"refused": "type", "least": 1}
    when: dict[str, str] = {}
    for part in (node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]) if is_always else ():
        if compared := re.fullmatch(r"self\.(\w+) [<>]=? ([\d.]+)", ast.unparse(part)):
            least = {"least": float(compared[2])} if raises and " < " in ast.unparse(part) else {}
            yield compared[1], {"refused": "type", **least, **({"only_with": when} if when else {})}
            return
        if not (equal := re.fullmatch(r"self\.(\w+) == (\w+)\.(\w+)", ast.unparse(part))):
            return
        when[equal[1]] = equal[3].lower()


def accelerate_rows(read: Read) -> dict[str, Rows]:
    """Return the fields of both configurations, and the options of the launcher, which its sections set."""
    config = ast.parse(read("accelerate/commands/config/config_args.py"))
    classes = _classes([ast.unparse(config), read("accelerate/utils/dataclasses.py")])
    cluster, maker = (
        {name: _row(kind, classes) for name, kind, _, _ in fields(cls, classes)}
        for cls in ("ClusterConfig", "SageMakerConfig")
    )
    launch = read("accelerate/commands/launch.py")
    # Some keys are read although the launcher has no option of their name.
    asked = re.findall(r"\bargs\.(\w+)|\bargs, \"(\w+)\"", launch + read("accelerate/utils/launch.py"))
    launcher: Rows = {name: {"type": "any"} for names in asked for name in names if name}
    for flag, row in _options(ast.parse(launch)).items():
        launcher[flag[2:].replace("-", "_")] = {key: row[key] for key in ("type", "choices") if key in row}
    return {"": cluster, "SageMaker": maker, "launcher": launcher}


def megatron_rows(read: Read, of_classes: Callable[[], Mapping[str, ast.ClassDef]]) -> dict[str, Rows]:
    """Return the flags of the argument parser, those that it makes of configuration classes included."""
    tree = ast.parse(read("megatron/training/arguments.py") or read("megatron/arguments.py"))
    rows = _options(tree)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        lists = dict(_lists(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ArgumentGroupFactory":
                given = next((word.value for word in node.keywords if word.arg == "exclude"), None)
                left_out = lists.get(given.id, []) if isinstance(given, ast.Name) else given and ast.literal_eval(given)
                for name, kind, default, meta in fields(ast.unparse(node.args[0]), of_classes()):
                    if name not in (left_out or ()):
                        rows |= _flags(name, kind, default, meta, of_classes())
    of_dest = {row.get("dest", flag[2:].replace("-", "_")): row for flag, row in rows.items()}
    for name, instead in replaced(tree, rows):
        if name in of_dest:
            of_dest[name]["instead"] = instead
    return {"": rows}


def megatron_steps(read: Read, rows: Rows) -> list[dict[str, str]]:
    """Return what the program asserts of its arguments, and of the configuration that it makes of them."""
    tree = ast.parse(read("megatron/training/arguments.py") or read("megatron/arguments.py"))
    texts = [read("megatron/core/transformer/transformer_config.py"), read("megatron/core/model_parallel_config.py")]
    made = read("megatron/training/argument_utils.py") or ast.unparse(tree)
    flags = {row.get("dest", name[2:].replace("-", "_")) for name, row in rows.items()}
    return steps_of(tree, _classes(texts), made, flags)


def _lists(function: ast.FunctionDef) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, [str(item.value) for item in node.value.elts if isinstance(item, ast.Constant)]


def _classes(texts: Iterable[str]) -> dict[str, ast.ClassDef]:
    found: dict[str, ast.ClassDef] = {}
    for text in texts:
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, node)
    return found


Field = tuple[str, ast.expr, ast.expr | None, dict[str, ast.expr]]


def fields(name: str, classes: Mapping[str, ast.ClassDef]) -> list[Field]:
    """Return name, annotation, default and options of each field of a dataclass, those of its bases first."""
    found: dict[str, Field] = {}
    if name in classes:
        for base in classes[name].bases:
            found |= {field[0]: field for field in fields(ast.unparse(base), classes)}
    for node in classes[name].body if name in classes else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default, meta = node.value, dict[str, ast.expr]()
            if isinstance(default, ast.Call) and ast.unparse(default.func).endswith("field"):
                words = {word.arg: word.value for word in default.keywords if word.arg}
                default = words.get("default")
                if "init" in words and not ast.literal_eval(words["init"]):
                    continue
                for key, value in _items(words.get("metadata")):
                    meta = dict(_items(value)) if key == "argparse_meta" else meta
            found[node.target.id] = (node.target.id, node.annotation, default, meta)
    return list(found.values())


def _items(node: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Dict):
        yield from ((ast.literal_eval(key), value) for key, value in zip(node.keys, node.values, strict=True) if key)


def _row(annotation: ast.expr, classes: Mapping[str, ast.ClassDef]) -> dict[str, Any]:
    """Return the types and choices of an annotation: those of a member of `Union`, of an enumeration, of `Literal`."""
    text = ast.unparse(annotation)
    outer = re.sub(r"(?i)\b(list|dict|Literal)\[[^\[\]]*(\[[^\[\]]*\])?[^\[\]]*\]", r"\1", text)
    names = re.findall(r"\w+", outer)
    kinds = sorted({WORDS[name.lower()] for name in names if name.lower() in WORDS})
    choices = [choice for name in names for choice in _members(classes.get(name))]
    for literal in re.findall(r"Literal(\[[^\[\]]*\])", text):
        choices += [str(choice) for choice in ast.literal_eval(literal) if choice is not None]
    choices = list(dict.fromkeys(choices))
    row: dict[str, Any] = {"type": "|".join(kinds) or "str"} | ({"choices": choices} if choices else {})
    return row | ({"none": True} if "None" in names or "Optional" in names else {})


def _members(node: ast.ClassDef | None) -> Iterator[str]:
    """Yield the values of an enumeration of texts."""
    is_enum = node and any("Enum" in ast.unparse(base) for base in node.bases)
    for each in node.body if node and is_enum else ():
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            value = each.value.value
            yield value if isinstance(value, str) else ast.unparse(each.targets[0])


def _flags(
    name: str, kind: ast.expr, default: ast.expr | None, meta: dict[str, ast.expr], classes: Mapping[str, ast.ClassDef]
) -> Rows:
    """Return the flags that Megatron-LM's parser makes of a field."""
    row, word = _row(kind, classes), name.replace("_", "-")
    names, default = [f"--{word}"], meta.get("default", default)
    if row["type"] == "bool":
        is_off = isinstance(default, ast.Constant) and default.value is True
        names = [f"--no-{word}", f"--disable-{word}"] if is_off else names
        row = {"type": "switch", **({"off": True} if is_off else {}), **({} if default else {"computed": True})}
    else:
        row = ({"type": "many"} if "list" in row["type"] else row) | _default(default, is_there=default is not None)
    names = ast.literal_eval(meta["arg_names"]) if "arg_names" in meta else names
    if meta.keys() & {"action", "type", "nargs", "const", "choices"}:
        row = _argument(meta) if meta.keys() & {"action", "nargs", "type"} else row | _argument(meta)
    row = {key: value for key, value in row.items() if key != "none"}
    dest = str(ast.literal_eval(meta["dest"])) if "dest" in meta else name
    return {flag: row | ({"dest": dest} if dest != flag[2:].replace("-", "_") else {}) for flag in names}


def _options(tree: ast.AST) -> Rows:
    """Return the flags of all calls of add_argument."""
    rows: Rows = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            words = {word.arg: word.value for word in node.keywords if word.arg}
            names = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
            names = [name for name in names if name.startswith("--")]
            row, dest = _argument(words), names[0][2:].replace("-", "_") if names else ""
            dest = str(ast.literal_eval(words["dest"])) if "dest" in words else dest
            for name in names:
                rows[name] = row | ({"dest": dest} if dest != name[2:].replace("-", "_") else {})
            if "BooleanOptional" in ast.unparse(words.get("action", ast.Constant(""))):
                rows |= {f"--no-{name[2:]}": row | {"dest": dest, "off": True} for name in names}
    return rows


def _default(node: ast.expr | None, is_there: bool = True) -> dict[str, Any]:
    """Return the default of a setting, nothing if it is None; `computed` if the source does not say it as a literal."""
    try:
        value = ast.literal_eval(node) if node else None
    except ValueError:
        is_there, value = False, None
    return {"computed": True} if not is_there else {} if value is None else {"default": value}


def _argument(words: Mapping[str, ast.expr]) -> dict[str, Any]:
    """Return how argparse reads a flag: `switch` without a value, `many` with any number, `any` text, or a type."""
    action = ast.unparse(words["action"]).strip("'\"") if "action" in words else "store"
    told = {"help": ast.unparse(words["help"])} if "help" in words else {}
    if action in ("store_true", "store_false", "store_const") or "BooleanOptional" in action:
        is_known = action in ("store_true", "store_false") and "default" not in words
        is_off = {"off": True} if action == "store_false" else {}
        return {"type": "switch", **is_off, **told, **({} if is_known else {"computed": True})}
    count = words.get("nargs")
    if action != "store" or (isinstance(count, ast.Constant) and count.value == "?"):
        return {"type": "any", **told, **_default(words.get("default"))}
    kind = ast.unparse(words["type"]) if "type" in words else "str"
    row: dict[str, Any] = {"type": "many" if count else kind if kind in ("int", "float", "str") else "any", **told}
    row |= _default(words.get("default"))
    try:
        choices = ast.literal_eval(words["choices"]) if "choices" in words else []
        choices = [str(choice) for choice in choices if choice is not None]
    except ValueError:
        choices = []
    return row | ({"choices": choices} if choices else {})


def table(found: Mapping[str, tuple[str, dict[str, Rows]]]) -> dict[str, Any]:
    """Return the versions with their dates, and section -> key -> row. found: version -> date and rows, in order.

    A row is that of the newest version that has the key, with the types of all, and `since` and `until` if the first or
    the last version lacks it. former: choice -> the version that removed it.
    """
    versions = list(found)
    sections: dict[str, Rows] = {}
    for name in found[versions[-1]][1]:
        of_version = {version: rows.get(name, {}) for version, (_, rows) in found.items()}
        for key in sorted({key for rows in of_version.values() for key in rows}):
            having = [version for version in versions if key in of_version[version]]
            row = dict(of_version[having[-1]][key])
            row["type"] = "|".join(sorted({word for v in having for word in of_version[v][key]["type"].split("|")}))
            row |= _former(row, [(version, of_version[version][key].get("choices", ())) for version in having])
            row |= {"since": having[0]} if having[0] != versions[0] else {}
            if having[-1] != versions[-1]:
                until = versions[versions.index(having[-1]) + 1]
                row |= {"until": until, **_renamed(key, of_version[having[-1]], of_version[until])}
            elif refusing := [version for version in having if of_version[version][key].get("instead")]:
                row |= {"until": refusing[0], "instead": row["instead"]}
            row = {each: value for each, value in row.items() if each != "help"}
            sections.setdefault(name, {})[key] = row
        for row in sections[name].values():  # what replaced it can have been replaced since
            while (after := sections[name].get(row.get("instead", ""), {})).get("instead"):
                row["instead"] = after["instead"]
    return {"versions": {version: day for version, (day, _) in found.items()}, "sections": sections}


def _former(row: Mapping[str, Any], choices: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """Return the choices that a newer version has removed, each with that version."""
    versions, found = [version for version, _ in choices], dict[str, str]()
    for at, (_, there) in enumerate(choices[:-1]):
        found |= {each: versions[at + 1] for each in there if row.get("choices") and each not in row["choices"]}
    return {"former": found} if found else {}


def _renamed(key: str, before: Rows, after: Rows) -> dict[str, str]:
    """Return which new setting has the type and the description of one that is gone, if one does."""
    row, new = before[key], {each: row for each, row in after.items() if each not in before}
    alike: Counter[str] = Counter()
    for each, other in new.items():
        is_same_kind = other["type"] == row["type"] and other.get("off") == row.get("off")
        if is_same_kind and "help" in row and "help" in other:
            old, now = (re.findall(r"\w+", text["help"].lower()) for text in (row, other))
            alike[each] = round(100 * SequenceMatcher(None, old, now).ratio())
    found = alike.most_common(1)
    return {"instead": found[0][0]} if found and found[0][1] >= 100 * SAME_HELP else {}


def as_text(tables: Mapping[str, Any]) -> str:
    """Return the file: a line for each key."""
    parts = []
    for program, of_program in tables.items():
        sections = []
        for section, rows in of_program["sections"].items():
            lines = ",\n".join(f"   {json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
            sections.append(f"  {json.dumps(section)}: {{\n{lines}}}")
        versions, text = json.dumps(of_program["versions"]), ",\n".join(sections)
        steps = ",\n".join(f"  {json.dumps(step)}" for step in of_program.get("steps", ()))
        after = f', "steps": [\n{steps}]' if steps else ""
        parts.append(f' {json.dumps(program)}: {{"versions": {versions}, "sections": {{\n{text}}}{after}}}')
    return "{\n" + ",\n".join(parts) + "}\n"


def of_wheels(package: str, rows: Callable[[Read], dict[str, Rows]], folder: Path) -> dict[str, Any]:
    """Return the table of a package."""
    found = {}
    for version in VERSIONS[package]:
        name = f"{package}-{version}-py3-none-any.whl"
        if not (folder / name).exists():
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
            subprocess.run([*pip, f"{package}=={version}"], check=True)
        with zipfile.ZipFile(folder / name) as wheel:
            day = "{}-{:02}-{:02}".format(*wheel.getinfo(f"{package}/__init__.py").date_time[:3])
            found[version] = day, rows(lambda path: _of_wheel(wheel, path))
    return table(found)


def _of_wheel(wheel: zipfile.ZipFile, path: str) -> str:
    return wheel.read(path).decode() if path in wheel.namelist() else ""


def of_clone(folder: Path) -> dict[str, Any]:
    """Return the table of Megatron-LM."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False).stdout

    def classes(tag: str, known: dict[str, ast.ClassDef]) -> dict[str, ast.ClassDef]:
        if not known:
            lines = git("grep", "-l", "^class ", tag, "--", "megatron/*.py").splitlines()
            known |= _classes(git("show", line) for line in lines)
        return known

    found: dict[str, tuple[str, dict[str, Rows]]] = {}
    steps: dict[str, list[dict[str, str]]] = {}
    for version in VERSIONS["megatron"]:
        tag, known = TAGS.get(version, f"core_v{version}"), dict[str, ast.ClassDef]()

        def read(path: str, tag: str = tag) -> str:
            return git("show", f"{tag}:{path}")

        rows = megatron_rows(read, lambda t=tag, k=known: classes(t, k))  # type: ignore[misc]
        found[version] = git("log", "-1", "--format=%cs", tag).strip(), rows
        steps[version] = megatron_steps(read, rows[""])
    return table(found) | {"steps": _since(steps)}


def _since(of_versions: Mapping[str, list[dict[str, str]]]) -> list[dict[str, str]]:
    """Return what the newest version asserts, each with the version from which on it does."""
    versions, found = list(of_versions), []
    for step in of_versions[versions[-1]]:
        conditions = set(split(step.get("if", "")))
        without = [
            version
            for version in versions
            if not any(
                step.get("check") == other.get("check") and conditions.issuperset(split(other.get("if", "")))
                for other in of_versions[version]
            )
        ]
        since = versions[versions.index(without[-1]) + 1] if without else ""
        found.append(step | ({"since": since} if since and "check" in step else {}))
    return found


def main(wheels: Path, megatron: Path) -> None:
    """Write the file."""
    tables = {
        "transformers": of_wheels("transformers", transformers_rows, wheels),
        "accelerate": of_wheels("accelerate", accelerate_rows, wheels),
        "megatron": of_clone(megatron),
    }
    PATH.write_text(as_text(tables), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
