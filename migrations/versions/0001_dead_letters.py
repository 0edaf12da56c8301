"""The table of dead letters."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.Text(collation="C")
_TIME = sa.DateTime(timezone=True)

# Rows come and go within seconds. Half-empty pages leave room for updates, and vacuum comes after a number of dead
# rows, not after a share of the table: what is due stays at the front of small indexes.
_STORAGE = {
    "fillfactor": 80,
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5_000,
    "autovacuum_vacuum_insert_scale_factor": 0.2,
    "autovacuum_vacuum_cost_delay": 1,
    "autovacuum_analyze_scale_factor": 0,
    "autovacuum_analyze_threshold": 5_000,
}


def upgrade() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("user_id", _ID, nullable=False),
        sa.Column("channel", _ID, nullable=False),
        sa.Column("notification_id", _ID, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Text, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False),
        sa.Column("category", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("priority", sa.Text, nullable=False),
        sa.Column("collapse_key", sa.Text, nullable=False),
        sa.Column("digest_id", sa.Text, nullable=False, server_default=""),
        sa.Column("folded", sa.Text, nullable=False, server_default=""),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("retry_at", _TIME, nullable=False),
        sa.Column("claimed_until", _TIME),
        sa.Column("expires_at", _TIME),
        sa.Column("accepted_at", _TIME, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("updated_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("last_error", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("user_id", "channel", "notification_id", name="dead_letters_pkey"),
        sa.CheckConstraint("state IN ('waiting', 'parked')", name="dead_letters_state_check"),
        postgresql_with=_STORAGE,
    )
    waiting = sa.text("state = 'waiting'")
    free = sa.text("state = 'waiting' AND claimed_until IS NULL")
    claimed = sa.text("claimed_until IS NOT NULL")
    parked = sa.text("state = 'parked'")
    op.create_index("dead_letters_due", "dead_letters", ["retry_at"], postgresql_where=free)
    op.create_index("dead_letters_user", "dead_letters", ["user_id", "channel", "seq"], postgresql_where=waiting)
    op.create_index("dead_letters_claimed", "dead_letters", ["claimed_until"], postgresql_where=claimed)
    op.create_index("dead_letters_parked", "dead_letters", ["updated_at"], postgresql_where=parked)


def downgrade() -> None:
    op.drop_table("dead_letters")
