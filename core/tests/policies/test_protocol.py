"""A policy is a protocol: what core asks of one are methods, and never whether it is one of core's own classes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hookline
from hookline.policies import Discrete, MLPPolicy, TransformerPolicy
from hookline.policies.forward_torch import ControlFromForward, control_policy, text_policy
from hookline.policies.protocol import (
    ControlPolicy,
    JaxControlPolicy,
    JaxTextPolicy,
    PolicySpecification,
    TextPolicy,
    missing_methods,
)

CORE = Path(hookline.__file__).parent
OWN_CLASSES = {"MLPPolicy", "TransformerPolicy", "ActorCritic", "Transformer"}
FAST_PATH = CORE / "training" / "learner" / "fused_ppo.py"
"""Computes what one class computes, so it must ask for that class."""


def questions_of_class(source: str) -> list[str]:
    """The calls that ask whether something is one of core's own policies."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
            continue
        asked = node.args[1]
        names = {part.id for part in ast.walk(asked) if isinstance(part, ast.Name)}
        names |= {part.attr for part in ast.walk(asked) if isinstance(part, ast.Attribute)}
        of_class = node.func.id in ("isinstance", "issubclass") and names & OWN_CLASSES
        of_method = node.func.id in ("hasattr", "getattr") and getattr(asked, "value", None) == "token_logprobs"
        if of_class or of_method:
            found.append(ast.unparse(node))
    return found


def test_core_never_asks_whether_a_policy_is_one_of_its_own_classes() -> None:
    paths = [path for path in CORE.rglob("*.py") if path != FAST_PATH]
    assert len(paths) > 100
    assert {path.name: asked for path in paths if (asked := questions_of_class(path.read_text("utf-8")))} == {}


@pytest.mark.parametrize(
    "line", ["isinstance(p, MLPPolicy)", "isinstance(p, (int, m.TransformerPolicy))", "hasattr(p, 'token_logprobs')"]
)
def test_such_a_question_would_be_found(line: str) -> None:
    assert questions_of_class(line) == [line]


def test_the_shipped_policies_meet_the_protocols() -> None:
    mlp, transformer = MLPPolicy(4, Discrete(2)), TransformerPolicy(10, width=16, layers=1, heads=2)
    assert isinstance(mlp, PolicySpecification)
    assert isinstance(transformer, PolicySpecification)
    assert isinstance(mlp, JaxControlPolicy)
    assert isinstance(transformer, JaxTextPolicy)
    assert missing_methods(transformer, JaxControlPolicy) == ["jax_forward"]
    assert missing_methods(mlp, JaxTextPolicy) == ["jax_prefill", "jax_decode"]
    assert isinstance(control_policy(mlp.torch_module()), ControlPolicy)
    module = transformer.torch_module()
    assert isinstance(module, TextPolicy)
    assert text_policy(module) is module


def test_a_module_knows_its_specification_and_a_subclass_does_not() -> None:
    policy = MLPPolicy(4, Discrete(2))
    module = policy.torch_module()
    assert module.specification is policy
    assert isinstance(control_policy(module), ControlFromForward)

    class Doubled(type(module)):  # type: ignore[misc]
        def forward(self, obs):  # type: ignore[no-untyped-def]
            logits, value = super().forward(obs)
            return 2 * logits, value

    assert Doubled(policy, policy.initial_weights()).specification is None
