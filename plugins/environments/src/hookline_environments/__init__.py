"""Environments of other libraries, by name: `gymnasium:ID`, `gymnax:NAME`, `reasoning-gym:NAME`, `verifiers:NAME`,
`openenv:URL`, and `process:FILE` for one of your own in a process with a Python of its own.

Each library is imported when one of its environments is made.
"""

from hookline_environments.plugin import Environments

__all__ = ["Environments"]
