from __future__ import annotations

import pytest

from inference.files.architectures import detect_kind


@pytest.mark.parametrize(
    ("architectures", "kind"),
    [
        (["Qwen3ForCausalLM"], "generation"),
        (["BertModel"], "embedding"),
        (["XLMRobertaForMaskedLM"], "embedding"),
        (["BertForSequenceClassification"], "classification"),
        (["Qwen3ForSequenceClassification"], "classification"),
        (["T5ForConditionalGeneration"], None),
        ([], None),
        ("BertModel", None),
        (None, None),
    ],
)
def test_by_architecture(tmp_path, architectures, kind):
    assert detect_kind(tmp_path, {"architectures": architectures}) == kind


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (
            {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "vision_config": {}},
            "generation",
        ),
        ({"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"}, "generation"),
        ({"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}, "transcription"),
        ({"architectures": ["CLIPModel"], "model_type": "clip", "vision_config": {}}, None),
        ({"architectures": ["VitsModel"], "model_type": "vits", "sampling_rate": 16_000}, "speech"),
        ({"architectures": ["BarkModel"], "model_type": "bark", "semantic_config": {}}, "speech"),
        ({"architectures": ["Wav2Vec2Model"], "model_type": "wav2vec2", "conv_dim": [512]}, None),
        ({"architectures": ["ParakeetForCTC"], "model_type": "parakeet_ctc"}, "transcription"),
        ({"architectures": ["ParakeetForTDT"], "model_type": "parakeet_tdt"}, "transcription"),
        ({"architectures": ["MoonshineForConditionalGeneration"], "model_type": "moonshine"}, "transcription"),
        ({"architectures": ["SpeechT5ForTextToSpeech"], "model_type": "speecht5"}, "speech"),
        ({"_class_name": "StableDiffusionXLPipeline"}, "image"),
        ({"_class_name": "FluxPipeline"}, "image"),
        ({"_class_name": "WanPipeline"}, "video"),
        ({"_class_name": "LTXImageToVideoPipeline"}, "video"),
        ({"_class_name": "CogVideoXPipeline"}, "video"),
        ({"_class_name": "AudioLDM2Pipeline"}, None),
        ({"_class_name": "Evil"}, None),
        ({"architectures": ["ViTModel"], "model_type": "vit", "image_size": 224}, None),
    ],
)
def test_by_what_the_model_reads(tmp_path, config, kind):
    assert detect_kind(tmp_path, config) == kind


def test_a_decoder_with_a_pipeline_is_for_embeddings(tmp_path):
    (tmp_path / "modules.json").write_text("[]")

    assert detect_kind(tmp_path, {"architectures": ["Qwen3ForCausalLM"]}) == "embedding"


def test_a_cross_encoder_with_a_pipeline_classifies(tmp_path):
    (tmp_path / "modules.json").write_text("[]")

    assert detect_kind(tmp_path, {"architectures": ["BertForSequenceClassification"]}) == "classification"
