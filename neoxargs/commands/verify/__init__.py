"""`deepy verify`: small runs on this machine's CPUs that show what each setting of a file does."""
