"""Preference training: a model learns which answers to a prompt are better than others."""
