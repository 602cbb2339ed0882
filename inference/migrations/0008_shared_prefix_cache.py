from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0007_label_count"),
    ]

    operations = [
        migrations.AddField(
            model_name="languagemodel",
            name="shared_prefix_cache",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="All users share the cached beginnings of prompts, as is useful for one public system "
                "prompt. Each can then tell by `cached_tokens` and the time to the first token whether another one's "
                "prompt began like theirs. Off: only requests of the same user share them.",
                verbose_name="share cached prompts between users",
            ),
        ),
    ]
