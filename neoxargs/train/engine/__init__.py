"""DeepSpeed's two engines behind one interface: construction, steps, activation recomputation, reports, timing."""
