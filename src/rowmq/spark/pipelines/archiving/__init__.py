"""The parts of the archive: a file for each table of the lake, and for the upkeep of all."""
