"""`python -m edgekv`: the command line."""

from edgekv.cli.main import main

main()
