"""Entry point: `python deepy.py train.py my.yml`. Implemented in neoxargs/cli.py; see `python deepy.py --help`."""

import sys

from neoxargs.cli import main

if __name__ == "__main__":
    sys.exit(main())
