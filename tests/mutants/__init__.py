"""What turns off one guard of ours at a time, and shows that the tests notice: `make mutants`.

A promise is kept by a few words in a statement: a lock, a predicate, an order. This takes such
words away, in a copy of the source, and runs the tests that are there for them. If these pass,
nothing would tell us that somebody had taken the guard away: the suite has a hole.
"""
