"""Script that the launcher starts on every rank to generate text; see neoxargs/train/generate.py."""

import sys

from neoxargs.train.rank import sample

if __name__ == "__main__":
    sys.exit(sample(sys.argv[1:]))
