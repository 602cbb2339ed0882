import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('console', '0006_saved_lists_and_comments'),
        ('openai_api', '0020_metadata_and_score_names'),
    ]

    operations = [
        migrations.AlterField(
            model_name='comment',
            name='request',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='%(class)ss', to='openai_api.requestlog'),
        ),
        migrations.AlterField(
            model_name='saveditem',
            name='request',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='%(class)ss', to='openai_api.requestlog'),
        ),
    ]
