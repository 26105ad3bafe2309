"""Linear layers of hybrid models: their states while a model runs, and in a cache's checkpoints."""
from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch

from ._rows import Shape

try:
    from transformers.cache_utils import CacheLayerMixin, DynamicCache, LinearAttentionLayer
except ImportError:  # an older release, which has no cache for such layers
    LinearAttentionLayer = None
try:
    from transformers.cache_utils import DummyLayer
except ImportError:  # an older release, whose layers that keep nothing are linear ones without states
    DummyLayer = ()


class LinearState(NamedTuple):
    """A tensor that a linear layer carries over, [rows, *shape]."""

    layer: int  #: of the model
    kind: str   #: "conv" or "recurrent"
    index: int  #: of the layer's states of this kind
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def of(self, layer):
        return (layer.conv_states if self.kind == "conv" else layer.recurrent_states)[self.index]

    def put(self, layer, tensor):
        """Makes the tensor the layer's state after earlier tokens."""
        if self.kind == "conv":
            layer.conv_states[self.index] = tensor
            layer.is_conv_states_initialized[self.index] = True
            layer.conv_kernel_size[self.index] = tensor.shape[-1]
            layer.device, layer.dtype = tensor.device, tensor.dtype
        else:
            layer.recurrent_states[self.index] = tensor
            layer.is_recurrent_states_initialized[self.index] = True
        layer.has_previous_state[self.index] = True


def decoder_of(model: Any) -> Any:
    return model.get_decoder() if hasattr(model, "get_decoder") else model


if LinearAttentionLayer is not None:

    class LinearLayer(LinearAttentionLayer):
        """Transformers' layer, of which a FadCache selects rows."""

        def reset(self):
            self.__init__(number_of_states=self.number_of_states)

        def select(self, indices):
            for states in (self.conv_states, self.recurrent_states):
                for i, tensor in states.items():
                    if tensor is not None:
                        states[i] = tensor.index_select(0, indices.to(tensor.device))


class Linear:
    """The linear layers of a model, and what a pass over one token tells of all its layers."""

    def __init__(self, model: Any, config: Any) -> None:
        self.layers: dict[int, Any] = {}  #: by their numbers in the model; empty: it has none
        self.others: dict[int, Any] = {}  #: layers that keep nothing, as those of experts alone
        self.states: list[LinearState] = []
        self.shapes: list[Shape] = []     #: of the layers with attention
        if LinearAttentionLayer is None:
            return
        attends = False
        for i, layer in enumerate(DynamicCache(config=config).layers):
            if isinstance(layer, DummyLayer):
                self.others[i] = layer
            elif isinstance(layer, LinearAttentionLayer):
                if isinstance(layer, CacheLayerMixin):
                    raise NotImplementedError(f"layer {i} is linear and has attention, too, which "
                                              "fad does not keep together")
                self.layers[i] = LinearLayer(number_of_states=layer.number_of_states)
            else:
                attends = True
        if self.layers and not attends:
            raise NotImplementedError("the model has no layer with attention, whose tokens would "
                                      "be counted")
        if self.layers:
            self._probe(model, config)
        else:
            self.others = {}

    def _probe(self, model, config):
        decoder = decoder_of(model)
        cache = DynamicCache(config=config)
        name = "cache" if "cache" in inspect.signature(decoder.forward).parameters else \
            "past_key_values"
        with torch.no_grad():
            decoder(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device),
                    use_cache=True, **{name: cache})
        for i, layer in enumerate(cache.layers):
            if i in self.layers:
                if not any(x is not None for x in (*layer.conv_states.values(),
                                                   *layer.recurrent_states.values())):
                    self.others[i] = self.layers.pop(i)
                for kind, tensors in (("conv", layer.conv_states),
                                      ("recurrent", layer.recurrent_states)):
                    self.states += [LinearState(i, kind, j, tuple(x.shape[1:]), x.dtype)
                                    for j, x in tensors.items() if x is not None]
            elif i not in self.others:
                self.shapes.append(Shape(layer.keys.shape[1], layer.keys.shape[3],
                                         layer.values.shape[3]))
