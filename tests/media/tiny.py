"""Tiny random models of the architectures that media endpoints run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

LANGUAGES = ("en", "de", "fr")
TEXTS = ["the quick brown fox jumps over the lazy dog", "hello world, how are you today?", "Guten Tag", "0123456789"]


def whisper_tokenizer() -> Any:
    """Return a byte-level BPE with Whisper's special tokens in Whisper's order."""
    from transformers import WhisperTokenizer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    model = json.loads(tokenizer.to_str())["model"]
    whisper: Any = WhisperTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    names = ["<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES)]
    names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    whisper.add_tokens(names, special_tokens=True)
    whisper.add_tokens([f"<|{0.02 * step:.2f}|>" for step in range(1501)])
    return whisper


def save_whisper(folder: Path, seed: int = 0) -> Path:
    """Save a random multilingual Whisper whose answers have timestamps and end."""
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    tokenizer = whisper_tokenizer()
    ids = {name: number for name, number in tokenizer.get_vocab().items() if name.startswith("<|")}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_target_positions=64,
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        init_std=0.4,
    )
    model: Any = WhisperForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        max_length=64,
        is_multilingual=True,
        lang_to_id={f"<|{name}|>": ids[f"<|{name}|>"] for name in LANGUAGES},
        task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        max_initial_timestamp_index=50,
        suppress_tokens=[ids["<|startoflm|>"], ids["<|nospeech|>"], start, *(ids[f"<|{name}|>"] for name in LANGUAGES)],
        begin_suppress_tokens=[end],
        return_timestamps=False,
        alignment_heads=[[1, 0], [1, 1]],
    )
    model.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


LETTERS = "abcdefghijklmnopqrstuvwxyz' "
SMALL_CONVOLUTIONS = {"conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 4, 4)}


def save_words(folder: Path, names: list[str]) -> Path:
    """Save a vocabulary, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "vocab.json"
    file.write_text(json.dumps({name: number for number, name in enumerate(names)}))
    return file


def letter_tokenizer(specials: list[str], *, ids: int = 0) -> Tokenizer:
    """Return a tokenizer whose tokens are letters after the special tokens; unknown letters are the last special."""
    names = [*specials, *LETTERS]
    names += [f"<extra{number}>" for number in range(ids - len(names))]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=specials[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    return tokenizer


def save_wav2vec2(folder: Path) -> Path:
    """Save a random Wav2Vec2 that recognises letters."""
    from transformers import (
        Wav2Vec2Config,
        Wav2Vec2CTCTokenizer,
        Wav2Vec2FeatureExtractor,
        Wav2Vec2ForCTC,
        Wav2Vec2Processor,
    )

    names = ["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS.replace(" ", "").upper()]
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=len(names),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        initializer_range=0.5,
        **SMALL_CONVOLUTIONS,
    )
    Wav2Vec2ForCTC(config).save_pretrained(folder)
    tokenizer = Wav2Vec2CTCTokenizer(str(save_words(folder, names)))
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=False)
    Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    return folder


def _parakeet_encoder() -> Any:
    from transformers import ParakeetEncoderConfig

    return ParakeetEncoderConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        subsampling_conv_channels=16,
        num_mel_bins=16,
        initializer_range=0.3,
    )


def _save_parakeet_processor(folder: Path, specials: list[str], decoder: str) -> None:
    from transformers import ParakeetFeatureExtractor, ParakeetProcessor, ParakeetTokenizer

    names = {"unk_token": "<unk>", "pad_token": "<pad>"}
    tokenizer = ParakeetTokenizer(tokenizer_object=letter_tokenizer(specials), **names)
    extractor = ParakeetFeatureExtractor(feature_size=16)
    ParakeetProcessor(extractor, tokenizer, decoder_type=decoder).save_pretrained(folder)


def save_parakeet_ctc(folder: Path) -> Path:
    from transformers import ParakeetCTCConfig, ParakeetForCTC

    torch.manual_seed(0)
    specials = ["<pad>", "<unk>"]
    config = ParakeetCTCConfig(
        vocab_size=len(specials) + len(LETTERS), pad_token_id=0, encoder_config=_parakeet_encoder()
    )
    ParakeetForCTC(config).save_pretrained(folder)
    _save_parakeet_processor(folder, specials, "ctc")
    return folder


def save_parakeet_tdt(folder: Path) -> Path:
    from transformers import ParakeetForTDT, ParakeetTDTConfig

    torch.manual_seed(0)
    specials = ["<pad>", "<blank>", "<unk>"]
    config = ParakeetTDTConfig(
        vocab_size=len(specials) + len(LETTERS),
        decoder_hidden_size=16,
        num_decoder_layers=1,
        pad_token_id=0,
        blank_token_id=1,
        decoder_start_token_id=1,
        encoder_config=_parakeet_encoder(),
    )
    model: Any = ParakeetForTDT(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.9)
    with torch.no_grad():
        model.joint.head.bias[config.vocab_size] -= 4.0  # durations of 0, which would fill frames with tokens
    model.save_pretrained(folder)
    _save_parakeet_processor(folder, specials, "tdt")
    return folder


def save_moonshine(folder: Path) -> Path:
    from transformers import (
        MoonshineConfig,
        MoonshineForConditionalGeneration,
        PreTrainedTokenizerFast,
        Wav2Vec2FeatureExtractor,
        Wav2Vec2Processor,
    )

    torch.manual_seed(0)
    specials = ["<unk>", "<s>", "</s>"]
    config = MoonshineConfig(
        vocab_size=len(specials) + len(LETTERS),
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        max_position_embeddings=48,
        initializer_range=0.5,
    )
    MoonshineForConditionalGeneration(config).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letter_tokenizer(specials), eos_token="</s>")
    extractor = Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True)
    Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    return folder


SMALL_VOCODER = {
    "upsample_initial_channel": 16,
    "upsample_rates": (8, 8),
    "upsample_kernel_sizes": (16, 16),
    "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1, 3),),
}


def save_vits(folder: Path, *, num_speakers: int = 1, phonemize: bool = False) -> Path:
    """Save a random VITS that reads lower-case letters."""
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    torch.manual_seed(0)
    names = ["_", *LETTERS, "<unk>"]
    config = VitsConfig(
        vocab_size=len(names),
        hidden_size=16,
        num_hidden_layers=1,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=9,
        num_speakers=num_speakers,
        speaker_embedding_size=8 if num_speakers > 1 else 0,
        duration_predictor_num_flows=2,
        duration_predictor_filter_channels=16,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        **SMALL_VOCODER,
    )
    VitsModel(config).save_pretrained(folder)
    tokenizer = VitsTokenizer(str(save_words(folder, names)), pad_token="_", phonemize=phonemize, language="eng")
    tokenizer.save_pretrained(folder)
    return folder


def save_speecht5(folder: Path) -> Path:
    """Save a random SpeechT5 with its vocoder."""
    import sentencepiece
    from transformers import (
        SpeechT5Config,
        SpeechT5ForTextToSpeech,
        SpeechT5HifiGan,
        SpeechT5HifiGanConfig,
        SpeechT5Tokenizer,
    )

    folder.mkdir(parents=True)
    trained = folder / "spm_char"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(trained),
        model_type="char",
        vocab_size=40,
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    tokenizer = SpeechT5Tokenizer(f"{trained}.model")
    torch.manual_seed(0)
    config = SpeechT5Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=32,
        num_mel_bins=8,
        speech_decoder_prenet_units=16,
        speech_decoder_postnet_layers=2,
        speech_decoder_postnet_units=16,
        speaker_embedding_dim=8,
        initializer_range=0.3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        **SMALL_CONVOLUTIONS,
    )
    model: Any = SpeechT5ForTextToSpeech(config)
    with torch.no_grad():
        model.speech_decoder_postnet.prob_out.bias -= 3.0  # of the end, so that it speaks longer
    model.save_pretrained(folder)
    SpeechT5HifiGan(SpeechT5HifiGanConfig(model_in_dim=8, initializer_range=0.3, **SMALL_VOCODER)).save_pretrained(
        folder / "vocoder"
    )
    tokenizer.save_pretrained(folder)
    return folder


def save_speaker_encoder(folder: Path) -> Path:
    """Save a random WavLM that gives the embedding of a speaker."""
    from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMForXVector

    torch.manual_seed(0)
    config = WavLMConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        tdnn_dim=(16, 16, 16, 16, 24),
        xvector_output_dim=8,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=3,
        **SMALL_CONVOLUTIONS,
    )
    WavLMForXVector(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def save_bark(folder: Path) -> Path:
    """Save a random Bark with one preset of a voice."""
    import numpy as np
    from transformers import (
        BarkCoarseConfig,
        BarkConfig,
        BarkFineConfig,
        BarkModel,
        BarkSemanticConfig,
        EncodecConfig,
        PreTrainedTokenizerFast,
    )
    from transformers.models.bark.generation_configuration_bark import (
        BarkCoarseGenerationConfig,
        BarkFineGenerationConfig,
        BarkGenerationConfig,
        BarkSemanticGenerationConfig,
    )

    torch.manual_seed(0)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_size": 16, "block_size": 128, "initializer_range": 0.5}
    codec = EncodecConfig(
        num_filters=4,
        hidden_size=16,
        codebook_size=16,
        codebook_dim=16,
        upsampling_ratios=[8, 5, 4, 2],
        num_residual_layers=1,
        num_lstm_layers=1,
    )
    config = BarkConfig(
        semantic_config=BarkSemanticConfig(input_vocab_size=128, output_vocab_size=20, **sizes).to_dict(),
        coarse_acoustics_config=BarkCoarseConfig(input_vocab_size=64, output_vocab_size=64, **sizes).to_dict(),
        fine_acoustics_config=BarkFineConfig(
            input_vocab_size=17, output_vocab_size=17, n_codes_total=8, n_codes_given=1, **sizes
        ).to_dict(),
        codec_config=codec.to_dict(),
    )
    model: Any = BarkModel(config)
    semantic = BarkSemanticGenerationConfig(
        eos_token_id=19,
        max_new_tokens=12,
        text_encoding_offset=30,
        text_pad_token=100,
        semantic_infer_token=101,
        semantic_vocab_size=19,
        max_input_semantic_length=16,
        semantic_rate_hz=50.0,
        do_sample=True,
    )
    coarse = BarkCoarseGenerationConfig(
        coarse_semantic_pad_token=60,
        coarse_infer_token=61,
        coarse_rate_hz=75,
        n_coarse_codebooks=2,
        max_coarse_input_length=16,
        max_coarse_history=30,
        sliding_window_len=10,
        do_sample=True,
    )
    fine = BarkFineGenerationConfig(max_fine_history_length=16, max_fine_input_length=64, n_fine_codebooks=8)
    generation = BarkGenerationConfig.from_sub_model_configs(
        semantic, coarse, fine, sample_rate=24_000, codebook_size=16
    )
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation.to_dict()))
    voices = folder / "speaker_embeddings"
    voices.mkdir()
    random = np.random.default_rng(0)
    shapes = {"semantic_prompt": (8,), "coarse_prompt": (2, 12), "fine_prompt": (8, 12)}
    paths = {}
    for name, shape in shapes.items():
        paths[name] = f"speaker_embeddings/en_1_{name}.npy"
        np.save(folder / paths[name], random.integers(0, 16, shape))
    (folder / "speaker_embeddings_path.json").write_text(json.dumps({"repo_or_path": "", "v2/en_1": paths}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letter_tokenizer(["[PAD]", "[UNK]"]), pad_token="[PAD]")
    tokenizer.save_pretrained(folder)
    return folder


def save_fastspeech2(folder: Path) -> Path:
    """Save a random FastSpeech2Conformer with two speakers and its vocoder, without a tokenizer."""
    from transformers import (
        FastSpeech2ConformerConfig,
        FastSpeech2ConformerHifiGanConfig,
        FastSpeech2ConformerWithHifiGan,
        FastSpeech2ConformerWithHifiGanConfig,
    )

    torch.manual_seed(0)
    model = FastSpeech2ConformerConfig(
        vocab_size=40,
        hidden_size=16,
        num_mel_bins=8,
        encoder_layers=1,
        encoder_linear_units=16,
        decoder_layers=1,
        decoder_linear_units=16,
        speech_decoder_postnet_layers=1,
        speech_decoder_postnet_units=16,
        duration_predictor_channels=16,
        energy_predictor_channels=16,
        pitch_predictor_layers=1,
        pitch_predictor_channels=16,
        num_speakers=2,
        speaker_embed_dim=None,
    )
    vocoder = FastSpeech2ConformerHifiGanConfig(model_in_dim=8, initializer_range=0.3, **SMALL_VOCODER)
    config = FastSpeech2ConformerWithHifiGanConfig(model_config=model.to_dict(), vocoder_config=vocoder.to_dict())
    FastSpeech2ConformerWithHifiGan(config).save_pretrained(folder)
    return folder


def save_stable_diffusion(folder: Path) -> Path:
    """Save a random Stable Diffusion of 64 x 64 pixels."""
    from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=32,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        block_out_channels=[32, 64],
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D", "DownEncoderBlock2D"],
        up_block_types=["UpDecoderBlock2D", "UpDecoderBlock2D"],
        latent_channels=4,
    )
    config = CLIPTextConfig(
        bos_token_id=0,
        eos_token_id=2,
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        pad_token_id=1,
        vocab_size=1000,
        projection_dim=32,
    )
    words = folder / "words"
    words.mkdir(parents=True)
    letters = [chr(code) for code in range(97, 123)]
    names = ["<|startoftext|>", "</w>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    (words / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (words / "merges.txt").write_text("#version: 0.2\n")
    pipeline: Any = StableDiffusionPipeline(
        unet=unet,
        scheduler=PNDMScheduler(
            skip_prk_steps=True, steps_offset=1, beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012
        ),
        vae=vae,
        text_encoder=CLIPTextModel(config),
        tokenizer=CLIPTokenizer(str(words / "vocab.json"), str(words / "merges.txt"), model_max_length=77),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder / "model")
    return folder / "model"
