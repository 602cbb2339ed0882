"""The real model of the demo, converted from its package: the weights, the tokenizer and the answers that it must have.

The digest of the weights is that of transformers' own conversion of the same file, rounded to bfloat16. The token ids
are those that llama.cpp's pattern for this tokenizer gives; transformers 5.23 converts it without splitting digits.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import regex
import torch
from asgiref.sync import async_to_sync
from transformers import AutoModelForCausalLM, AutoTokenizer

from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.interventions import Intervention
from inference.steering_refs import PublishedVersion, SteeringSpec
from steering.demo.install import SMOLLM2, install_demo
from steering.features.ranked_search import FeatureSearch, search_features
from steering.models import SAE
from steering.profiles.compilation import ProfileCompiler
from steering.profiles.drafts import feature_target
from steering.profiles.snapshot import source_of
from steering.spec.edit import EditSpec
from steering.spec.rendering import edits_to_json, fingerprint
from tests.engine.harness import EngineHarness
from tests.steering.resolving import intervention_of, local_resolver

pytestmark = pytest.mark.slow

PROFILES: dict[str, list[str]] = json.loads((SMOLLM2.folder / "words.json").read_text("utf-8"))
WORDS = PROFILES | json.loads(Path(__file__).with_name("topic_words.json").read_text("utf-8"))
TOPICS = {
    "sad": (1939, WORDS["gloomy"]),
    "happy": (1084, WORDS["joyful"]),
    "sea": (5579, WORDS["sea"]),
    "food": (33, WORDS["food"]),
    "code": (6136, WORDS["code"]),
    "French": (5081, WORDS["French"]),
}
"""By query: a feature among the first three results that steers, and words of the topic."""
MAX_TOKENS = 50
NUM_SEEDS = 16
NUM_ANSWERS = 24  # sampled texts differ between kinds of processors, so a few may miss the topic by chance

WEIGHTS = "5d9bacfb6e704b2142088ab0e2548bc0de0a6b3a3179fcde6595ff2a6b30c1ec"
LLAMA_CPP = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
HARD_TEXTS = (
    *("it's we'll DON'T I’m 's't're", "x=1;y = 22 ;", "  def f(x):\n\treturn x**2\n", "a\r\nb\n\n \t c"),
    *("naïve façade e\u0301", "日本語のテキスト と 漢字", "😀👩‍👩‍👧 emoji", "3.14159 1,000,000 ½ ² ٣٤ १२ １２"),
    *("\u00a0nbsp\u2003em\u200bzero", "مرحبا بالعالم", "http://a.b/c?d=1&e=2 foo_bar-baz", "\x00\x01", "   "),
)


@pytest.fixture(scope="module")
def tokenizer(smollm2_directory):
    return AutoTokenizer.from_pretrained(smollm2_directory)


def test_the_weights_are_those_of_transformers(smollm2_directory: Path):
    with (smollm2_directory / "model.safetensors").open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(8 + size)
        assert hashlib.file_digest(file, "sha256").hexdigest() == WEIGHTS
    assert "Apache License" in (smollm2_directory / "LICENSE").read_text()


def test_texts_are_split_as_llama_cpp_splits_them(tokenizer):
    for text in HARD_TEXTS:
        pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        expected = [
            piece for part in regex.split(r"(\p{N})", text) if part for piece in LLAMA_CPP.findall(part)
        ]  # digits one by one, then GPT-2's pattern
        assert [text[start:end] for _, (start, end) in pieces] == expected
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_token_ids(tokenizer):
    assert tokenizer.encode("In 2024, 365 days") == [788, 216, 34, 32, 34, 36, 28, 216, 35, 38, 37, 2009]
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|endoftext|>") == [1, 4093, 198, 6004, 2, 198, 0]


@pytest.mark.django_db(transaction=True)
def test_profiles_are_seen_in_the_answers(smollm2_directory: Path, tokenizer, settings):
    """Steered answers have more words of the profile's topic than the unsteered answers with the same seeds.

    Rounding differs between processors, and so do sampled answers. Of 96 seeds on one processor, 90 to 96 % had more,
    and in all there were eleven times as many words.
    """
    settings.MILLM_HOME = smollm2_directory.parent.parent
    demo = install_demo(SMOLLM2)
    loaded = load_model(ModelSpec("smollm2", smollm2_directory, device="cpu"))
    chat = [{"role": "user", "content": SMOLLM2.prompt}]
    prompt = tuple(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    special = frozenset(tokenizer.all_special_ids)
    harness = EngineHarness(loaded, max_batch_size=32)
    answers = {
        name: [
            harness.add(
                prompt=prompt, model="smollm2", max_tokens=MAX_TOKENS, seed=seed, ignore_eos=False,
                intervention=intervention, temperature=SMOLLM2.sampling["temperature"],
                top_p=SMOLLM2.sampling["top_p"],
            )
            for seed in range(NUM_SEEDS)
        ]
        for name, intervention in (("", None), *((name, resolve(name, special)) for name in PROFILES))
    }  # fmt: skip
    harness.run()
    texts = {name: [tokenizer.decode(answer.token_ids) for answer in group] for name, group in answers.items()}
    assert {label.partition("@")[0] for label in demo.published} == set(PROFILES)
    for name, words in PROFILES.items():
        steered = [num_words(text, words) for text in texts[name]]
        unsteered = [num_words(text, words) for text in texts[""]]
        assert sum(more > less for more, less in zip(steered, unsteered, strict=True)) >= 12, texts[name]
        assert sum(steered) >= 4 * sum(unsteered), texts[""]


@pytest.mark.django_db
def test_features_that_write_their_topic_rank_high(smollm2_directory: Path, settings):
    settings.MILLM_HOME = smollm2_directory.parent.parent
    sae = install_demo(SMOLLM2).sae
    assert sae is not None
    measured = sae.features.filter(effect__isnull=False)
    assert measured.count() == sae.d_sae
    best = measured.order_by("-effect__steers_well").values_list("label", flat=True)[: measured.count() // 25]
    for word in ("family", "war", "law", "cooking", "sadness", "Bible", "music"):
        assert any(word in label for label in best), word


@pytest.mark.django_db(transaction=True)
def test_the_first_results_of_a_search_write_what_it_means(smollm2_directory: Path, tokenizer, settings):
    """At a relative size of 0.4, more words of the topic than in the unsteered answers with the same seeds."""
    settings.MILLM_HOME = smollm2_directory.parent.parent
    sae = install_demo(SMOLLM2).sae
    assert sae is not None
    found = {
        query: search_features(sae.features.all(), FeatureSearch(query, 3, sort="steers_well", by_tokens=True))
        for query in TOPICS
    }
    for query, (index, _) in TOPICS.items():
        assert index in [one.feature.index for one in found[query]], query
    special = frozenset(tokenizer.all_special_ids)
    harness = EngineHarness(load_model(ModelSpec("smollm2", smollm2_directory, device="cpu")), max_batch_size=32)
    chat = [{"role": "user", "content": SMOLLM2.prompt}]
    prompt = tuple(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    answers = {
        query: [
            harness.add(
                prompt=prompt, model="smollm2", max_tokens=MAX_TOKENS, seed=seed, ignore_eos=False, temperature=0.7,
                top_p=0.9, intervention=added(sae, TOPICS[query][0], special) if query else None,
            )
            for seed in range(NUM_ANSWERS)
        ]
        for query in ("", *TOPICS)
    }  # fmt: skip
    harness.run()
    texts = {query: [tokenizer.decode(answer.token_ids) for answer in group] for query, group in answers.items()}
    for query, (_, words) in TOPICS.items():
        pairs = zip(texts[query], texts[""], strict=True)
        wins = sum(num_words(steered, words) > num_words(bare, words) for steered, bare in pairs)
        assert wins > NUM_ANSWERS / 2, (query, wins, texts[query])  # 18 to 24; unsteered against unsteered: up to 5


def added(sae: SAE, index: int, special: frozenset[int]) -> Intervention:
    """Return the ``add`` of a feature at a relative size of 0.4."""
    edits = (EditSpec(feature_target(sae.features.select_related("sae").get(index=index)), "add", 0.4, "resid_norm"),)
    version = PublishedVersion("feature", 0, fingerprint(edits), edits_to_json(edits), (source_of(sae),))
    spec = SteeringSpec((version,), skip_token_ids=special)
    return ProfileCompiler().compile(spec).intervention


def resolve(name: str, special: frozenset[int]) -> Intervention:
    return intervention_of(async_to_sync(local_resolver().resolve)("smollm2", name, special_token_ids=special))


def num_words(text: str, words: list[str]) -> int:
    return sum(word in words for word in regex.findall(r"[a-z]+", text.lower()))


def test_greedy_answers_are_those_of_transformers(smollm2_directory: Path, tokenizer):
    """In float32, since two kernels may round differently in bfloat16."""
    loaded = load_model(ModelSpec("smollm2", smollm2_directory, dtype="float32", device="cpu"))
    oracle = AutoModelForCausalLM.from_pretrained(smollm2_directory, dtype=torch.float32)
    for question in ("Tell me a story.", "What is 12 + 7?"):
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        expected = oracle.generate(**chat, max_new_tokens=24, do_sample=False)[0, chat["input_ids"].shape[1] :]
        prompt = tuple(chat["input_ids"][0].tolist())
        answer = EngineHarness(loaded).generate(
            prompt=prompt, model="smollm2", max_tokens=24, temperature=0.0, ignore_eos=False
        )
        assert answer.token_ids == expected.tolist()[: len(answer.token_ids)]
        assert tokenizer.decode(answer.token_ids).strip()
