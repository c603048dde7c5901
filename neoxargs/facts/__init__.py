"""Sizes that follow from a configuration, computed without torch: parameters, vocabulary, layout, optimizer state."""
