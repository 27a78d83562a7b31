"""Load the model in a Hugging Face folder with mlx-lm, for the `mlx` engine and for the rewards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_config, load_model
from transformers import AutoConfig

__all__ = ["load_mlx_model"]


def load_mlx_model(folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model and the contents of its `config.json`. Raises a `ValueError` for a model that mlx-lm computes wrongly.

    :param options: further arguments of mlx-lm's `load_model`.
    """
    model, config = load_model(folder, model_config=_rope(load_config(folder)), **options)
    _refuse_ignored_window(folder, model)
    return model, config


def _refuse_ignored_window(folder: Path, model: Any) -> None:
    """Several of mlx-lm's models, such as mistral's, let each token see all before it, whatever their config says."""
    if not all(type(cache) is KVCache for cache in make_prompt_cache(model)):
        return  # layers with a window have another cache
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ValueError:
        return  # of a family that transformers does not know
    config = config.get_text_config(decoder=True)
    window, context = getattr(config, "sliding_window", None), getattr(config, "max_position_embeddings", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    if window is not None and "sliding_attention" in kinds and (context is None or window < context):
        raise ValueError(
            f"its sliding window of {window} tokens is shorter than its context of {context}, and mlx-lm ignores it."
        )


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by which mlx-lm knows the rotary positions. Some of its models do not read `rope_parameters`."""
    rope = config.get("rope_parameters")
    if rope is None or "rope_theta" not in rope:
        return {}
    scaling = None if rope.get("rope_type", "default") == "default" else rope
    return {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
