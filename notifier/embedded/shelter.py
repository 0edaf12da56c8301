"""Who runs PostgreSQL, and the directory made for its files.

PostgreSQL refuses root. As root it runs as a system user of its own (`celery-notifier`, made with useradd: `postgres`
may own a real server's data, `nobody` is shared by strangers), and that user cannot enter a virtual environment or a
working directory below /root. So, as root only, programs and data lie in a directory made for them. No permission of
a directory that was not made here is changed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from notifier.embedded.process import Account
from notifier.errors import Unavailable

USER = "celery-notifier"
WAY_OUT = "name a PostgreSQL of your own in NOTIFIER_DATABASE_URL"
_SHELTER = Path("/var/lib/celery-notifier")


def account() -> Account:
    """The system user, made if missing. For root only. Raises Unavailable with the way out."""
    entry = _user_entry()
    if entry is None:
        useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin") or "useradd"  # PATH may be bare
        command = [useradd, "--system", "--user-group", "--no-create-home", "--home-dir", str(_SHELTER)]
        command += ["--shell", "/usr/sbin/nologin", USER]
        try:
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            problem = made.stderr.strip()
        except OSError as error:
            problem = str(error)
        entry = _user_entry()  # another process may have made it meanwhile
        if entry is None:
            raise Unavailable(
                f"PostgreSQL does not run as root, and its own system user {USER!r} cannot be made ({problem}): "
                f"run as another user, or {WAY_OUT}"
            )
    return Account(entry.pw_uid, entry.pw_gid)


def _user_entry() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        return None


def base(account: Account | None) -> Path:
    """The directory for PostgreSQL's files: of the whole machine for root, else of this user. Raises Unavailable."""
    if account:
        candidates, mode = [_SHELTER], 0o711
    else:
        fallback = Path(tempfile.gettempdir()) / f"celery-notifier-{os.geteuid()}"
        candidates, mode = [_user_cache() / "celery-notifier", fallback], 0o700
    problem = ""
    for base in candidates:
        try:
            make_directory(base, mode)
            if base.stat().st_uid == os.geteuid() and not base.is_symlink() and os.access(base, os.W_OK):
                return base
            problem = f"{base} belongs to somebody else"
        except OSError as error:
            problem = str(error)
    raise Unavailable(f"no directory for PostgreSQL's files ({problem}): {WAY_OUT}")


def _user_cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # a user without a name or a home, as containers have
        return Path(tempfile.gettempdir())


def make_directory(path: Path, mode: int) -> None:
    """Make it with exactly this mode, whatever the umask; leave one that exists as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    path.chmod(mode)
