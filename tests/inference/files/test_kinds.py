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


def test_a_decoder_with_a_pipeline_is_for_embeddings(tmp_path):
    (tmp_path / "modules.json").write_text("[]")

    assert detect_kind(tmp_path, {"architectures": ["Qwen3ForCausalLM"]}) == "embedding"


def test_a_cross_encoder_with_a_pipeline_classifies(tmp_path):
    (tmp_path / "modules.json").write_text("[]")

    assert detect_kind(tmp_path, {"architectures": ["BertForSequenceClassification"]}) == "classification"
