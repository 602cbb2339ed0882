"""Tiny random video models."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

CAN_RUN_WAN = all(map(find_spec, ("accelerate", "ftfy")))  # which diffusers needs for it


def letters_tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    letters = {name: number for number, name in enumerate(["<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz ,."])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def save_wan(folder: Path, *, from_images: bool = False) -> Path:
    """Save a random Wan that makes videos of 32 x 32 pixels and more. ``from_images``: Wan 2.2's for both."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    config = UMT5Config(vocab_size=32, d_model=32, d_kv=16, d_ff=32, num_layers=2, num_heads=2)
    pipeline: Any = WanPipeline(
        transformer=transformer,
        vae=vae,
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
        ),
        text_encoder=UMT5EncoderModel(config),
        tokenizer=letters_tokenizer(),
        expand_timesteps=from_images,
    )
    pipeline.save_pretrained(folder)
    return folder


def save_wan_image(folder: Path) -> Path:
    """Save a random Wan that needs an image, as Wan 2.1's image-to-video models."""
    from diffusers import WanImageToVideoPipeline, WanTransformer3DModel
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

    text = _load(save_wan(folder / "text"))
    torch.manual_seed(0)
    transformer = WanTransformer3DModel.from_config(
        {**text.transformer.config, "in_channels": 36, "image_dim": 4, "num_layers": 1}
    )
    vision = CLIPVisionConfig(
        hidden_size=4,
        projection_dim=4,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        intermediate_size=16,
        patch_size=16,
    )
    pipeline: Any = WanImageToVideoPipeline(
        **{**text.components, "transformer": transformer, "transformer_2": None},
        image_encoder=CLIPVisionModel(vision),
        image_processor=CLIPImageProcessor(crop_size=32, size=32),
    )
    pipeline.save_pretrained(folder / "image")
    return folder / "image"


def save_ltx(folder: Path) -> Path:
    """Save a random LTX for videos of 32 x 32 pixels and more, from text and from images."""
    from diffusers import (
        AutoencoderKLLTXVideo,
        FlowMatchEulerDiscreteScheduler,
        LTXPipeline,
        LTXVideoTransformer3DModel,
    )
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=32,
    )
    vae = AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
    )
    pipeline: Any = LTXPipeline(
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        text_encoder=T5EncoderModel(T5Config(vocab_size=32, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2)),
        tokenizer=letters_tokenizer(),
    )
    pipeline.save_pretrained(folder)
    return folder


def _load(folder: Path) -> Any:
    from diffusers import DiffusionPipeline

    kind: Any = DiffusionPipeline
    return kind.from_pretrained(folder)
