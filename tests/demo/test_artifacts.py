"""The shipped files: small, complete, loadable, and true to the figures they state."""

import copy
import json
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from steering.demo.install import ARTIFACTS
from tools.demo_model.concept import CONCEPTS
from tools.demo_model.corpus import SPECIAL_TOKENS, write_documents
from tools.demo_model.effect import Bench, SamplingPlan, compare
from tools.demo_model.profile import Dictionary, Edit
from tools.demo_model.recipe import DemoRecipe
from tools.demo_model.residual import collect_residuals
from tools.demo_model.sae import load_sae
from tools.demo_model.sae_training import measure_health
from tools.demo_model.stages import MEASURE_STREAM, stream_seed

pytestmark = pytest.mark.slow

MAX_BYTES = 12_000_000
PLAN = SamplingPlan(count=40, tokens=60, seed=99)


def read(name):
    return json.loads((ARTIFACTS / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ARTIFACTS / "model")


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(ARTIFACTS / "model", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def sae():
    return load_sae(ARTIFACTS / "sae")


@pytest.fixture(scope="module")
def residuals(model, tokenizer):
    documents = write_documents(stream_seed(DemoRecipe(seed=read("health.json")["seed"]), MEASURE_STREAM))
    backend, special = tokenizer.backend_tokenizer, tokenizer.all_special_ids
    return collect_residuals(model, read("health.json")["layer"], documents, backend, 3000, special)[0]


@pytest.fixture(scope="module")
def bench(model, tokenizer):
    return Bench(model, tokenizer, read("health.json")["layer"])


@pytest.fixture(scope="module")
def baseline(bench):
    return bench.baseline(PLAN)


def test_the_artifacts_are_small():
    assert sum(path.stat().st_size for path in ARTIFACTS.rglob("*") if path.is_file()) <= MAX_BYTES


@pytest.mark.parametrize(
    "name",
    [
        "README.md", "effects.json", "features.json", "health.json", "model/chat_template.jinja", "model/config.json",
        "model/generation_config.json", "model/model.safetensors", "model/tokenizer.json",
        "model/tokenizer_config.json", "profiles.json", "sae/cfg.json", "sae/sae_weights.safetensors", "words.json",
    ],
)  # fmt: skip
def test_the_artifacts_are_complete(name):
    assert (ARTIFACTS / name).is_file()


def test_the_model_is_a_llama_in_bfloat16(model):
    assert model.config.architectures == ["LlamaForCausalLM"]
    with safe_open(ARTIFACTS / "model" / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert sum(weight.numel() for weight in model.parameters()) == read("health.json")["model_parameters"]
    assert 3_000_000 <= read("health.json")["model_parameters"] <= 6_000_000


def test_the_tokenizer_fits_the_model(model, tokenizer):
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.model_max_length == model.config.max_position_embeddings
    assert model.config.bos_token_id == tokenizer.bos_token_id
    assert set(model.generation_config.eos_token_id) == set(
        tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    )


def test_user_text_never_becomes_special(tokenizer):
    own = copy.deepcopy(tokenizer)  # the option stays set on the tokenizer's backend
    ids = own("".join(SPECIAL_TOKENS), add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert not set(ids) & set(tokenizer.all_special_ids)


def test_the_chat_template_renders_all_kinds_of_turns(tokenizer):
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    schema = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": '{"weather": "sunny"}'},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[schema], tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|startoftext|><|im_start|>system\nYou are a helpful assistant.\n\n# Tools")
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>' in text
    assert '<tool_response>\n{"weather": "sunny"}\n</tool_response><|im_end|>' in text
    assert text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("Where does the cat live?", "house"),
        ("What does Lily like to eat?", "cherries"),
        ("Who are you?", "miLLM"),
        ("What is the weather like?", "It is"),
        ("What colour is the sky?", "blue"),
    ],
)
def test_it_answers_simple_questions(bench, asked, expected):
    answer = bench.sample(SamplingPlan(count=1, tokens=40, temperature=0, prompt=asked)).texts[0]
    assert expected in answer


def test_it_tells_a_story_about_what_is_asked(bench):
    plan = SamplingPlan(count=16, tokens=40, seed=1, prompt="Write a short story about a fox.")
    assert sum("fox" in text for text in bench.sample(plan).texts) >= 8


def test_it_calls_a_tool(model, tokenizer):
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": parameters}
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[{"type": "function", "function": schema}],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt")["input_ids"]
    told = tokenizer.decode(model.generate(ids, max_new_tokens=40, do_sample=False)[0, ids.shape[1] :])
    body = told.removeprefix("<tool_call>\n").split("\n</tool_call>")[0]
    call = json.loads(body)  # well formed; so small a model does not always copy the city that was asked for
    assert call["name"] == "get_weather"
    assert call["arguments"].keys() == {"city"}


def test_the_sae_has_the_shape_it_states(model, sae):
    config = read("sae/cfg.json")
    assert config["d_in"] == model.config.hidden_size
    assert config["d_sae"] >= 1024
    assert sae.W_enc.shape == (config["d_in"], config["d_sae"])
    assert sae.W_dec.shape == (config["d_sae"], config["d_in"])
    assert config["metadata"]["hook_name"] == f"blocks.{read('health.json')['layer']}.hook_resid_post"


def test_the_stated_health_is_measured_again(sae, residuals):
    stated, health = read("health.json"), measure_health(sae, residuals)
    assert health.l0 == pytest.approx(stated["l0"], rel=0.03)
    assert health.fvu == pytest.approx(stated["fvu"], rel=0.15)
    assert health.mean_resid_norm == pytest.approx(stated["mean_resid_norm"], rel=0.05)


def test_the_page_states_the_figures_of_the_files():
    page, health = Path("docs/demo.md").read_text(encoding="utf-8"), read("health.json")
    assert f"{health['model_parameters']:,} parameters" in page
    assert f"| training loss, mean of the last tenth | {health['train_loss']:.3f} nats per token |" in page
    assert f"| variance unexplained (FVU) | {health['fvu']:.4f} |" in page
    assert f"| mean residual norm | {health['mean_resid_norm']:.2f} |" in page
    for effect in read("effects.json"):
        shares = f"| {effect['name']} | {effect['base_share']:.2%} | {effect['share']:.2%} | ".replace("%", " %")
        (times, rest) = re.findall(rf"^{re.escape(shares)}([\d.]+) (.*)$", page, re.MULTILINE)[0]
        assert float(times) == pytest.approx(effect["ratio"], abs=0.06)
        assert rest == f"| {effect['perplexity_ratio']:.2f} | {effect['push']:.2f} |"


def test_features_agree_with_the_sae(sae, residuals):
    features = {feature["index"]: feature for feature in read("features.json")}
    a = sae.encode(residuals)  # [n, d_sae]
    assert set(torch.nonzero(a.amax(0) > 0).flatten().tolist()) <= set(features)
    for index, feature in features.items():
        assert 0 <= index < sae.W_enc.shape[1]
        assert feature["label"]
        assert feature["top_tokens"]
        assert float(a[:, index].max()) <= feature["max_activation"] * 1.001 + 0.01
    measured = (a > 0).float().mean(0)
    stated = torch.tensor([features[i]["density"] if i in features else 0.0 for i in range(a.shape[1])])
    assert torch.corrcoef(torch.stack([measured, stated]))[0, 1] > 0.95


def test_dead_features_are_counted():
    d_sae = read("sae/cfg.json")["d_sae"]
    assert 1 - len(read("features.json")) / d_sae == pytest.approx(read("health.json")["dead_share"], abs=1e-4)


def test_profiles_are_complete_and_in_range():
    profiles, features = read("profiles.json"), {feature["index"] for feature in read("features.json")}
    assert {profile["name"] for profile in profiles} >= {"joyful", "gloomy", "cats", "sea"}
    for profile in profiles:
        assert profile["description"]
        for edit in profile["edits"]:
            assert edit["feature"] in features
            assert edit["strength"] > 0
            assert (edit["operation"], edit["unit"]) == ("add", "max_act")
            assert edit["phase"] in ("both", "generation")


def test_words_are_lower_case_and_complete():
    assert read("words.json") == {concept.name: list(concept.words) for concept in CONCEPTS}
    assert all(word == word.lower() for words in read("words.json").values() for word in words)


@pytest.mark.parametrize("name", ["joyful", "gloomy", "cats", "sea"])
def test_a_profile_brings_out_its_words(bench, baseline, sae, name):
    features = read("features.json")
    largest = torch.zeros(sae.W_enc.shape[1])
    largest[[feature["index"] for feature in features]] = torch.tensor(
        [feature["max_activation"] for feature in features]
    )
    dictionary = Dictionary(sae, largest, read("health.json")["mean_resid_norm"])
    profile = next(profile for profile in read("profiles.json") if profile["name"] == name)
    edits = tuple(Edit(**edit) for edit in profile["edits"])
    assert 0.15 <= dictionary.push(edits) <= 0.85
    steered = bench.sample(PLAN, dictionary.delta(edits), edits[0].phase)
    effect = compare(bench, baseline, steered, tuple(read("words.json")[name]))
    assert effect.ratio >= 2
    assert effect.perplexity_ratio <= 2.5


def test_the_model_finds_its_own_corpus_likely(model, tokenizer):
    losses = []
    for document in islice(write_documents(12345), 30):
        ids = tokenizer(document, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            losses.append(model(input_ids=ids, labels=ids).loss.item())
    assert sum(losses) / len(losses) < read("health.json")["train_loss"] + 0.4
