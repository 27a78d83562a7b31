"""A test kit for plugin authors. It needs no trainer, and no framework but for engines, environments and sources.

`pip install "hookline[testing]"` adds three fixtures to pytest:

    def test_it_greets_every_epoch(hookline_manager, hookline_events, hookline_state):
        hookline_manager.register(Greeter())
        hookline_manager.emit.on_epoch_end(state=hookline_state(epoch=3))
        assert hookline_events.names() == ["on_epoch_end"]

`check_plugin` is one test that any plugin can call:

    def test_it_is_a_good_plugin():
        check_plugin(Greeter, greeting="hello")

`check_sink` is one for plugins that store metrics elsewhere:

    def test_it_has_a_good_sink(tmp_path):
        check_sink(Tracker, folder=tmp_path)

For authors of training loops and bridges there is `check_emitter(run)`, for those of rollout engines, environments,
sources of rollouts and verifiers `check_engine`, `check_environment`, `check_source` and `check_verifier`.
`hookline new-plugin --kind KIND` uses them. `hookline.testing.tiny_models` makes folders of random Hugging Face models.
"""

from hookline.testing.conformance import check_plugin, sample_arguments
from hookline.testing.emitter import EmitterError, check_emitter
from hookline.testing.engine import check_engine
from hookline.testing.environments import check_environment
from hookline.testing.fixtures import EventRecorder, RecordedEvent
from hookline.testing.sinks import check_sink
from hookline.testing.source import SourceError, check_source
from hookline.testing.verifiers import check_verifier

__all__ = [
    "EmitterError",
    "EventRecorder",
    "RecordedEvent",
    "SourceError",
    "check_emitter",
    "check_engine",
    "check_environment",
    "check_plugin",
    "check_sink",
    "check_source",
    "check_verifier",
    "sample_arguments",
]
