"""Small runs in which `deepy verify` observes what a configuration does: losses, gradients, weights, outputs."""
