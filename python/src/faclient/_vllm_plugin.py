"""vLLM's entry point: light, as every vLLM process imports it, also those that do not use fad."""


def register() -> None:
    """Makes `"kv_connector": "FadConnector"` known to vLLM. May be called again."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    if "FadConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("FadConnector", "faclient.vllm", "FadConnector")
