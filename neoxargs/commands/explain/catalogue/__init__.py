"""Explanations of problems, by subject."""
