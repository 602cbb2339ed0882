import django.db.models.deletion
from django.db import migrations, models


def rename_permissions(apps, old, new, title):
    rows = apps.get_model("auth", "Permission").objects.filter(content_type__app_label="console")
    for action in ("view", "add"):
        rows.filter(codename=f"{action}_{old}").update(codename=f"{action}_{new}", name=f"Can {action} {title}")


def keep_permissions(apps, schema_editor):
    rename_permissions(apps, "sharedfeature", "sharedpage", "public page")


def forget_vectors(apps, schema_editor):
    apps.get_model("console", "SharedPage").objects.filter(feature=None).delete()
    rename_permissions(apps, "sharedpage", "sharedfeature", "public feature")


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('console', '0008_public_features'),
        ('steering', '0033_vector_effects'),
    ]

    operations = [
        migrations.RenameModel(old_name='SharedFeature', new_name='SharedPage'),
        migrations.AlterModelOptions(
            name='sharedpage',
            options={
                'default_permissions': ('view', 'add'), 'ordering': ('-shared_at', '-pk'),
                'verbose_name': 'public page',
            },
        ),
        migrations.AlterField(
            model_name='sharedpage',
            name='feature',
            field=models.OneToOneField(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='steering.feature'
            ),
        ),
        migrations.AddField(
            model_name='sharedpage',
            name='vector',
            field=models.OneToOneField(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='steering.plainvector'
            ),
        ),
        migrations.AddConstraint(
            model_name='sharedpage',
            constraint=models.CheckConstraint(
                condition=models.Q(('feature__isnull', False), ('vector__isnull', True))
                | models.Q(('feature__isnull', True), ('vector__isnull', False)),
                name='shared_page_has_one_subject',
            ),
        ),
        migrations.RunPython(keep_permissions, forget_vectors),
    ]
