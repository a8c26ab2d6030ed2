"""Files that the service may open: those below the allowed folders, and none besides.

A uri comes from whoever wrote the item, so it is never trusted: links are followed before the
check, and what lies elsewhere is as good as not there.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from midspan.data.image_uri import ImageUri
from midspan.errors import DataError, ImageError
from midspan.service.errors import NotPossible

NOT_SHOWN = "the item's image is in no folder that this service may read, or is not there"
FOLDERS = 10_000  # whose verdict is remembered: a list of results asks for each of them
SUFFIX = ".image"  # put images are kept as they came; only re-encoded pixels are ever served


class ImageRoots:
    def __init__(
        self, *, images: Sequence[Path], uploads: Path | None, prefix: str = "/v1"
    ) -> None:
        """prefix: of the gallery's paths."""
        self._prefix = prefix
        self.uploads = None if uploads is None else uploads.absolute()
        folders = [*images, *([uploads] if uploads is not None else [])]
        # as they were given, for a look at the text alone; and as they are, for the real check
        self._texts = tuple(os.path.normpath(folder.absolute()) + os.sep for folder in folders)
        self._roots = tuple(folder.resolve() for folder in folders)
        self._texts += tuple(str(root) + os.sep for root in self._roots)
        self._known: dict[str, bool] = {}  # folder of a uri → whether it is an allowed one

    def may_show(self, uri: str | None) -> bool:
        """A quick look without the disk, for lists of results."""
        if uri is None or not self._texts:
            return False
        file = ImageUri.of(uri).file
        name = os.path.basename(file)
        if name in ("", os.curdir, os.pardir):  # no file, and no folder to remember
            return os.path.normpath(os.path.abspath(file)).startswith(self._texts)
        folder = file.removesuffix(name)
        if (known := self._known.get(folder)) is None:
            if len(self._known) >= FOLDERS:
                self._known.clear()
            within = os.path.join(os.path.normpath(os.path.abspath(folder)), "")
            known = self._known[folder] = within.startswith(self._texts)
        return known

    def thumbnail(self, id: str, uri: str | None) -> str | None:
        """The path that shows the item's picture; None: there is none to be shown."""
        if not self.may_show(uri):
            return None
        return f"{self._prefix}/thumbnails/{quote(id, safe='')}"

    def shown(self, uri: str | None) -> str | None:
        """For readers: from the allowed folder on; of a file elsewhere its name alone."""
        if uri is None or "://" in uri or not os.path.isabs(uri):
            return uri
        plain = os.path.normpath(uri)
        for folder in self._texts:
            if plain.startswith(folder):
                return f"{os.path.basename(folder.rstrip(os.sep))}/{plain.removeprefix(folder)}"
        return os.path.basename(plain)

    def find(self, uri: str | None) -> tuple[Path, ImageUri]:
        """(the real file, what is meant in it), or ImageError."""
        if uri is None:
            raise ImageError("the item has no uri")
        if not self.may_show(uri):  # by its text: whether there is such a file is nobody's business
            raise ImageError(NOT_SHOWN)
        place = ImageUri.of(uri)
        try:
            real = Path(os.path.abspath(place.file)).resolve(strict=True)
            regular = stat.S_ISREG(real.stat().st_mode)
        except (OSError, ValueError, RuntimeError) as error:
            raise ImageError(NOT_SHOWN) from error
        if not regular or not any(real.is_relative_to(root) for root in self._roots):
            raise ImageError(NOT_SHOWN)
        return real, place

    def read(self, file: Path, member: str | None, *, most: int) -> bytes:
        """The file, or what has this name in a shard; never more than `most` bytes."""
        if member is not None:
            return _from_shard(file, member, most=most)
        try:
            with file.open("rb") as opened:
                data = opened.read(most + 1)
        except OSError as error:
            raise ImageError(f"the item's image cannot be read ({error.strerror})") from error
        if len(data) > most:
            raise ImageError(f"the item's image has more than {most:,} bytes")
        return data

    # ---- images that clients put

    def store(self, id: str, data: bytes) -> str:
        """Keep the bytes under a name made of their digest; returns the uri.

        The item's id is part of the digest, so that a file belongs to one item and goes with it.
        On disk when this returns.
        """
        if self.uploads is None:
            raise NotPossible(
                "this service has no folder for images; start it with uploads = FOLDER, or put "
                "the item by vector"
            )
        file = self._file_for(id, data)
        if file.exists() and file.stat().st_size == len(data):
            return str(file)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_name(f"{file.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            part.replace(file)
            _sync_folder(file.parent)
        finally:
            part.unlink(missing_ok=True)
        return str(file)

    def discard(self, id: str, uri: str | None) -> None:
        """Remove the image that was put for this item; any other file is left alone.

        A uri may come from a client: so the name must be the very one that `store` gives to
        these bytes of this item.
        """
        if uri is None or self.uploads is None or not uri.startswith(f"{self.uploads}{os.sep}"):
            return
        file = Path(uri)
        try:
            if not file.is_symlink() and str(self._file_for(id, file.read_bytes())) == uri:
                file.unlink(missing_ok=True)
        except OSError:
            return

    def _file_for(self, id: str, data: bytes) -> Path:
        assert self.uploads is not None
        key = hashlib.sha256(id.encode()).digest()
        name = hashlib.blake2b(data, key=key, digest_size=24).hexdigest()
        return self.uploads / name[:2] / f"{name}{SUFFIX}"


def _from_shard(file: Path, member: str, *, most: int) -> bytes:
    from midspan.data.webdataset.by_name import shard_images

    try:
        shard = shard_images(file, [member])
    except DataError as error:  # it says where the file is, which is nobody's business here
        raise ImageError("the item's image is in a shard that cannot be read") from error
    try:
        return shard.read(0, most=most)
    except ImageError as error:
        raise ImageError(f"the item's image: {error}") from error


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
