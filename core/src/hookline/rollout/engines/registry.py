"""Engines by name. `auto` chooses one that supports the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hookline.errors import did_you_mean
from hookline.importing import require
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.registry import collect_registered
from hookline.policies.protocol import HasJaxPolicy, HuggingFaceSpecification, JaxTextPolicy, PolicyError
from hookline.rollout.engines.engine import EngineError, EngineFactory, EngineRequest, RolloutEngine

__all__ = ["AUTO", "build_engine"]

AUTO: Final = "auto"


def build_engine(name: str, request: EngineRequest, plugins: PluginManager) -> RolloutEngine:
    """The engine of this name: one of ours or of a plugin.

    :param name: `auto` for `jax` where the policy has a JAX forward, else `transformers`.
    """
    known = collect_registered(plugins, "register_engines", "an engine", OWN_ENGINES)
    if name == AUTO:
        name = _choose(request)
    if name not in known:
        names = ", ".join(sorted({AUTO, *known}))
        raise EngineError(f"there is no engine {name!r}{did_you_mean(name, [AUTO, *known])}; known are {names}")
    source, factory = known[name]
    if not callable(factory):
        raise EngineError(f"{source}: the engine {name!r} must be a function of an EngineRequest, not {factory!r}")
    engine: RolloutEngine = factory(request)
    return engine


def _choose(request: EngineRequest) -> str:
    policy, reason = _jax_policy(request.policy)
    if policy is not None:
        return "jax"
    is_hugging_face = isinstance(request.policy, HuggingFaceSpecification)
    if not (is_hugging_face if request.module is None else _generates(request.module)):
        raise PolicyError(
            f"the policy, a {request.name}, cannot generate text: {reason}, and it is no Hugging Face causal LM. Use "
            "a TransformerPolicy, a Hugging Face model, a specification with a JAX forward, or an engine of a plugin"
        )
    return "transformers"


def _jax_policy(policy: Any) -> tuple[JaxTextPolicy | None, str]:
    """The JAX forward of a specification, or None and the reason why it has none."""
    if isinstance(policy, JaxTextPolicy):
        return policy, ""
    if not isinstance(policy, HasJaxPolicy):
        return None, "it has no jax_prefill() and jax_decode()"
    try:
        return policy.jax_policy(), ""
    except PolicyError as error:
        return None, str(error)


def _generates(module: Any) -> bool:
    """Whether the module is a `CausalLM`, whose `model` is the Hugging Face model.

    Not by a protocol: a `PeftModel` may find `generate` in the model that it wraps, where `isinstance` does not look.
    """
    return callable(getattr(getattr(module, "model", None), "generate", None))


# -- our own ----------------------------------------------------------------------------------------------------------


def _build_jax(request: EngineRequest) -> RolloutEngine:
    policy, reason = _jax_policy(request.policy)
    if policy is None and isinstance(request.policy, HasJaxPolicy):
        raise EngineError(reason)
    if policy is None:
        other = ': use engine = "transformers"' if _generates(request.module) else ""
        raise EngineError(f"the jax engine does not support the policy, a {request.name}: {reason}{other}")
    from hookline.rollout.engines.jax_engine import JaxEngine

    return JaxEngine(policy, request.weights(), precision=request.precision)


def _build_transformers(request: EngineRequest) -> RolloutEngine:
    require("transformers", "the transformers engine", "hf")
    module = request.own_module()
    if not _generates(module):
        has_jax = _jax_policy(request.policy)[0] is not None
        other = ': use engine = "jax"' if has_jax else ", and no engine of ours supports it"
        raise EngineError(
            f"the transformers engine generates with a Hugging Face causal LM, and the policy, a {request.name}, "
            f"is none{other}"
        )
    from hookline.rollout.engines.transformers_engine import TransformersEngine

    return TransformersEngine(module, request)


def _build_mlx(request: EngineRequest) -> RolloutEngine:
    if not isinstance(request.policy, HuggingFaceSpecification):
        other = "jax" if _jax_policy(request.policy)[0] is not None else "transformers"
        raise EngineError(
            f"the mlx engine reads the architecture from a Hugging Face folder, and the policy, a {request.name}, has "
            f'none: use engine = "{other}"'
        )
    require("mlx_lm", "the mlx engine")
    from hookline.rollout.engines.mlx_engine import MLXEngine

    return MLXEngine(request)


OWN_ENGINES: Final[Mapping[str, EngineFactory]] = {
    "jax": _build_jax,
    "transformers": _build_transformers,
    "mlx": _build_mlx,
}
