"""vLLM's entry point: light, as every vLLM process imports it, also those that do not use fad."""
from __future__ import annotations

from typing import Any

BACKEND = "FAD"  #: of `--attention-backend`


def register() -> None:
    """Makes `"kv_connector": "FadConnector"` and `--attention-backend FAD` known to vLLM. May be
    called again."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    if "FadConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("FadConnector", "faclient.vllm", "FadConnector")
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError:
        return  # a vLLM that has no such registry, and fails where the name is asked for
    if BACKEND not in AttentionBackendEnum.__members__:
        register_backend(BACKEND, "faclient._vllm_attention.FadAttentionBackend")
        # Processes that vLLM spawns read their configuration before they load plugins.
        AttentionBackendEnum[BACKEND].__reduce_ex__ = lambda protocol: (backend, ())
        _offer_on_cpu()


def backend() -> Any:
    """The name's member of vLLM's enumeration, in any process."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    register()
    return AttentionBackendEnum[BACKEND]


def _offer_on_cpu() -> None:
    """vLLM's platform for CPUs knows one backend and ignores every other choice."""
    from vllm.platforms import current_platform
    if not current_platform.is_cpu():
        return
    platform = type(current_platform)
    default = platform.get_attn_backend_cls

    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
        if selected_backend is None or selected_backend.name != BACKEND:
            return default(selected_backend, attn_selector_config, num_heads)
        from ._vllm_attention import choose_on_cpu
        return choose_on_cpu(attn_selector_config)

    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
