"""`deepy preview`: what a run will do over its iterations, computed without starting it."""
