"""A key that is no parameter: what it was probably meant to be."""
