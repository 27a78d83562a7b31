"""The plugin itself, which needs neither Ray nor JAX."""

from hookline.testing import check_plugin
from hookline_ray import RayPlugin


def test_it_passes_the_checks_of_plugins() -> None:
    check_plugin(RayPlugin)
    assert list(RayPlugin().register_sources()) == ["ray"]
