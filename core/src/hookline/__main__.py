"""`python -m hookline` is `hookline`."""

from hookline.cli import main

main()
