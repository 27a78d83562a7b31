"""The command line: `hookline`."""

from hookline.cli.app import main

__all__ = ["main"]
