from django.db import migrations, models

SCOPES = [
    ("everything", "everything"),
    ("thinking", "the thinking"),
    ("answer", "the answer itself"),
    ("outside_calls", "outside of tool calls"),
]


class Migration(migrations.Migration):
    dependencies = [("steering", "0012_sharing")]

    operations = [
        migrations.AddField(
            model_name="featureedit",
            name="scope",
            field=models.CharField(
                choices=SCOPES, default="everything", help_text="The part of what the model writes.", max_length=20
            ),
        ),
    ]
