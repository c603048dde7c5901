"""The line above a configuration: parameters, memory with the verdict, and time, from `deepy plan`.

It runs in a process of its own and in the folder of the run, so that typing never waits for it, and the numbers are
those of the command.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from neoxargs.base.programs import CLI
from neoxargs.base.text import format_bytes, format_count, format_duration
from neoxargs.commands.check.watch import state_of
from neoxargs.commands.lsp.answers import Run
from neoxargs.hosts.device_table import UNKNOWN_NAME
from neoxargs.hosts.environment import with_package

#: Runs at most of which a file shows the line; one that is below many others is no run itself.
MOST_RUNS = 4


class Planner:
    """Plans runs, one after another, and each only once for the saved state of its files.

    machine: the name of the GPUs, as `deepy plan --device` takes it; None: those of this machine.
    """

    def __init__(self) -> None:
        self.machine: str | None = None
        self.known: dict[tuple[str, ...], tuple[object, str]] = {}
        self.one_at_a_time = asyncio.Semaphore(1)

    async def line(self, run: Run) -> str:
        """Return the line of a run."""
        files = run.request.files
        gpus = ["--gpus", str(run.request.gpus)] if run.request.gpus else []
        device = ["--device", self.machine] if self.machine else []
        words = ("plan", *files, *gpus, *device, "--json")
        async with self.one_at_a_time:
            state = [state_of(file) for file in files]
            if self.known.get(words, ("",))[0] != state:
                self.known[words] = state, line_of(await _json_of(words, run.folder or None), run.name)
        return self.known[words][1]


async def _json_of(words: tuple[str, ...], folder: str | None) -> Mapping[str, Any]:
    """Return what a command prints. Ends it if this is cancelled."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", CLI, *words, cwd=folder, env=with_package(os.environ),
        stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe,
    )  # fmt: skip
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    try:
        answer: Mapping[str, Any] = json.loads(out)
    except ValueError:
        return {}
    return answer


def line_of(plan: Mapping[str, Any], name: str = "") -> str:
    """Return the line for what `deepy plan --json` says."""
    head = f"{name}: " if name else ""
    if "stages" not in plan:
        errors = [each["what"] for each in plan.get("problems", ()) if each["severity"] == "error"]
        return f"{head}no plan: {errors[0] if errors else 'deepy plan failed'}"
    device, ranks, verdict = plan["planned_for"], plan["ranks"], plan["verdict"]
    if plan["fits"] is False and plan["overflows_in"] is None:
        verdict = f"does not fit the host's {format_bytes(plan['host']['memory'])}"
    peak = format_bytes(max(stage["peak"] for stage in plan["stages"]))
    limit = f" of {format_bytes(device['usable'])}" if device["usable"] else ""
    is_unknown = device["name"] == UNKNOWN_NAME
    time = "set machine for a verdict" if is_unknown else f"about {format_duration(plan['speed']['total'])}"
    memory = f"{ranks} x {device['name']}: {verdict}, {peak}{limit} each"
    return f"{head}{format_count(plan['parameters'])} parameters; {memory}; {time}"
