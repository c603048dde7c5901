"""Text to token files (`deepy data`)."""
