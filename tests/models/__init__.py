"""Models of topics, queues and schedules, and machines that compare the real ones with them.

A model is a few dictionaries: what anybody would say that a queue is. Hypothesis has a model and a
real database do the same, in any order that it can think of, and looks for one after which they
differ; then it makes that shorter. Time passes where a rule says so: see `tests/clocks.py`.
"""
