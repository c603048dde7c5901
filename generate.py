"""What the launcher starts on every rank to sample from a checkpoint; see neoxargs/train/generate.py."""

import sys

from neoxargs.train.generate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
