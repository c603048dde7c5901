"""Entry point: `python deepy.py train.py my.yml`. Implemented in neoxargs/cli.py; see `python deepy.py --help`."""

import sys

try:
    from neoxargs.cli import program
except KeyboardInterrupt:
    print("deepy: interrupted", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    program()
