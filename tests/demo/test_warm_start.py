"""An earlier model's weights under another tokenizer: what is spelled alike keeps its meaning."""

from itertools import islice

import pytest
import torch

from tools.demo_model.artifact import write_model
from tools.demo_model.corpus import write_documents
from tools.demo_model.language_model import build_model
from tools.demo_model.recipe import quick_recipe
from tools.demo_model.tokenizer import train_tokenizer
from tools.demo_model.warm_start import carried_embeddings, carry_over


@pytest.fixture(scope="module")
def folder(tiny_model, tiny_tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("earlier")
    write_model(tiny_model, tiny_tokenizer, path)
    return path


@pytest.fixture(scope="module")
def other_tokenizer():
    return train_tokenizer(islice(write_documents(9), 200), vocab_size=600, max_positions=1024)


def test_with_its_own_tokenizer_the_model_is_the_same(tiny_model, tiny_tokenizer, folder):
    model = build_model(quick_recipe().model, bos=1, eos=[3, 0], pad=0, seed=5)
    carry_over(model, tiny_tokenizer, folder)
    for name, weight in tiny_model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.bfloat16().float()), name
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_embeddings_follow_the_texts_of_tokens(tiny_model, tiny_tokenizer, other_tokenizer):
    backend = tiny_tokenizer.backend_tokenizer
    earlier = torch.arange(len(tiny_tokenizer)).float()[:, None]  # each row holds its own number
    carried = carried_embeddings(earlier, backend, other_tokenizer)[:, 0]
    assert len(carried) == len(other_tokenizer)
    for number, piece in enumerate(other_tokenizer.convert_ids_to_tokens(list(range(len(other_tokenizer))))):
        if (same := backend.token_to_id(piece)) is not None:
            assert carried[number] == same
        elif (spaced := backend.token_to_id("\u0120" + piece)) is not None:
            assert carried[number] == spaced
        else:
            spelled = backend.encode(other_tokenizer.convert_tokens_to_string([piece]), add_special_tokens=False).ids
            assert carried[number] == pytest.approx(sum(spelled) / len(spelled))


def test_a_model_of_another_shape_is_refused(folder, tiny_tokenizer):
    from dataclasses import replace

    model = build_model(replace(quick_recipe().model, num_layers=2), bos=1, eos=[3, 0], pad=0, seed=0)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        carry_over(model, tiny_tokenizer, folder)
