"""Load the model in a Hugging Face folder with mlx-lm, for the `mlx` engine and for the rewards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_config, load_model

__all__ = ["load_mlx_model"]


def load_mlx_model(folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model and the contents of its `config.json`.

    :param options: further arguments of mlx-lm's `load_model`.
    """
    model, config = load_model(folder, model_config=_rope(load_config(folder)), **options)
    return model, config


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by which mlx-lm knows the rotary positions. Some of its models do not read `rope_parameters`."""
    rope = config.get("rope_parameters")
    if rope is None or "rope_theta" not in rope:
        return {}
    scaling = None if rope.get("rope_type", "default") == "default" else rope
    return {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
