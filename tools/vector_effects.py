"""``python -m tools.vector_effects SET...``: print the measured effects of vectors as the file that a demo ships.

    python -m tools.vector_effects smollm2-gloomy smollm2-joyful smollm2-sea > steering/demo/smollm2/vector_effects.json

Measure them first, with `manage.py measure_effects SET --vectors`. All must have been measured by one recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "millm_site.settings")
    django.setup()

from steering.effects.store import calibrated_fields
from steering.models import VectorEffect


def demo_file(names: list[str]) -> dict[str, Any]:
    """Return the recipe, and the effects by set and layer, as ``steering.demo.install`` reads them.

    Raise ValueError if effects are missing or were measured by different recipes.
    """
    rows = VectorEffect.objects.filter(vector__vector_set__name__in=names).select_related("vector__vector_set")
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    recipes = set()
    for row in rows.order_by("vector__layer"):
        effect = {**calibrated_fields(row), "samples": row.samples, "output_tokens": row.output_tokens}
        found[row.vector.vector_set.name][str(row.vector.layer)] = effect
        recipes.add(row.recipe)
    if not all(found.values()) or len(recipes) != 1:
        missing = [name for name, effects in found.items() if not effects]
        raise ValueError(f"Without effects: {missing}. Recipes: {sorted(recipes)}.")
    return {"recipe": recipes.pop(), "vectors": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET")
    try:
        effects = demo_file(parser.parse_args().sets)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(f"{json.dumps(effects, indent=1, ensure_ascii=False)}\n")
