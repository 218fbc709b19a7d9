"""Measures RowMQ, its peers and the raw limit of a database, in one run, in turns.

What is measured plays in processes of its own: a *player* is told what to do in JSON, says that it
is ready, waits for `go`, and says what it did (`playing`; `player`, `raw`, `plain`, `peers`). A
*trial* is some players at once (`trial`), a *scenario* says which trials are compared
(`scenarios`), and a *run* repeats them in turns (`running`, `benchmark`). What came of it is a
value (`results`), from which tables, plots, JSON and the verdict on each target are made.
"""
