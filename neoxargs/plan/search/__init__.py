"""`deepy plan --search`: plan every layout that the rules allow; list the best trade-offs between speed and memory."""
