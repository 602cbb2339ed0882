import django.contrib.postgres.indexes
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('openai_api', '0019_request_scores'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='requestlog',
            index=django.contrib.postgres.indexes.GinIndex(django.contrib.postgres.indexes.OpClass(models.F('parameters__metadata'), 'jsonb_path_ops'), condition=models.Q(('parameters__has_key', 'metadata')), name='log_metadata'),
        ),
        migrations.RemoveConstraint(model_name='requestscore', name='request_scored_once'),
        migrations.RemoveIndex(model_name='requestscore', name='score_value'),
        migrations.AlterModelOptions(
            name='requestscore',
            options={'default_permissions': ('view', 'add'), 'ordering': ('name', 'username', 'pk'), 'verbose_name': 'score'},
        ),
        migrations.AddField(
            model_name='requestscore',
            name='name',
            field=models.CharField(blank=True, db_default='', default='', max_length=60),
        ),
        migrations.AddIndex(
            model_name='requestscore',
            index=models.Index(fields=['name', 'value', 'request'], name='score_value'),
        ),
        migrations.AddConstraint(
            model_name='requestscore',
            constraint=models.UniqueConstraint(fields=('request', 'user', 'name'), name='request_scored_once'),
        ),
    ]
