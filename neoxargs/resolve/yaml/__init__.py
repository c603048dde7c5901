"""YAML text to nodes with positions, and readable errors where it is not YAML."""
