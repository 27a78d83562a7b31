"""The source of rollouts `ray`: its workers are Ray actors, on as many machines as there are.

Ray is imported when a run with this source starts.
"""

from hookline_ray.plugin import RayPlugin

__all__ = ["RayPlugin"]
