"""Other programs' files, checked for the program that reads them: a module per kind, and `files.py` with all kinds."""
