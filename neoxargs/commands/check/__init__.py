"""`deepy check`: what is wrong with a configuration, and corrections."""
