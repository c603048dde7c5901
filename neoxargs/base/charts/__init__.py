"""Charts as SVG, and the frame of HTML pages."""
