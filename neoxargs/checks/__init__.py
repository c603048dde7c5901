"""A run to its problems: everything that can be refused before a rank starts."""
