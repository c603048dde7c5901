"""One value against the type of its parameter: converted, or described as not fitting."""
