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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

PATH = ROOT / "neoxargs/registry/other_keys.json"
VERSIONS = {
    "transformers": ["4.46.3", "4.49.0", "4.53.3", "4.57.6", "5.0.0", "5.5.0", "5.10.0", "5.15.0", "5.23.0"],
    "accelerate": ["1.0.1", "1.4.0", "1.7.0", "1.10.1", "1.12.0", "1.15.0"],
    "megatron": [f"0.{minor}.0" for minor in (6, 8, 10, *range(12, 20))],
}
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
    return {"": {name: _row(kind, classes) for name, kind, _, _ in fields("Seq2SeqTrainingArguments", classes)}}


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
    launcher |= {flag[2:].replace("-", "_"): row for flag, row in _options(ast.parse(launch)).items()}
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
    return {"": rows}


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
        choices += map(str, ast.literal_eval(literal))
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
    names = [f"--{word}"]
    if row["type"] == "bool":
        is_off = isinstance(default, ast.Constant) and default.value is True
        names, row = ([f"--no-{word}", f"--disable-{word}"] if is_off else names), {"type": "switch"}
    elif "list" in row["type"]:
        row = {"type": "many"}
    names = ast.literal_eval(meta["arg_names"]) if "arg_names" in meta else names
    if meta.keys() & {"action", "type", "nargs", "const", "choices"}:
        row = _argument(meta) if meta.keys() & {"action", "nargs", "type"} else row | _argument(meta)
    return {flag: {key: value for key, value in row.items() if key != "none"} for flag in names}


def _options(tree: ast.AST) -> Rows:
    """Return the flags of all calls of add_argument."""
    rows: Rows = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            words = {word.arg: word.value for word in node.keywords if word.arg}
            names = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
            names = [name for name in names if name.startswith("--")]
            if "BooleanOptional" in ast.unparse(words.get("action", ast.Constant(""))):
                names += [f"--no-{name[2:]}" for name in names]
            rows |= {name: _argument(words) for name in names}
    return rows


def _argument(words: Mapping[str, ast.expr]) -> dict[str, Any]:
    """Return how argparse reads a flag: `switch` without a value, `many` with any number, `any` text, or a type."""
    action = ast.unparse(words["action"]).strip("'\"") if "action" in words else "store"
    if action in ("store_true", "store_false", "store_const") or "BooleanOptional" in action:
        return {"type": "switch"}
    count = words.get("nargs")
    if action != "store" or (isinstance(count, ast.Constant) and count.value == "?"):
        return {"type": "any"}
    kind = ast.unparse(words["type"]) if "type" in words else "str"
    row: dict[str, Any] = {"type": "many" if count else kind if kind in ("int", "float", "str") else "any"}
    try:
        choices = [str(choice) for choice in ast.literal_eval(words["choices"])] if "choices" in words else []
    except ValueError:
        choices = []
    return row | ({"choices": choices} if choices else {})


def table(found: Mapping[str, tuple[str, dict[str, Rows]]]) -> dict[str, Any]:
    """Return the versions with their dates, and section -> key -> row. found: version -> date and rows, in order.

    A row is that of the newest version that has the key, with the types and choices of all, and `since` and `until` if
    the first or the last version lacks it.
    """
    versions = list(found)
    sections: dict[str, Rows] = {}
    for name in found[versions[-1]][1]:
        of_version = {version: rows.get(name, {}) for version, (_, rows) in found.items()}
        for key in sorted({key for rows in of_version.values() for key in rows}):
            having = [version for version in versions if key in of_version[version]]
            row = dict(of_version[having[-1]][key])
            row["type"] = "|".join(sorted({word for v in having for word in of_version[v][key]["type"].split("|")}))
            choices = [choice for version in having for choice in of_version[version][key].get("choices", ())]
            row |= {"choices": list(dict.fromkeys(choices))} if "choices" in row else {}
            row |= {"since": having[0]} if having[0] != versions[0] else {}
            row |= {"until": versions[versions.index(having[-1]) + 1]} if having[-1] != versions[-1] else {}
            sections.setdefault(name, {})[key] = row
    return {"versions": {version: day for version, (day, _) in found.items()}, "sections": sections}


def as_text(tables: Mapping[str, Any]) -> str:
    """Return the file: a line for each key."""
    parts = []
    for program, of_program in tables.items():
        sections = []
        for section, rows in of_program["sections"].items():
            lines = ",\n".join(f"   {json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
            sections.append(f"  {json.dumps(section)}: {{\n{lines}}}")
        versions, text = json.dumps(of_program["versions"]), ",\n".join(sections)
        parts.append(f' {json.dumps(program)}: {{"versions": {versions}, "sections": {{\n{text}}}}}')
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
    for version in VERSIONS["megatron"]:
        tag, known = f"core_v{version}", dict[str, ast.ClassDef]()
        rows = megatron_rows(lambda path, tag=tag: git("show", f"{tag}:{path}"), lambda t=tag, k=known: classes(t, k))  # type: ignore[misc]
        found[version] = git("log", "-1", "--format=%cs", tag).strip(), rows
    return table(found)


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
