"""`hookline serve`: the list of runs, their comparison and the report of each, as pages that update themselves."""

from hookline_metrics.serve.server import RunServer

__all__ = ["RunServer"]
