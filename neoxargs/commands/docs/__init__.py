"""`deepy docs`: the generated pages and files."""
