"""DeepSpeed's two engines behind one interface: building them, steps, recomputation, reports."""
