"""Find the model's SAE that a file refers to. Most formats have their own names for SAEs, and none has a checksum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.models import LanguageModel
from steering.models import SAE, Feature
from steering.profiles.drafts import feature_target
from steering.spec.edit import FeatureTarget
from steering.spec.errors import Problem
from steering.spec.fields import describe

_SHOWN = 100


@dataclass(frozen=True, slots=True)
class SAEHint:
    """The file's description of its SAE; None and empty for unknown fields."""

    name: str = ""
    layer: int | None = None
    site: str | None = None
    d_sae: int | None = None
    d_in: int | None = None
    format: str = ""

    def __str__(self) -> str:
        parts = [f'"{self.name[:_SHOWN]}"' if self.name else ""]
        parts += [f"at layer {self.layer}" if self.layer is not None else ""]
        parts += [f"({self.site})" if self.site else "", f"of the format {self.format}" if self.format else ""]
        return " ".join(filter(None, parts)) or "without a name"


class SAEChoice:
    """Chooses the user's ``chosen`` SAE, or the only one that matches the file."""

    def __init__(self, model: LanguageModel, chosen: SAE | None = None) -> None:
        self._model = model
        self._chosen = chosen
        self._all = list(SAE.objects.filter(model=model))

    @property
    def model_name(self) -> str:
        return self._model.name

    def find(self, hint: SAEHint, path: str, problems: list[Problem], doubts: list[str]) -> SAE | None:
        """Return the SAE, or None after a problem was added."""
        fitting = [self._chosen] if self._chosen else self._fitting(hint)
        if len(fitting) != 1:
            problems.append(Problem(path, self._refusal(hint, fitting), "sae_not_found"))
            return None
        sae = fitting[0]
        wrong = _differences(sae, hint)
        if wrong:
            problems.append(Problem(path, f"The file's SAE is a different one: {wrong}.", "sae_mismatch"))
            return None
        if not self._chosen and hint.name not in _names(sae):
            doubt = (
                f"The file's SAE {hint} is matched to {sae} ({sae.place}), but the file does not prove that it is the "
                "same."
            )
            if doubt not in doubts:
                doubts.append(doubt)
        return sae

    def feature(self, sae: SAE, index: object, path: str, problems: list[Problem]) -> FeatureTarget | None:
        """Return the feature, or None after a problem was added."""
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < sae.d_sae:
            message = f"{sae} has features 0 to {sae.d_sae - 1}, got {describe(index)}."
            problems.append(Problem(path, message, "invalid_feature"))
            return None
        return feature_target(Feature.objects.select_related("sae").get(sae=sae, index=index))

    def _fitting(self, hint: SAEHint) -> list[SAE]:
        """Return the matching SAEs: by name if one has it, otherwise by the layer, site and format in the file."""
        named = [sae for sae in self._all if hint.name and hint.name in _names(sae)]
        rows = named or self._all
        rows = [sae for sae in rows if hint.layer in (None, sae.layer)]
        rows = [sae for sae in rows if sae.site == hint.site] or [sae for sae in rows if _may_be_at(sae, hint.site)]
        return [sae for sae in rows if hint.format in ("", sae.format)]

    def _refusal(self, hint: SAEHint, fitting: Sequence[SAE]) -> str:
        if fitting:
            names = ", ".join(map(str, fitting[:10]))
            return f"The SAE {hint} matches {names}; choose one of them."
        known = ", ".join(f"{sae} ({sae.place})" for sae in self._all[:10]) or "none"
        return f"The model {self._model} has no SAE {hint}. Register it with `add_sae`, or choose one of: {known}."


def _may_be_at(sae: SAE, site: str | None) -> bool:
    """Return whether the site of the file can be the SAE's. If no norm follows the MLP, its two sites are the same
    place."""
    mlp = (SAE.Site.MLP_RAW, SAE.Site.MLP_OUT)
    return site in (None, sae.site) or (site in mlp and sae.site in mlp)


def _names(sae: SAE) -> tuple[str, ...]:
    """Return the SAE's local name and its source."""
    return sae.name, sae.source, f"{sae.source}/{sae.subfolder}"


def _differences(sae: SAE, hint: SAEHint) -> str:
    pairs = (
        ("layer", hint.layer, sae.layer),
        ("site", None if _may_be_at(sae, hint.site) else hint.site, sae.site),
        ("features", hint.d_sae, sae.d_sae),
        ("width", hint.d_in, sae.d_in),
    )
    return ", ".join(f"{name} {said}, {sae} {is_}" for name, said, is_ in pairs if said is not None and said != is_)
