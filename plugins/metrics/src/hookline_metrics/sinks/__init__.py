"""Where the numbers of a run go. A sink is any object with two methods:

    class Printed:
        def __init__(self, run: Run) -> None:
            self.file = (run.folder / "printed.txt").open("a")

        def write(self, reports: Sequence[Report]) -> None:
            for report in reports:
                print(report.step, dict(report.numbers), file=self.file)

        def close(self) -> None:
            self.file.close()

Name it in the plugin's option `sinks` as `package.module:Printed`, and it is opened for every run. Each sink has a
thread of its own, on which all three are called: it may be slow, or hang, and holds up neither training nor another
sink. What `write` raises is logged, and the same reports come again a moment later together with newer ones; a sink
that will never work raises `SinkUnavailableError`, and is left alone from then on.
"""

from hookline_metrics.sinks.sink import Report, Run, Sink, SinkUnavailableError

__all__ = ["Report", "Run", "Sink", "SinkUnavailableError"]
