"""Tests: `support/` is what several of them use; the other folders mirror `neoxargs/`."""
