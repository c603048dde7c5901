"""`python -m neoxargs.train.ops NAME`: compile one of DeepSpeed's C++ ops into torch's extension cache."""

from __future__ import annotations

import sys


def main() -> int:
    name = sys.argv[1]
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    if name not in ALL_OPS:
        print(f"DeepSpeed has no op {name} for this device; it has {', '.join(ALL_OPS)}", file=sys.stderr)
        return 1
    ALL_OPS[name].load(verbose=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
