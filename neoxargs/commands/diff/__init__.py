"""`deepy diff`: how two runs differ, and whether that changes the result."""
