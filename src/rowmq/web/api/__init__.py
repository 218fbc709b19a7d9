"""The HTTP API, `/api/v1`: what programs in any language can do with topics and queues.

`models` are the bodies that it takes and gives, `calls` makes a route of a function with annotated
arguments, `payloads` says how payloads stand in JSON. Beside that there is a file for each part of
the API; `consumers` keeps the subscribers of those who poll topics, and `openapi` describes it all,
from the same functions and models.
"""
