"""A tokenizer, a model of a few thousand parameters, and a random SAE, made once for all tests here."""

from itertools import islice

import pytest
import torch

from tools.demo_model.corpus import write_documents
from tools.demo_model.language_model import build_model
from tools.demo_model.recipe import quick_recipe
from tools.demo_model.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tiny_tokenizer():
    return train_tokenizer(islice(write_documents(0), 300), vocab_size=600, max_positions=1024)


@pytest.fixture(scope="session")
def tiny_model(tiny_tokenizer):
    recipe = quick_recipe().model
    model = build_model(recipe, bos=1, eos=[3, 0], pad=0, seed=0)
    assert len(tiny_tokenizer) <= recipe.vocab_size
    return model.eval()


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tensors here are small: a second thread costs more than it brings, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
