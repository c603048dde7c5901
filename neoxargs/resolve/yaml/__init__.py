"""Parse YAML text into nodes with places, with readable errors for invalid YAML."""
