"""A run to its memory and time (`deepy plan`)."""
