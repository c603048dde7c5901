"""`python deepy.py train.py my.yml`: see neoxargs/cli.py, or `python deepy.py --help`."""

import sys

from neoxargs.cli import main

if __name__ == "__main__":
    sys.exit(main())
