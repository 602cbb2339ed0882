"""Evaluations of drafts and inline edits: the model of every evaluation, and edits in place of a version."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import OuterRef, Subquery


def fill_models(apps, schema_editor):
    Evaluation = apps.get_model("steering", "Evaluation")
    Version = apps.get_model("steering", "ProfileVersion")
    model = Version.objects.filter(pk=OuterRef("version")).values("profile__model")
    Evaluation.objects.update(model=Subquery(model))


class Migration(migrations.Migration):

    dependencies = [
        ("inference", "0001_initial"),
        ("steering", "0021_gates_of_other_sites"),
    ]

    operations = [
        migrations.AddField(
            model_name="evaluation",
            name="model",
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name="evaluations", to="inference.languagemodel"),
        ),
        migrations.RunPython(fill_models, migrations.RunPython.noop),
        migrations.AlterField(
            model_name="evaluation",
            name="model",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="evaluations", to="inference.languagemodel"),
        ),
        migrations.AlterField(
            model_name="evaluation",
            name="version",
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name="evaluations", to="steering.profileversion"),
        ),
        migrations.AddField(
            model_name="evaluation",
            name="profile",
            field=models.ForeignKey(blank=True, help_text="The profile whose draft was evaluated.", null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="draft_evaluations", to="steering.steeringprofile"),
        ),
        migrations.AddField(
            model_name="evaluation",
            name="edits",
            field=models.JSONField(blank=True, help_text="The edits, as they were, if they were not published.", null=True),
        ),
    ]
