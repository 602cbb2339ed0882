"""What the choices of an edit mean, in a sentence each, for the form where they are made."""

from __future__ import annotations

OPERATIONS = {
    "add": "Adds the strength to what the feature, or the direction, contributes: the usual way to get more or less.",
    "clamp": "Sets the feature to the strength on every token, whatever it was.",
    "scale": "Multiplies the feature's own activation by the strength: 0 silences it, 1 changes nothing, 2 doubles it.",
    "ablate": "Sets the feature to 0. The strength does not matter.",
    "at_least": "Raises the feature to the strength where it is below, and leaves it alone elsewhere.",
    "at_most": "Lowers the feature to the strength where it is above, and leaves it alone elsewhere.",
    "orthogonal": "Multiplies the part of the residual along the direction by the strength: 0 removes it.",
    "projection_cap": "Keeps the residual along the direction between the lower end and the strength.",
    "norm_preserving": "Gives the residual its former length back, after all other edits at the site.",
}
PHASES = {
    "both": "On the tokens of the prompt and on those that the model writes.",
    "prompt": "Only on the tokens of the prompt, as the model reads them.",
    "from_last_prompt_token": "From the prompt's last token on, where the answer's first token is drawn: the whole"
    " answer is steered, and the prompt before it is not.",
    "generation": "Only on the tokens that the model writes. The first of them is drawn before that, so it is not"
    " steered.",
}
SCOPES = {
    "everything": "On all tokens of the phase.",
    "thinking": "Only where the model reasons before it answers; windows count that part's tokens. Phase: generation.",
    "answer": "Only on the answer itself, not on the thinking before it nor on tool calls; windows count its tokens."
    " Phase: generation.",
    "outside_calls": "Everywhere but inside tool calls, so that their arguments stay what the model means.",
}
UNITS = {
    "max_act": "In multiples of the feature's largest activation: 1 is as strong as it ever gets by itself.",
    "raw": "The number itself.",
    "resid_norm": "As a fraction of the residual's mean length: the step is that large, whatever the feature.",
}
