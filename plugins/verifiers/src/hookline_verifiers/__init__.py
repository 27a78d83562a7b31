"""Verifiers of responses: length, toxicity, coherence, and how facts are claimed. Each is a plugin of its own."""

from hookline_verifiers.coherence import CoherenceVerifier
from hookline_verifiers.factual import FactualVerifier
from hookline_verifiers.length import LengthVerifier
from hookline_verifiers.toxicity import ToxicityVerifier

__all__ = ["CoherenceVerifier", "FactualVerifier", "LengthVerifier", "ToxicityVerifier"]
__version__ = "0.1.0"
