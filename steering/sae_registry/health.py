"""Explain the measurements of an SAE in words."""

from __future__ import annotations

from dataclasses import dataclass

from steering.models import SAE

_BROKEN_FVU = 0.9
_POOR_FVU = 0.5
_GOOD_FVU = 0.25
_MANY_DEAD = 0.5
_GOOD_RECOVERY = 0.9


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence about one figure; warnings should be checked before the SAE is used."""

    text: str
    is_warning: bool = False


def judge(sae: SAE) -> list[Verdict]:
    """Return one sentence per figure, and the diagnosed causes if a figure looks wrong."""
    causes = [Verdict(str(cause), is_warning=True) for cause in sae.causes]
    return [
        _judge_fvu(sae),
        *causes,
        *_judge_loss(sae),
        _judge_l0(sae),
        *_judge_dead(sae),
        *_judge_norm(sae),
        _judged_on(sae),
    ]


def summary(sae: SAE) -> Verdict:
    """Return a short verdict for lists."""
    if any(verdict.is_warning for verdict in judge(sae)):
        return Verdict("looks wrong", is_warning=True)
    return Verdict("not measured" if sae.fvu is None else "good" if sae.fvu < _GOOD_FVU else "fair")


def _judge_fvu(sae: SAE) -> Verdict:
    if sae.fvu is None:
        return Verdict("The unexplained variance was not measured.")
    lost = f"It leaves {sae.fvu:.0%} of the residual's variance unexplained"
    if sae.fvu >= _BROKEN_FVU:
        if sae.causes:
            return Verdict(f"{lost}: nearly all. Something does not match.", is_warning=True)
        reason = "wrong layer or site, activation function, or transposed weights"
        return Verdict(f"{lost}: nearly all. Something does not match: {reason}.", is_warning=True)
    if sae.fvu >= _POOR_FVU:
        return Verdict(f"{lost}, which is a lot. Check the layer and site.", is_warning=True)
    return Verdict(f"{lost}, which is {'good' if sae.fvu < _GOOD_FVU else 'fair'}.")


def _judge_loss(sae: SAE) -> list[Verdict]:
    """Return the verdict on the predictions with the reconstruction in place of the residual."""
    recovered = sae.loss_recovered
    if recovered is None:
        return []
    text = (
        f"Loss recovered: {recovered:.1%} (cross-entropy {sae.model_loss:.2f}, with its reconstruction "
        f"{sae.spliced_loss:.2f}, with zeros {sae.zero_loss:.2f} nats per token)"
    )
    return [Verdict(f"{text}." if recovered >= _GOOD_RECOVERY else f"{text}, which is low.")]


def _judge_l0(sae: SAE) -> Verdict:
    if sae.l0 is None:
        return Verdict("The number of active features per token was not measured.")
    fires = f"{sae.l0:.3g} of {sae.d_sae} features are active per token"
    if sae.l0 < 1:
        return Verdict(f"{fires}: almost none. The threshold or the layer may be wrong.", is_warning=True)
    if sae.l0 > sae.d_in or sae.l0 > sae.d_sae / 4:
        return Verdict(
            f"{fires}: too many to be sparse. The threshold or the activation may be wrong.", is_warning=True
        )
    return Verdict(f"{fires}.")


def _judge_dead(sae: SAE) -> list[Verdict]:
    """Return the verdict on dead features. On a short corpus, many features of a wide SAE never fire."""
    if sae.dead_share is None:
        return []
    tokens = f" on {sae.measured_tokens} tokens" if sae.measured_tokens else ""
    never = f"{sae.dead_share:.1%} of its features were never active{tokens}"
    if sae.dead_share < _MANY_DEAD:
        return [Verdict(f"{never}.")]
    return [Verdict(f"{never}: a longer corpus, or one more like its training data, may activate them.")]


def _judged_on(sae: SAE) -> Verdict:
    if sae.measured_at is None:
        return Verdict("Not measured on this server; the numbers come from its files.")
    text = f"Measured on {sae.measured_at:%Y-%m-%d %H:%M} UTC on {sae.measured_tokens} tokens of {sae.corpus}"
    if sae.measured_sinks:
        text += f", {sae.measured_sinks} attention sinks excluded"
    return Verdict(f"{text}.")


def _judge_norm(sae: SAE) -> list[Verdict]:
    if sae.reference_norm is None:
        return [Verdict("The mean residual norm was not measured, so the relative size of its edits is unknown.")]
    return []
