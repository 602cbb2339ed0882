from django.db import migrations, models

PHASES = [
    ("both", "everywhere"),
    ("from_last_prompt_token", "answer, from its first token"),
    ("prompt", "prompt only"),
    ("generation", "answer, after its first token"),
]
RANGES = "In place of “after” and “first”: [[0, 4], [10, null]] are tokens 0 to 3 and 10 on."
SINKS = "On a prompt's first token and on those with enormous residuals too."


class Migration(migrations.Migration):
    """Drafts that are there keep their effect: they act on attention sinks, and new edits do not."""

    dependencies = [("steering", "0014_mlp_raw_site")]

    operations = [
        migrations.AlterField(
            model_name="featureedit",
            name="phase",
            field=models.CharField(choices=PHASES, default="both", max_length=30),
        ),
        migrations.AddField(
            model_name="featureedit",
            name="ranges",
            field=models.JSONField(blank=True, null=True, help_text=RANGES),
        ),
        migrations.AddField(
            model_name="featureedit",
            name="sink_tokens",
            field=models.BooleanField("attention sinks", default=True, help_text=SINKS),
        ),
        migrations.AlterField(
            model_name="featureedit",
            name="sink_tokens",
            field=models.BooleanField("attention sinks", default=False, help_text=SINKS),
        ),
        migrations.AddField(
            model_name="sae",
            name="median_resid_norm",
            field=models.FloatField(
                "median residual norm", blank=True, null=True, help_text="Attention sinks are compared to it."
            ),
        ),
        migrations.AddField(
            model_name="sae",
            name="measured_sinks",
            field=models.PositiveIntegerField(
                blank=True, null=True, help_text="Attention sinks of the corpus, which were left out."
            ),
        ),
    ]
