"""The worker runtime: apps, their handlers, and the loops that run them."""
