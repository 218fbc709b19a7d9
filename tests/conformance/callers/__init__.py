"""The objects that a caller's transaction comes in, one entry for each."""
