"""One configuration: typed groups, and each value with its source."""
