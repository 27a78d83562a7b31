import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookline_hookspecs.files import write_atomically

KILLED = """
import os, signal, sys
from pathlib import Path
from hookline_hookspecs.files import write_atomically

Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path(sys.argv[1]), "half")
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_atomically(path, "naïve")
    write_atomically(path, b"\x00new", durable=True)
    assert path.read_bytes() == b"\x00new"
    assert names(tmp_path) == ["page.html"]


def test_a_failed_write_leaves_the_file_before_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_atomically(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "before"
    assert names(tmp_path) == ["page.html"]


def test_what_a_killed_process_left_is_removed_by_the_next_write_and_other_files_are_not(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_atomically(path, "before")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -9
    assert path.read_text() == "before"
    assert len(names(tmp_path)) == 2
    others = [f".page.html.{os.getppid()}-1.new", ".page.html.mine.new", ".other.html.1-1.new"]
    for other in others:
        (tmp_path / other).touch()
    write_atomically(path, "after")
    assert names(tmp_path) == sorted([*others, "page.html"])


def test_a_durable_write_has_file_and_name_on_disk_in_that_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_relative_to(tmp_path):  # and not of a thread that an earlier test has left
            calls.append(f"fsync {path.name}")
        fsync(descriptor)

    def record_replace(self: Path, target: Path) -> Path:
        if self.is_relative_to(tmp_path):
            calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    write_atomically(tmp_path / "page.html", "new", durable=True)
    written, renamed, folder = calls
    assert written.startswith("fsync .page.html.")
    assert (renamed, folder) == ("rename", f"fsync {tmp_path.name}")
