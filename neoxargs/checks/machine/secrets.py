"""Checks for secrets: those that would appear on command lines, and the key of Weights & Biases, if it is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from neoxargs.base.problems import SECRET_NAME, Place, Problem
from neoxargs.config.config import Config
from neoxargs.hosts.environment import EXPORTED, SECRET, variables_of_files
from neoxargs.hosts.hosts import Resources
from neoxargs.hosts.launchers import launcher_named
from neoxargs.resolve.secrets import secret_values

#: Variables with which wandb needs no netrc file, and the values of WANDB_MODE for which it needs no key.
WANDB_KEYS, WITHOUT_KEY = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"), ("offline", "disabled", "dryrun")
#: Lines of wandb's own settings files, which `wandb offline` writes.
WANDB_SETTING = re.compile(r"^\s*(mode|disabled|api_key)\s*[=:]", re.MULTILINE)


def on_command_lines(config: Config, resources: Resources, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Return a problem for each variable with a secret that the launcher would show in the list of processes."""
    launcher = launcher_named(config.runner.launcher)
    if not resources.remote or not launcher.argv_visible:
        return
    handed_over: list[tuple[str, Place | None]] = [(name, None) for name in environ if name.startswith(EXPORTED)]
    handed_over += [(name, place) for name, _, place in variables_of_files(environ, os.getcwd())]
    for name, where in handed_over:
        if SECRET.search(name):
            what = f"launcher {launcher.name} would put {name} on command lines, which every user on the hosts can read"
            hint = "set launcher: ssh, which passes the variable through ssh's standard input"
            if where:
                hint = f"remove this line, export {name} in this shell and set launcher: ssh"
            yield Problem(what, where, hint, id="secret-on-command-line", about=("launcher",))


def in_configuration(config: Config) -> Iterator[Problem]:
    """Return a problem for each secret in the configuration, which every rank gets on its command line."""
    for name in secret_values(config):
        what = f"{name} would appear on every rank's command line, which every user on the hosts can read"
        variable, place = name.replace(".", "_").upper(), config.place(name)
        where = place and place._replace(text="")  # the excerpt of the line would show the secret
        hint = f"remove {name} and set {variable} in the environment"
        if not re.search(f"{SECRET_NAME}$", name, re.IGNORECASE):  # a section without declared keys, or a text
            what = f"{name} contains a secret, which would appear on every rank's command line, readable by every user"
            hint = f"remove the secret from {name}"
            hint += "; WANDB_API_KEY in the environment gives wandb its key" if name == "wandb_host" else ""
        yield Problem(what, where, hint, id="secret-in-configuration", about=(name,))


def missing_wandb_key(config: Config, environ: Mapping[str, str]) -> Iterator[Problem]:
    """No API key where wandb looks for one, which rank 0 would find out after the text is tokenised."""
    host, netrc = urlsplit(config.wandb.wandb_host).netloc.rpartition("@")[2], _netrc_path(environ)
    needs_none = any(map(environ.get, WANDB_KEYS)) or environ.get("WANDB_MODE") in WITHOUT_KEY
    if not config.wandb.use_wandb or needs_none or _in_netrc(netrc, host) or _in_wandb_settings(environ):
        return
    what = f"use_wandb (true): no API key for {host} is in WANDB_API_KEY or in {netrc}"
    hint = "run wandb login, or set WANDB_MODE=offline in the environment, or remove use_wandb"
    yield Problem(what, config.place("use_wandb"), hint, id="wandb-key-missing", about=("use_wandb",))


def _netrc_path(environ: Mapping[str, str]) -> Path:
    """Return the file with keys that wandb reads."""
    if named := environ.get("NETRC"):
        return Path(named).expanduser()
    usual = [Path(name).expanduser() for name in ("~/.netrc", "~/_netrc")]
    return next(filter(Path.exists, usual), usual[0])


def _in_netrc(path: Path, host: str) -> bool:
    from netrc import NetrcParseError, netrc

    with suppress(OSError, NetrcParseError):
        return bool((netrc(path).authenticators(host) or ("", "", ""))[2])
    return False


def _in_wandb_settings(environ: Mapping[str, str]) -> bool:
    folders = environ.get("WANDB_CONFIG_DIR", "~/.config/wandb"), f"{environ.get('WANDB_DIR', '.')}/wandb"
    for folder in folders:
        with suppress(OSError, UnicodeDecodeError):
            if WANDB_SETTING.search((Path(folder).expanduser() / "settings").read_text(encoding="utf-8")):
                return True
    return False
