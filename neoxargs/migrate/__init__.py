"""Configurations of other programs to YAML (`deepy migrate`)."""
