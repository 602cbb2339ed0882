"""The features of the SAE: largest activation, density, words, and a label made of the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.demo_model.mood import MOODS
from tools.demo_model.sae import TopKSae, chunks
from tools.demo_model.world import ANIMALS, CATEGORIES, PLACES

WORD_CATEGORIES: dict[str, frozenset[str]] = {
    **{f"{mood.name} words": frozenset(mood.words) for mood in MOODS if mood.words},
    **{f"{name}s": words for name, words in CATEGORIES.items()},
}


@dataclass(frozen=True, slots=True)
class Feature:
    """One live feature. `max_activation` is in the SAE's units, `density` the share of ordinary tokens it fires on."""

    index: int
    label: str
    max_activation: float
    density: float
    top_tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """Counts over a corpus: `max_activation` and `density` [d_sae], `mass` [d_sae, words] of activation by word."""

    max_activation: Tensor
    density: Tensor
    mass: Tensor
    word_share: Tensor
    words: tuple[str, ...]


def words_of_tokens(pieces: Sequence[str]) -> list[str]:
    """Return the lower-case word of each token; `pieces` are byte-level tokens ("Ġ" is a space) in reading order."""
    words: list[str] = []
    start = 0
    for position, piece in enumerate(pieces):
        if position and not _continues(pieces[position - 1], piece):
            words += [_word(pieces[start:position])] * (position - start)
            start = position
    return words + [_word(pieces[start:])] * (len(pieces) - start)


def count_activity(sae: TopKSae, x: Tensor, words: Sequence[str]) -> Activity:
    """Return the activity of every feature over residuals x [n, d_in], whose tokens belong to `words` [n]."""
    vocabulary = tuple(dict.fromkeys(words))
    number = {word: position for position, word in enumerate(vocabulary)}
    ids = torch.tensor([number[word] for word in words])  # [n]
    d_sae = sae.W_enc.shape[1]
    largest, active, mass = torch.zeros(d_sae), torch.zeros(d_sae), torch.zeros(d_sae, len(vocabulary))
    for chunk, chunk_ids in zip(chunks(x), chunks(ids), strict=True):
        a = sae.encode(chunk)  # [chunk, d_sae]
        largest = torch.maximum(largest, a.amax(0))
        active += (a > 0).sum(0)
        mass.index_add_(1, chunk_ids, a.T.contiguous())
    frequency = torch.bincount(ids, minlength=len(vocabulary)) / len(ids)
    return Activity(largest, active / len(x), mass, frequency, vocabulary)


def describe_features(activity: Activity, context: Mapping[str, Tensor]) -> list[Feature]:
    """Label the active features; `context` maps a story label to mean activations [d_sae] in its stories."""
    features = []
    for index in torch.nonzero(activity.max_activation > 0).flatten().tolist():
        ranked = _ranked_words(activity, index)
        features.append(
            Feature(
                index,
                make_label(ranked, _story_label(index, context)),
                float(activity.max_activation[index]),
                float(activity.density[index]),
                tuple(word for word, _ in ranked[:8]),
            )
        )
    return features


def make_label(ranked: Sequence[tuple[str, float]], story: str | None) -> str:
    """Return a label of words with their shares of the activation (largest first) and the kind of story, if any."""
    shown = ", ".join(word for word, share in ranked[:4] if share >= 0.03) or ranked[0][0]
    if ranked[0][1] >= 0.6:
        shown = ranked[0][0]
    category = next(
        (
            name
            for name, members in WORD_CATEGORIES.items()
            if sum(share for word, share in ranked if word in members) >= 0.6
        ),
        None,
    )
    prefixes = [text for text in (category, f"{story} stories" if story else None) if text]
    return f"{' in '.join(prefixes)}: {shown}" if prefixes else shown


def _ranked_words(activity: Activity, index: int) -> list[tuple[str, float]]:
    """Return words with their shares of the feature's activation; among those with large shares, specific words come
    first."""
    share = activity.mass[index] / activity.mass[index].sum()
    lift = (share / activity.word_share).clamp(min=1)
    order = (share * lift.log()).argsort(descending=True)[:40].tolist()
    return [(activity.words[position], float(share[position])) for position in order if share[position] > 0]


def _story_label(index: int, context: Mapping[str, Tensor]) -> str | None:
    """Return the mood, animal or place whose stories have most of the feature's activation, if one stands out."""
    for group in _LABEL_GROUPS:
        means = {label: float(context[label][index]) for label in group if label in context}
        total = sum(means.values())
        best = max(means, key=means.__getitem__, default=None)
        if best is not None and total > 0 and means[best] / total >= 0.5:
            return best
    return None


_LABEL_GROUPS = (
    tuple(mood.name for mood in MOODS),
    tuple(animal.name for animal in ANIMALS),
    tuple(place.name for place in PLACES),
)


def _continues(before: str, piece: str) -> bool:
    """Return whether `piece` continues the word of `before`. Only ASCII letters count: "Ġ" and "Ċ" are letters too."""
    return _is_word(piece) and _is_word(before.removeprefix("Ġ"))


def _is_word(text: str) -> bool:
    return text.isascii() and text.isalpha()


def _word(pieces: Sequence[str]) -> str:
    return "".join(pieces).replace("Ġ", "").replace("Ċ", "\\n").lower() or "space"
