"""`python -m midspan`: the command line."""

from midspan.cli import main

main()
