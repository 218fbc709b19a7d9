"""The parts of a replay: what is chosen, in which chunks, and where it goes."""
