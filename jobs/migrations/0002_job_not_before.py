from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="not_before",
            field=models.DateTimeField(help_text="A queued job that was postponed starts then.", null=True),
        )
    ]
