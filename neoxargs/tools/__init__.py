"""The commands that start no ranks: check, explain, plan, migrate, docs. Only the command line imports this package."""
