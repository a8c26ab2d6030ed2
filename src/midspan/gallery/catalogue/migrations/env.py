"""Run by Alembic, on the connection and in the transaction that `migrate` has opened.

Revisions find the catalogue's tables and the prefix of their names in
`op.get_context().config.attributes["tables"]`.
"""

from __future__ import annotations

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    version_table=attributes["version_table"],
    target_metadata=attributes["tables"].metadata,
)
with context.begin_transaction():
    context.run_migrations()
