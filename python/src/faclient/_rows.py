"""Rows of a batch in one or several caches: one for each shape that a model's layers have."""
from __future__ import annotations

from typing import Any, NamedTuple

from .client import Client
from .kv import Cache, Sequence


class Shape(NamedTuple):
    """Of a layer's keys and values."""

    heads: int
    dim: int
    dim_v: int
    v_in_k: bool = False


def shapes_of(model: Any, n_layers: int) -> list[Shape | None]:
    """The shapes of layers that differ. None: as the first pass says, which is so for all layers
    where no two are seen to differ."""
    shapes: list[Shape | None] = [None] * n_layers
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    for module in decoder.modules():
        layer, dim = (getattr(module, name, None) for name in ("layer_idx", "head_dim"))
        k, v = (getattr(getattr(module, name, None), "out_features", None)
                for name in ("k_proj", "v_proj"))
        if isinstance(layer, int) and layer < n_layers and isinstance(dim, int) and k:
            heads = k // dim
            shapes[layer] = Shape(heads, dim, v // heads if v else dim)
    if len(set(shapes) - {None}) < 2:
        return [None] * n_layers
    return shapes


class Caches:
    """The caches of a model's layers. All have the same rows, and their sequences equal lengths.
    The first one has the states of linear layers, if there are any."""

    def __init__(self, client: Client, name: str | None, shapes: list[Shape],
                 states: list[int] | None = None, checkpoint_tokens: int = 0, **options: Any):
        self.shapes = shapes
        distinct = list(dict.fromkeys(shapes))
        self.all: list[Cache] = []
        for i, shape in enumerate(distinct):
            if states and not i:
                first = {"states": states, "checkpoint_tokens": checkpoint_tokens}
            else:
                first = {}
            self.all.append(client.cache(
                f"{name}-{i}" if name and i else name, layers=shapes.count(shape),
                kv_heads=shape.heads, head_dim=shape.dim, head_dim_v=shape.dim_v,
                v_in_k=shape.v_in_k, **first, **options))
        self._places = [(self.all[distinct.index(shape)], shapes[:i].count(shape))
                        for i, shape in enumerate(shapes)]

    def place(self, layer: int, shape: Shape) -> tuple[Cache, int]:
        """A layer's cache and its number there."""
        if shape != self.shapes[layer]:
            heads, dim, dim_v, _ = shape
            expected = self.shapes[layer]
            raise NotImplementedError(
                f"layer {layer} has {heads} KV heads of dims {dim} and {dim_v}; expected "
                f"{expected.heads} of {expected.dim} and {expected.dim_v}, as its model's "
                "projections or other layers say")
        return self._places[layer]

    def row(self) -> Row:
        return Row([cache.sequence() for cache in self.all])

    def attach(self, tokens: Any, **options: Any) -> Row:
        row = Row([cache.attach(tokens, **options) for cache in self.all])
        if len(self.all) > 1:
            row.truncate(row.length)
        return row

    @property
    def has_states(self) -> bool:
        return bool(self.all[0].states)


class Row:
    """A row's sequences, one in each cache."""

    def __init__(self, sequences: list[Sequence]):
        self.sequences = sequences

    @property
    def length(self) -> int:
        """Committed tokens that all have."""
        return min(x.length for x in self.sequences)

    def fork(self) -> Row:
        return Row([x.fork() for x in self.sequences])

    def truncate(self, tokens: int) -> int:
        """Returns how many tokens are left: fewer than these if linear layers have no checkpoint
        there."""
        tokens = self.sequences[0].truncate(tokens)
        for x in self.sequences[1:]:
            x.truncate(tokens)
        return tokens

    def publish(self, tokens: Any, **options: Any) -> int:
        return [x.publish(tokens, **options) for x in self.sequences][0]

    def info(self) -> dict[str, Any]:
        return self.sequences[0].info()
