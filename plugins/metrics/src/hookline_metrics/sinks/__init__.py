"""Sinks: where the metrics of a run are stored. A sink is a class like this:

    class Printed:
        def __init__(self, run: Run) -> None:
            self.file = (run.folder / "printed.txt").open("a")

        def write(self, reports: Sequence[Report]) -> None:
            for report in reports:
                print(report.step, dict(report.numbers), file=self.file)

        def close(self) -> None:
            self.file.close()

Name it in the plugin's option `sinks` as `package.module:Printed`, and it is opened for every run. All three methods
are called on the sink's own thread, so a sink that is slow or hangs delays neither training nor other sinks. An error
in `write` is logged, and the same reports are passed again half a second later, together with newer ones. A sink that
cannot work at all raises `SinkUnavailableError` and is not called again.
"""

from hookline_metrics.sinks.sink import Report, Run, Sink, SinkUnavailableError

__all__ = ["Report", "Run", "Sink", "SinkUnavailableError"]
