"""Compile what the bridge imports, ours and the standard library's, into two archives; runs in pyodide, in /made.

Sources would be compiled again at every visit, which takes most of the time until the first answer.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator, Mapping
from glob import glob
from importlib import _bootstrap_external
from importlib.util import MAGIC_NUMBER, cache_from_source

#: What the page does not run: what needs torch or numpy, and the parts of the library for debugging and networks.
LEFT_OUT = (
    "neoxargs.train", "neoxargs.convert", "neoxargs.data", "neoxargs.commands.verify", "bdb", "cmd", "code",
    "concurrent.futures.process", "doctest", "ftplib", "http", "multiprocessing", "pdb", "plistlib", "pydoc", "_pyrepl",
    "socketserver", "tarfile", "unittest", "urllib.request", "xml", "xmlrpc",
)  # fmt: skip
#: What pyodide itself imports.
PYODIDE = ("_pyodide", "pyodide", "encodings", "_sysconfigdata__emscripten_wasm32-emscripten", "site", "zipimport")
#: Imports its modules by their names, and reads their descriptions from the source (docstrings.py).
REGISTRY = "neoxargs/registry/"


def pack() -> None:
    """Write python.zip and python_stdlib.zip."""
    with zipfile.ZipFile("/made/stdlib.zip") as archive:
        library = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(glob("/made/neoxargs-*.whl")[0]) as wheel:
        ours = {name: wheel.read(name) for name in wheel.namelist()}
    for path in ("/made/bridge.py", *glob("/made/yaml/*.py")):
        with open(path, "rb") as file:
            ours[path.removeprefix("/made/")] = file.read()
    needed = reachable({**library, **ours})
    write("/made/python_stdlib.zip", library, needed, optimize=2)  # without docstrings
    write("/made/python.zip", ours, needed, optimize=0)


def reachable(files: Mapping[str, bytes]) -> set[str]:
    """Return the names of the files of all modules that the bridge and pyodide import, at once or later."""
    modules = {module_of(name): name for name in files if name.endswith(".py")}
    roots = (name for name, file in modules.items() if name.split(".")[0] in PYODIDE or file.startswith(REGISTRY))
    waiting, found = ["bridge", *roots], set()
    while waiting:
        module = waiting.pop()
        left_out = any(module == each or module.startswith(f"{each}.") for each in LEFT_OUT)
        if module not in modules or modules[module] in found or left_out:
            continue
        found.add(modules[module])
        waiting += [module.rpartition(".")[0], *imports(files[modules[module]], modules[module])]
    return found


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(source: bytes, file: str) -> Iterator[str]:
    """Yield the modules that a module imports, and names that may be modules."""
    package = file.split("/")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def write(path: str, files: Mapping[str, bytes], needed: set[str], optimize: int) -> None:
    """Write an archive with the compiled modules, and all files of packages that are no modules."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            if not name.endswith(".py"):
                if ".dist-info/" not in name:
                    archive.writestr(name, data)
            elif name in needed:
                code = compile(data, name, "exec", dont_inherit=True, optimize=optimize)
                if name.startswith(REGISTRY):
                    archive.writestr(name, data)
                    unchecked = _bootstrap_external._code_to_hash_pyc(code, MAGIC_NUMBER + bytes(4), checked=False)
                    archive.writestr(cache_from_source(name), unchecked)
                else:
                    archive.writestr(f"{name}c", _bootstrap_external._code_to_timestamp_pyc(code))


pack()
