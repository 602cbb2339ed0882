from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("openai_api", "0010_key_prefix")]

    operations = [
        migrations.AddField(
            model_name="requestlog",
            name="steering_effects",
            field=models.JSONField(
                blank=True,
                db_default=[],
                default=list,
                help_text="What came of it, by site: share of tokens changed, and how far.",
            ),
        ),
    ]
