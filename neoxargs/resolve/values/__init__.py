"""Convert a value to the type of its parameter, or describe why it does not match."""
