"""A policy is a protocol: what core asks of one are methods, and never whether it is one of core's own classes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hookline
from hookline.policies import Discrete, HuggingFacePolicy, LoraConfig, MLPPolicy, TransformerPolicy
from hookline.policies.forward_torch import ControlFromForward, control_policy, text_policy
from hookline.policies.protocol import (
    ControlPolicy,
    HasJaxPolicy,
    HasTokenizer,
    HuggingFaceSpecification,
    JaxControlPolicy,
    JaxTextPolicy,
    PolicySpecification,
    TextPolicy,
    missing_methods,
)

CORE = Path(hookline.__file__).parent
OWN_CLASSES = {
    *("MLPPolicy", "TransformerPolicy", "HuggingFacePolicy", "LlamaPolicy"),
    *("ActorCritic", "Transformer", "CausalLM"),
}
OPTIONAL_MEMBERS = {"token_logprobs", "jax_policy", "full_state_dict", "path", "lora"}
"""A protocol asks for each of them."""
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
        of_member = node.func.id in ("hasattr", "getattr") and getattr(asked, "value", None) in OPTIONAL_MEMBERS
        if of_class or of_member:
            found.append(ast.unparse(node))
    return found


def test_core_never_asks_whether_a_policy_is_one_of_its_own_classes() -> None:
    modules, templates = list(CORE.rglob("*.py")), list(CORE.rglob("*.py.in"))
    assert len(modules) > 100
    assert len(templates) > 5
    sources = {path: path.read_text("utf-8") for path in modules if path != FAST_PATH}
    sources |= {path: path.read_text("utf-8").replace("$", "") for path in templates}  # $package, a placeholder
    assert {path.name: asked for path, source in sources.items() if (asked := questions_of_class(source))} == {}


@pytest.mark.parametrize("line", ["isinstance(p, MLPPolicy)", "isinstance(p, (int, m.CausalLM))", "hasattr(p, 'path')"])
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


@pytest.mark.parametrize("lora", [None, LoraConfig()])
def test_what_a_policy_offers_besides_is_asked_for_by_a_protocol(lora: LoraConfig | None) -> None:
    model = HuggingFacePolicy("a-folder", lora)
    for protocol in (HuggingFaceSpecification, HasJaxPolicy, HasTokenizer):
        assert isinstance(model, protocol)
        assert not isinstance(TransformerPolicy(10, width=16, layers=1, heads=2), protocol)
    assert isinstance(model, PolicySpecification)
    assert not isinstance(model, JaxTextPolicy)


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
