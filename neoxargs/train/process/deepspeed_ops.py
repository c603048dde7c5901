"""`python -m neoxargs.train.process.deepspeed_ops NAME`: compile a C++ op of DeepSpeed into torch's extension cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from neoxargs.base.files import why_unwritable
from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.hosts.compiled_ops import record_installation


def add_ninja_to_path() -> None:
    """Add the folder of the Python interpreter to PATH: pip installs `ninja` there, with which torch compiles."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def require_nvme_support(config: Config) -> None:
    """Raise Problems if this rank's machine cannot offload to NVMe; the launcher has checked its own machine only."""
    folders = {options.nvme_path for options in (config.offload_param, config.offload_optimizer)
              if options.device == "nvme"}  # fmt: skip
    if not folders:
        return
    from deepspeed.ops.op_builder import AsyncIOBuilder

    for folder in filter(None, folders):
        if why := why_unwritable(Path(folder)):
            about = [f"zero_optimization.{section}.nvme_path" for section in ("offload_param", "offload_optimizer")]
            raise Problems(Problem(f"nvme_path ({folder}): {why}", id="folder-not-writable", about=tuple(about)))
    try:
        AsyncIOBuilder().load(verbose=False)
    except (RuntimeError, OSError, ImportError) as error:
        hint = "install a C++ compiler and libaio (Debian and Ubuntu: apt install g++ python3-dev libaio-dev)"
        what = f"DeepSpeed's op async_io cannot be loaded: {error}"
        raise Problems(Problem(what, hint=hint, id="compiled-op-not-loadable")) from error


def main() -> int:
    name = sys.argv[1]
    add_ninja_to_path()
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    if name not in ALL_OPS:
        others = ", ".join(ALL_OPS)
        print(f"DeepSpeed has no op {name} for this device; the available ops are {others}", file=sys.stderr)
        return 1
    library = ALL_OPS[name].load(verbose=False)
    record_installation(Path(library.__file__).parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
