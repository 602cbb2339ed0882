"""Prompts for fill-in-the-middle, token by token in the notations that the model families document."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from inference.text.fill_in_middle import NOTATIONS
from inference.text.model_text import ModelText
from tests.inference.tokenizers import metaspace_tokenizer, qwen_tokenizer

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>")
STARCODER = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<file_sep>")
DEEPSEEK = ("<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>")
CODELLAMA = ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>")
CODESTRAL = ("[PREFIX]", "[SUFFIX]")
PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\n\nprint(add(1, 2))"


def byte_text(*marks: str, bos: str = "", are_special: bool = True) -> ModelText:
    """A tokenizer of bytes, as of GPT-2, with marks that are special tokens or only added ones, as Qwen's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(bos or "<|endoftext|>", special=True)])
    added = [AddedToken(mark, special=are_special, normalized=False) for mark in marks]
    backend.add_special_tokens(added) if are_special else backend.add_tokens(added)
    if bos:
        start = (bos, backend.token_to_id(bos))
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[start]
        )
    return ModelText(PreTrainedTokenizerFast(tokenizer_object=backend), max_model_len=1_000)


def sentence_text(*marks: str) -> ModelText:
    """A tokenizer like Llama's: a space before every text, bytes for what the vocabulary lacks, BOS."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefgh", "▁a", "ab"]
    backend = Tokenizer(
        models.BPE(
            {token: place for place, token in enumerate(vocabulary)},
            [("▁", "a"), ("a", "b")],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>", *marks)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return ModelText(PreTrainedTokenizerFast(tokenizer_object=backend), max_model_len=1_000)


def tokens(text: ModelText, prefix: str, suffix: str) -> list[str]:
    return [text._backend.id_to_token(token_id) for token_id in text.encode_fill(prefix, suffix)]


def as_bytes(text: str) -> list[str]:
    """The tokens of a text in the tokenizer of bytes."""
    return [{" ": "Ġ", "\n": "Ċ"}.get(letter, letter) for letter in text]


def test_qwen_coder_marks_prefix_suffix_and_middle() -> None:
    """https://huggingface.co/Qwen/Qwen2.5-Coder: <|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>."""
    for are_special in (True, False):
        text = byte_text(*QWEN, are_special=are_special)
        expected = [QWEN[0], *as_bytes(PREFIX), QWEN[1], *as_bytes(SUFFIX), QWEN[2]]
        assert tokens(text, PREFIX, SUFFIX) == expected


def test_starcoder_marks_the_same_in_its_own_words() -> None:
    text = byte_text(*STARCODER)
    expected = ["<fim_prefix>", *as_bytes(PREFIX), "<fim_suffix>", *as_bytes(SUFFIX), "<fim_middle>"]
    assert tokens(text, PREFIX, SUFFIX) == expected


def test_deepseek_coder_begins_with_bos_and_has_a_hole() -> None:
    text = byte_text(*DEEPSEEK, bos="<｜begin▁of▁sentence｜>")
    assert tokens(text, PREFIX, SUFFIX) == [
        *("<｜begin▁of▁sentence｜>", "<｜fim▁begin｜>"),
        *as_bytes(PREFIX),
        "<｜fim▁hole｜>",
        *as_bytes(SUFFIX),
        "<｜fim▁end｜>",
    ]


def test_codellama_puts_a_space_before_the_prefix_only() -> None:
    """Meta's form: `<PRE> {prefix} <SUF>{suffix} <MID>`."""
    text = sentence_text(*CODELLAMA)
    assert tokens(text, "ab a", "ab a") == ["<s>", "▁<PRE>", "▁a", "b", "▁a", "▁<SUF>", "ab", "▁a", "▁<MID>"]
    assert tokens(text, "a\n", "\na") == ["<s>", "▁<PRE>", "▁a", "<0x0A>", "▁<SUF>", "<0x0A>", "a", "▁<MID>"]


def test_codestral_puts_the_suffix_first_and_ends_with_the_prefix() -> None:
    """mistral-common: <s>[SUFFIX]{suffix}[PREFIX]{prefix}, without a space before the suffix."""
    text = sentence_text(*CODESTRAL)
    assert tokens(text, "ab a", "ab a") == ["<s>", "[SUFFIX]", "ab", "▁a", "[PREFIX]", "▁a", "b", "▁a"]


@pytest.mark.parametrize("marks", [QWEN, STARCODER, DEEPSEEK, CODELLAMA, CODESTRAL])
@pytest.mark.parametrize("are_special", [True, False])
def test_marks_and_special_tokens_in_the_texts_are_text(marks: tuple[str, ...], are_special: bool) -> None:
    """Otherwise a comment in a file could move the hole."""
    text = byte_text(*marks, are_special=are_special)
    hostile = "a" + "".join(marks) + "<|endoftext|>b"
    ids = text.encode_fill(hostile, hostile)
    fill = text.fill_tokens
    assert fill is not None
    for mark in {fill.prefix, fill.suffix, *([] if fill.middle is None else [fill.middle])}:
        assert ids.count(mark) == 1
    assert text.token_of("<|endoftext|>") not in ids
    assert text.decode(ids, skip_special_tokens=False).count(hostile) == 2


@pytest.mark.parametrize("marks", [QWEN, STARCODER, DEEPSEEK, CODELLAMA])
def test_an_empty_prefix_leaves_only_the_marks(marks: tuple[str, ...]) -> None:
    fill = byte_text(*marks).fill_tokens
    assert fill is not None
    assert byte_text(*marks).encode_fill("", "") == [fill.prefix, fill.suffix, fill.middle]


def test_answers_end_at_the_marks_and_at_the_family_s_ends() -> None:
    text = sentence_text(*CODELLAMA)
    assert text.fill_tokens is not None
    assert text.fill_tokens.stop_ids == {text.token_of(mark) for mark in CODELLAMA}
    text = byte_text(*QWEN)
    assert text.fill_tokens is not None
    assert text.fill_tokens.stop_ids == {text.token_of(mark) for mark in (*QWEN, "<|endoftext|>")}


def test_tokenizers_without_all_marks_cannot_fill() -> None:
    assert ModelText(qwen_tokenizer(), max_model_len=100).fill_tokens is None
    assert ModelText(metaspace_tokenizer("always"), max_model_len=100).fill_tokens is None
    for notation in NOTATIONS:
        incomplete = (notation.prefix, notation.middle) if notation.middle else (notation.prefix,)
        assert byte_text(*incomplete).fill_tokens is None


def test_a_pickled_tokenizer_fills_in_the_same_way() -> None:
    import pickle

    text = byte_text(*QWEN, are_special=False)
    copy: ModelText = pickle.loads(pickle.dumps(text))  # noqa: S301 - our own
    assert copy.encode_fill(PREFIX, SUFFIX) == text.encode_fill(PREFIX, SUFFIX)
