"""Checkpoints to and from other formats (`deepy export`, `deepy import`)."""
