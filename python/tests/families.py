"""Small models with random weights of the families that Transformers has."""
import os

import torch
from transformers import AutoModelForCausalLM
from transformers import models as _models

_SMALL = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
          "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_SLIDING = {"sliding_window": 24}

#: Family: name of the configuration's class, what differs from the small model.
FAMILIES = {
    "llama": ("LlamaConfig", {"head_dim": 64}),
    "mistral": ("MistralConfig", _SLIDING),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2Config", {"num_key_value_heads": 1}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "gemma": ("GemmaConfig", {"head_dim": 256, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2Config", {"head_dim": 32, "query_pre_attn_scalar": 32,
                                "attn_logit_softcapping": 20.0, **_SLIDING}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 128, "query_pre_attn_scalar": 128,
                                    "num_hidden_layers": 7, **_SLIDING}),
    "phi3": ("Phi3Config", {"partial_rotary_factor": 0.5}),
    "olmo2": ("Olmo2Config", {"num_key_value_heads": 4}),
    "stablelm": ("StableLmConfig", {"partial_rotary_factor": 0.25, "use_qkv_bias": True}),
    "gpt_neox": ("GPTNeoXConfig", {"rotary_pct": 0.25}),
    "granite": ("GraniteConfig", {"attention_multiplier": 0.1}),
    "cohere": ("CohereConfig", {}),
    "gpt_oss": ("GptOssConfig", {"head_dim": 64, "num_local_experts": 4,
                                 "num_experts_per_tok": 2, **_SLIDING}),
    "smollm3": ("SmolLM3Config", {}),
    "starcoder2": ("Starcoder2Config", {"num_key_value_heads": 1, **_SLIDING}),
    "olmo3": ("Olmo3Config", _SLIDING),
    # Layers of two shapes, of which the last ones use earlier layers' keys and values.
    "gemma4": ("Gemma4TextConfig", {"head_dim": 32, "global_head_dim": 64,
                                    "num_global_key_value_heads": 1, "num_hidden_layers": 4,
                                    "num_kv_shared_layers": 2, "attention_k_eq_v": True,
                                    "layer_types": ["sliding_attention", "full_attention"] * 2,
                                    "hidden_size_per_layer_input": 16,
                                    "vocab_size_per_layer_input": 512, **_SLIDING}),
    # Head dims 256 and 512, as Gemma 4 has.
    "gemma4_wide": ("Gemma4TextConfig", {"head_dim": 256, "global_head_dim": 512,
                                         "num_global_key_value_heads": 1, "num_hidden_layers": 2,
                                         "num_kv_shared_layers": 0, "attention_k_eq_v": True,
                                         "layer_types": ["sliding_attention", "full_attention"],
                                         "hidden_size_per_layer_input": 16,
                                         "vocab_size_per_layer_input": 512, **_SLIDING}),
    # Multi-head latent attention, with DeepSeek's head dims: 576 and 512 in the cache.
    "deepseek_v3": ("DeepseekV3Config", {"num_key_value_heads": 4, "kv_lora_rank": 512,
                                         "q_lora_rank": 48, "qk_rope_head_dim": 64,
                                         "qk_nope_head_dim": 128, "v_head_dim": 128,
                                         "moe_intermediate_size": 48, "n_routed_experts": 4,
                                         "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
                                         "num_experts_per_tok": 2, "first_k_dense_replace": 1}),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", {"num_key_value_heads": 4, "kv_lora_rank": 64,
                                            "q_lora_rank": 48, "qk_rope_head_dim": 16,
                                            "qk_nope_head_dim": 32, "v_head_dim": 32,
                                            "moe_intermediate_size": 48, "n_routed_experts": 4,
                                            "num_experts_per_tok": 2,
                                            "mlp_layer_types": ["dense", "sparse", "sparse"]}),
    "gemma3n": ("Gemma3nTextConfig", {"head_dim": 32, "num_hidden_layers": 6,
                                      "num_kv_shared_layers": 2, "laurel_rank": 8,
                                      "layer_types": ["sliding_attention", "full_attention"] * 3,
                                      "intermediate_size": [96] * 6,
                                      "activation_sparsity_pattern": [0.0] * 6,
                                      "hidden_size_per_layer_input": 16,
                                      "vocab_size_per_layer_input": 512, **_SLIDING}),
    # Chunks on all layers but the last, which has no positions.
    "llama4": ("Llama4TextConfig", {"head_dim": 32, "num_hidden_layers": 4, "num_local_experts": 4,
                                    "intermediate_size_mlp": 96, "attention_chunk_size": 24}),
    "glm4": ("Glm4Config", {"head_dim": 16, "num_key_value_heads": 2}),
}
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
#: Models with linear layers. The last layers are linear, too.
HYBRIDS = {
    "qwen3_next": ("Qwen3NextConfig", {"head_dim": 32, "num_hidden_layers": 4, "num_experts": 4,
                                       "shared_expert_intermediate_size": 32, **_DELTA, **_EXPERTS,
                                       "layer_types": ["linear_attention", "full_attention"] +
                                       ["linear_attention"] * 2}),
    "qwen3_5": ("Qwen3_5TextConfig", {"head_dim": 32, "num_hidden_layers": 4, **_DELTA,
                                      "layer_types": ["linear_attention", "full_attention"] * 2}),
    "nemotron_h": ("NemotronHConfig", {"head_dim": 16, "num_hidden_layers": 4, "mamba_num_heads": 4,
                                       "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2,
                                       "n_routed_experts": 4, **_EXPERTS,
                                       "moe_shared_expert_intermediate_size": 32,
                                       "layers_block_type": ["linear_attention", "moe",
                                                             "full_attention",
                                                             "linear_attention"]}),
    "bamba": ("BambaConfig", {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16,
                              "mamba_d_state": 16}),
    "kimi_linear": ("KimiLinearConfig", {"num_hidden_layers": 3, "num_key_value_heads": 4,
                                         "layer_types": ["linear_attention", "full_attention",
                                                         "linear_attention"],
                                         "kv_lora_rank": 32, "qk_rope_head_dim": 8,
                                         "qk_nope_head_dim": 24, "v_head_dim": 16,
                                         "linear_head_dim": 16, "linear_num_heads": 4,
                                         "num_local_experts": 4, **_EXPERTS}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}),
}
#: Models that fad's cache refuses.
_REFUSED = {
    "mamba": ("MambaConfig", {}),
}
#: Where models and their tokens are: cpu or cuda.
DEVICE = os.environ.get("FAD_TEST_DEVICE", "cpu")
#: Each has something of its own: window, soft cap, sinks, latents, chunks.
QUICK = ("llama", "gemma2", "gpt_oss", "deepseek_v3", "llama4")


def config(family, **changes):
    name, own = {**FAMILIES, **HYBRIDS, **_REFUSED}[family]
    return getattr(_models, name)(**{**_SMALL, **own, **changes})


def model(family, seed=0, **changes):
    """A model of the family with eager attention. Its weights are scaled so that greedy tokens do
    not cycle soon."""
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config(family, **changes),
                                            attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
            if "sinks" in name:
                parameter.normal_()
    return made.requires_grad_(False).to(DEVICE)
