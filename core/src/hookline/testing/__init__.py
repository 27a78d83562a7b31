"""For authors of plugins: what their tests need, without a trainer and without torch, jax or mlx.

Installed with `pip install "hookline[testing]"`, it gives pytest three fixtures:

    def test_it_greets_every_epoch(hookline_manager, hookline_events, hookline_state):
        hookline_manager.register(Greeter())
        hookline_manager.emit.on_epoch_end(state=hookline_state(epoch=3))
        assert hookline_events.names() == ["on_epoch_end"]

and one test that any plugin can call:

    def test_it_is_a_good_plugin():
        check_plugin(Greeter, greeting="hello")

For authors of training loops and bridges there is `check_emitter(run)`.
"""

from hookline.testing.conformance import check_plugin, sample_arguments
from hookline.testing.emitter import EmitterError, check_emitter
from hookline.testing.fixtures import EventRecorder, RecordedEvent

__all__ = ["EmitterError", "EventRecorder", "RecordedEvent", "check_emitter", "check_plugin", "sample_arguments"]
