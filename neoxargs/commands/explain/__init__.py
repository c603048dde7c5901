"""`deepy explain`: parameters, problems and their sources."""
