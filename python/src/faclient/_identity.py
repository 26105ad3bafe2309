"""Which keys and values a model computes: those of the same weights and adapters are shared, no others."""
from __future__ import annotations

import hashlib
import json
import weakref
from typing import Any

import torch

_MODULUS_WORDS = 1 << 20


def _adapters(model):
    """What PEFT's adapters change beside their weights: texts."""
    for name, settings in sorted((getattr(model, "peft_config", None) or {}).items()):
        known = settings.to_dict() if hasattr(settings, "to_dict") else vars(settings)
        known = {key: sorted(value, key=str) if isinstance(value, set) else value for key, value in known.items()
                 if key not in ("base_model_name_or_path", "revision", "inference_mode", "peft_version")}
        yield f"adapter {name} {json.dumps(known, sort_keys=True, default=str)}"
    for name, layer in _peft_layers(model):
        yield f"layer {name} {_in_effect(layer)}"


def _peft_layers(model):
    """PEFT's layers, with their names. Whole models have active_adapters, too, as a method."""
    return [(name, module) for name, module in model.named_modules()
            if isinstance(getattr(module, "active_adapters", None), (list, tuple))]


def _in_effect(layer):
    """What a layer of PEFT's computes with beside weights."""
    active = list(layer.active_adapters)
    scaling = getattr(layer, "scaling", None) or {}
    return (active, getattr(layer, "disable_adapters", None), list(getattr(layer, "merged_adapters", ())),
            [scaling.get(name) for name in active])


class Adapters:
    """Whether the adapters that a model computes with are still those of the beginning."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._names: list[str] = []
        self._layers: list[weakref.ref[Any]] = []
        self._first = self._now()

    def _now(self):
        model = self._model()
        names = list(getattr(model, "peft_config", None) or ())
        if names != self._names:  # only then are there other layers
            self._names = names
            self._layers = [weakref.ref(layer) for _, layer in _peft_layers(model)]
        layers = [layer() for layer in self._layers]
        return [layer if layer is None else _in_effect(layer) for layer in layers]

    def check(self) -> None:
        if self._model() is not None and self._now() != self._first:
            raise RuntimeError("the model's adapters are not those with which the FadCache was made (another one is "
                               "active, or one was disabled, merged or scaled): make a new FadCache, or set them back")


def fingerprint(model: Any) -> bytes:
    """32 bytes that differ for models that compute different keys and values: from the
    configuration, the adapters (which, how they are set, and which are active) and every bit of the weights."""
    digest = hashlib.sha256()
    config = {key: value for key, value in model.config.to_dict().items()
              if not key.startswith("_") and key not in ("transformers_version", "use_cache")}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for text in _adapters(model):
        digest.update(text.encode())
    generator = torch.Generator().manual_seed(0x6661)
    odd = torch.randint(-2**62, 2**62, (_MODULUS_WORDS,), generator=generator) | 1
    seen = set()
    for key, tensor in sorted(model.state_dict(keep_vars=True).items()):
        where = (tensor.data_ptr(), tensor.numel(), tensor.stride())
        digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if where in seen:  # tied weights
            continue
        seen.add(where)
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        pad = -data.numel() % 8
        if pad:
            data = torch.nn.functional.pad(data, (0, pad))
        words, factors = data.view(torch.int64), odd.to(data.device)
        for chunk in words.split(_MODULUS_WORDS):
            # Wraps around, and is the same on every device.
            value = (chunk * factors[:chunk.numel()]).sum()
            digest.update(int(value).to_bytes(8, "little", signed=True))
    return digest.digest()
