"""`python -m rowmq`: the same as the command `rowmq`."""

from rowmq.cli.main import main

main()
