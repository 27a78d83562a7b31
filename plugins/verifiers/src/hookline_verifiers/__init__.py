"""Verifiers of responses: length, toxicity, coherence and unsupported claims. Each is a separate plugin."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline_verifiers.coherence import CoherenceVerifier
    from hookline_verifiers.factual import FactualVerifier
    from hookline_verifiers.length import LengthVerifier
    from hookline_verifiers.toxicity import ToxicityVerifier

__all__ = ["CoherenceVerifier", "FactualVerifier", "LengthVerifier", "ToxicityVerifier"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported on first use, so that a disabled verifier is not imported.
    if name in __all__:
        return getattr(import_module(f"{__name__}.{name.removesuffix('Verifier').lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
