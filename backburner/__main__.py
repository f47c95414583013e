"""`python -m backburner` is the `backburner` command."""

from backburner.cli import main

main()
