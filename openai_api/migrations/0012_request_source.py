from django.db import migrations, models

# What the playground read of its answers' tokens: of older versions the only requests that are known to be a page's.
READ_BY_THE_PLAYGROUND = (
    "UPDATE openai_api_requestlog SET source = 'console' WHERE endpoint = '/admin/playground/inspect'"
)


class Migration(migrations.Migration):

    dependencies = [
        ('openai_api', '0011_steering_effects'),
    ]

    operations = [
        migrations.AddField(
            model_name='requestlog',
            name='source',
            field=models.CharField(choices=[('client', 'client'), ('console', 'console'), ('job', 'batch')], db_default='client', default='client', max_length=10),
        ),
        migrations.RunSQL(READ_BY_THE_PLAYGROUND, migrations.RunSQL.noop),
    ]
