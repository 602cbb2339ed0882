import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('steering', '0031_output_tokens'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='FeatureExplanation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('text', models.CharField(max_length=500)),
                ('source', models.CharField(blank=True, help_text='For example Neuronpedia, or a user.', max_length=300)),
                ('score', models.FloatField(blank=True, help_text="As the label's, 0.5 to 1.", null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('author', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('feature', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='explanations', to='steering.feature')),
            ],
            options={
                'verbose_name': 'explanation',
                'ordering': ('pk',),
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('feature', 'text'), name='feature_explained_once')],
            },
        ),
        migrations.CreateModel(
            name='ExplanationVote',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('value', models.SmallIntegerField(help_text='1 or -1.')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('explanation', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='votes', to='steering.featureexplanation')),
            ],
            options={
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('explanation', 'user'), name='explanation_voted_once'), models.CheckConstraint(condition=models.Q(('value__in', (-1, 1))), name='vote_is_for_or_against')],
            },
        ),
    ]
