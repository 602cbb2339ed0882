"""Descriptions, sources and examples of features, and an index over their words as they are and stemmed."""

import django.contrib.postgres.indexes
from django.contrib.postgres.search import SearchVector
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("steering", "0003_every_operation")]

    operations = [
        migrations.AddField(
            model_name="feature",
            name="label_source",
            field=models.CharField(blank=True, help_text="Who or what gave the label.", max_length=300),
        ),
        migrations.AddField(
            model_name="feature",
            name="description",
            field=models.TextField(blank=True, help_text="More words, or other explanations.", max_length=4000),
        ),
        migrations.AddField(
            model_name="feature",
            name="examples",
            field=models.JSONField(
                blank=True, default=list, help_text="Texts on which it fires most: tokens, values."
            ),
        ),
        migrations.RemoveIndex(model_name="feature", name="feature_label_words"),
        migrations.AddIndex(
            model_name="feature",
            index=django.contrib.postgres.indexes.GinIndex(
                SearchVector("label", config="simple", weight="A")
                + SearchVector("label", config="english", weight="A")
                + SearchVector("description", config="simple", weight="C")
                + SearchVector("description", config="english", weight="C"),
                name="feature_label_words",
            ),
        ),
    ]
