"""`deepy init`: write the configuration of a new run from a few answers."""
