"""`deepy plan --search`: plan every layout that the rules allow; show the fastest and those of little memory."""
