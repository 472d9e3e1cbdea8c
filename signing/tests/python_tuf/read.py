"""Reads a repository from a folder with python-tuf's own client and prints its targets as JSON.

Usage: read.py METADATA_DIR TRUSTED_ROOT TARGET [TARGET ...]
"""

import json
import pathlib
import sys
import tempfile

from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import FetcherInterface, Updater


class Folder(FetcherInterface):
    """Serves files of a folder in place of a web server."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def _fetch(self, url):
        path = self.folder / url.removeprefix("folder:///")
        if not path.is_file():
            raise DownloadHTTPError(f"{url} is not there", 404)
        yield path.read_bytes()


folder, root, *targets = sys.argv[1:]
with tempfile.TemporaryDirectory() as cache:
    client = Updater(
        cache,
        "folder:///",
        fetcher=Folder(folder),
        bootstrap=pathlib.Path(root).read_bytes(),
    )
    client.refresh()
    found = {}
    for name in targets:
        info = client.get_targetinfo(name)
        found[name] = info and {"length": info.length, **info.hashes, "custom": info.custom}
    print(json.dumps(found))
