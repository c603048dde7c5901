"""`deepy data --chat`: conversations through a chat template, to token files with labels for instruction tuning."""
