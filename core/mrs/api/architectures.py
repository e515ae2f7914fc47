"""Names of architectures and of weight types, for `Which`."""

from __future__ import annotations

from enum import Enum


class Architecture(Enum):
    """Architectures of text models; overrides what the checkpoint's config says."""

    Afmoe = "afmoe"
    Apertus = "apertus"
    Arcee = "arcee"
    Bamba = "bamba"
    Cohere2 = "cohere2"
    Cohere2Moe = "cohere2_moe"
    DeepSeekV2 = "deepseek_v2"
    DeepSeekV3 = "deepseek_v3"
    DeepSeekV32 = "deepseek_v32"
    DeepseekV2 = DeepSeekV2
    DeepseekV3 = DeepSeekV3
    Dots1 = "dots1"
    Ernie4_5 = "ernie4_5"
    Ernie4_5Moe = "ernie4_5_moe"
    Exaone4 = "exaone4"
    FalconH1 = "falcon_h1"
    FalconMamba = "falcon_mamba"
    Gemma = "gemma"
    Gemma2 = "gemma2"
    Gemma3 = "gemma3_text"
    Gemma3n = "gemma3n_text"
    Gemma4 = "gemma4_text"
    Gemma4Unified = "gemma4_unified_text"
    GLM4 = "glm4"
    GLM4Moe = "glm4_moe"
    GLM4MoeLite = "glm4_moe_lite"
    GLMMoeDsa = "glm_moe_dsa"
    GptOss = "gpt_oss"
    Granite = "granite"
    GraniteMoeHybrid = "granitemoehybrid"
    HunYuanDenseV1 = "hunyuan_v1_dense"
    HunYuanMoEV1 = "hunyuan_v1_moe"
    Jamba = "jamba"
    KimiLinear = "kimi_linear"
    Laguna = "laguna"
    Lfm2 = "lfm2"
    Lfm2Moe = "lfm2_moe"
    Lfm3 = "lfm3"
    Llama = "llama"
    Llama4 = "llama4_text"
    Llama3_2Vision = "mllama_text_model"
    Mamba = "mamba"
    Mamba2 = "mamba2"
    MiniMaxM2 = "minimax_m2"
    Ministral3 = "ministral3"
    Mistral = "mistral"
    Mistral4 = "mistral4"
    Mixtral = "mixtral"
    NemotronH = "nemotron_h"
    Olmo2 = "olmo2"
    Olmo3 = "olmo3"
    OlmoHybrid = "olmo_hybrid"
    Phi2 = "phi"
    Phi3 = "phi3"
    Phi3_5MoE = "phimoe"
    Qwen2 = "qwen2"
    Qwen2Moe = "qwen2_moe"
    Qwen3 = "qwen3"
    Qwen3_5 = "qwen3_5_text"
    Qwen3_5Moe = "qwen3_5_moe_text"
    Qwen3Moe = "qwen3_moe"
    Qwen3Next = "qwen3_next"
    SeedOss = "seed_oss"
    SmolLm3 = "smollm3"
    Starcoder2 = "starcoder2"


class EmbeddingArchitecture(Enum):
    """Architectures of models that embed or rank texts; overrides the checkpoint's config."""

    Bert = "bert"
    EmbeddingGemma = "gemma3_text"
    ModernBert = "modernbert"
    NomicBert = "nomic_bert"
    Qwen3Embedding = "qwen3"
    XlmRoberta = "xlm_roberta"


class VisionArchitecture(Enum):
    """Architectures of vision models; overrides what the checkpoint's config says."""

    Gemma3 = "gemma3"
    Gemma4 = "gemma4"
    Gemma4Unified = "gemma4_unified"
    Idefics3 = "idefics3"
    InternVL = "internvl"
    LFM2VL = "lfm2_vl"
    LFM3VL = "lfm3_vl"
    Llama4 = "llama4"
    LLaVA = "llava"
    LLaVANext = "llava_next"
    Mistral3 = "mistral3"
    Phi3V = "phi3_v"
    Phi4MM = "phi4mm"
    Phi4Multimodal = "phi4_multimodal"
    Qwen2VL = "qwen2_vl"
    Qwen2_5VL = "qwen2_5_vl"
    Qwen3VL = "qwen3_vl"
    Qwen3VLMoe = "qwen3_vl_moe"
    Qwen3_5 = "qwen3_5"
    Qwen3_5Moe = "qwen3_5_moe"
    VLlama = "mllama"


MultimodalArchitecture = VisionArchitecture


class ModelDType(Enum):
    """Types of weights that are not quantized; the strings, such as `bf16`, are accepted too."""

    Auto = "auto"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
