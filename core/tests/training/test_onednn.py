"""Linear layers by oneDNN compute what torch computes, in modules that stay as they were."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hookline.training.learner import onednn


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor of AMD, also for small layers."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    monkeypatch.setattr(onednn, "LEAST_PRODUCTS", 0)


def test_torch_has_what_the_module_calls() -> None:
    if torch.backends.mkldnn.is_available():
        x, weight = torch.randn(3, 4), torch.randn(5, 4)
        torch.testing.assert_close(onednn._product(x, weight), x @ weight.T)


def gradients(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    layer.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    y = layer(x)
    if y.requires_grad:
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return [y.detach(), x.grad, *(own.grad for own in layer.parameters())]


@pytest.mark.usefixtures("faster")
@given(
    shape=st.lists(st.integers(1, 9), max_size=3),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    bias=st.booleans(),
    frozen=st.booleans(),
    of_input=st.booleans(),
    strided=st.booleans(),
)
def test_outputs_and_gradients_are_those_of_torch(
    shape: list[int], inputs: int, outputs: int, bias: bool, frozen: bool, of_input: bool, strided: bool
) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(inputs, outputs, bias=bias).requires_grad_(not frozen)
    layer = copy.deepcopy(plain)
    onednn.use_onednn(layer)
    x = torch.randn(*shape, 2 * inputs)[..., ::2] if strided else torch.randn(*shape, inputs)
    x = x.requires_grad_(of_input)
    for own, other in zip(gradients(layer, x), gradients(plain, x), strict=True):
        if other is None:
            assert own is None
        else:
            torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)


def backward_of_a_repeated_number(layer: nn.Linear, x: torch.Tensor) -> None:
    layer(x).sum().backward()  # the gradient is one number in memory, expanded


def backward_of_a_gradient(layer: nn.Linear, x: torch.Tensor) -> None:
    first = torch.autograd.grad(layer(x).tanh().sum(), [x, layer.weight], create_graph=True)
    sum((part**2).sum() for part in first).backward()


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize(("inputs", "outputs"), [(4, 9), (9, 4)])
@pytest.mark.parametrize("backward", [backward_of_a_repeated_number, backward_of_a_gradient])
def test_unusual_gradients_are_those_of_torch(
    inputs: int, outputs: int, backward: Callable[[nn.Linear, torch.Tensor], None]
) -> None:
    plain = nn.Linear(inputs, outputs)
    layer = copy.deepcopy(plain)
    onednn.use_onednn(layer)
    found = []
    for own in (layer, plain):
        x = torch.linspace(-1, 1, 3 * inputs).view(3, inputs).requires_grad_()
        backward(own, x)
        found.append([x.grad, own.weight.grad, own.bias.grad])
    torch.testing.assert_close(*found)


@pytest.mark.usefixtures("faster")
def test_the_input_of_a_frozen_layer_is_not_kept_for_the_backward_pass() -> None:
    layer = nn.Linear(4, 3).requires_grad_(False)
    onednn.use_onednn(layer)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(torch.ones(2, 4, requires_grad=True))
        layer.requires_grad_(True)(torch.ones(2, 4))
    assert [tuple(tensor.shape) for tensor in kept] == [(3, 4), (2, 4)]


@pytest.mark.usefixtures("faster")
def test_a_module_keeps_its_names_and_can_be_copied_and_pickled() -> None:
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    policy = copy.deepcopy(plain)
    onednn.use_onednn(policy)
    assert policy.state_dict().keys() == plain.state_dict().keys()
    for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        with torch.no_grad():
            other[0].weight.zero_()
            other[0].bias.zero_()
        assert torch.equal(other(torch.ones(1, 4)), other[2](torch.zeros(1, 6))), "it computes with its own weights"
    torch.testing.assert_close(policy(torch.ones(1, 4)), plain(torch.ones(1, 4)))


@pytest.mark.usefixtures("faster")
def test_other_types_devices_and_autocast_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("oneDNN was called")

    layer = nn.Linear(4, 3)
    onednn.use_onednn(layer)
    monkeypatch.setattr(onednn, "_product", refuse)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(2, 4)).dtype == torch.bfloat16
    assert copy.deepcopy(layer).double()(torch.ones(2, 4).double()).dtype == torch.float64
    assert copy.deepcopy(layer).to("meta")(torch.ones(2, 4, device="meta")).is_meta
    with pytest.raises(AssertionError):
        layer(torch.ones(2, 4))


def test_other_processors_and_layers_of_other_classes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Linear):
        pass

    policy = nn.Sequential(nn.Linear(2, 2), Own(2, 2))
    monkeypatch.setattr(onednn, "_is_faster", lambda: False)
    onednn.use_onednn(policy)
    assert "forward" not in vars(policy[0])
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    onednn.use_onednn(policy)
    assert ["forward" in vars(layer) for layer in policy] == [True, False]


def test_without_the_module_a_learner_works() -> None:
    program = """
        import sys
        sys.modules["hookline.training.learner.onednn"] = None
        from hookline.policies import Discrete, MLPPolicy
        from hookline.training.config import OptimizerConfig
        from hookline.training.learner import Learner
        learner = Learner(MLPPolicy(2, Discrete(2)).torch_module(), [], OptimizerConfig())
        assert not any("forward" in vars(module) for module in learner.policy.modules())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
