"""The one error of this package: a server cannot be had, and what the reader can do about it."""


class ServerError(RuntimeError):
    """A database server could not be found, unpacked or started."""
