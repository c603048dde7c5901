"""What a person asks for: check, explain, plan, migrate, docs. Only the command line imports this package."""
