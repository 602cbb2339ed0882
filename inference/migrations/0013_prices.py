import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0012_w8a8'),
    ]

    operations = [
        migrations.AddField(
            model_name='languagemodel',
            name='input_price',
            field=models.FloatField(blank=True, help_text='Price per million input tokens, in your currency, to show the cost of requests. Empty: unknown.', null=True, validators=[django.core.validators.MinValueValidator(0)]),
        ),
        migrations.AddField(
            model_name='languagemodel',
            name='output_price',
            field=models.FloatField(blank=True, help_text='Price per million output tokens.', null=True, validators=[django.core.validators.MinValueValidator(0)]),
        ),
    ]
