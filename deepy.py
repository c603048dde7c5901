"""Entry point: `python deepy.py train.py my.yml`. Implemented in neoxargs/cli.py; see `python deepy.py --help`."""

from neoxargs.cli import program

if __name__ == "__main__":
    program()
