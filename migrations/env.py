"""Run by notifier.deadletters.migrate, which hands over the connection: no URL passes through a configuration file,
where a % in a password would be taken for an interpolation."""

from alembic import context

from notifier.deadletters.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="notifier_alembic_version",  # a team's own Alembic may use the same database
    include_name=lambda name, kind, _parents: kind != "table" or name in metadata.tables,
)
with context.begin_transaction():
    context.run_migrations()
