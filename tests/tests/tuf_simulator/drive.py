"""Serves python-tuf's RepositorySimulator over HTTP and drives our client against it.

drive.py CLIENT FOLDER SCENARIO: each scenario is a function below. CLIENT has the command line of the TUF
conformance suite; FOLDER is where it may write. The exit status is 0 if the client did what it must.
"""

import datetime
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from repository_simulator import RepositorySimulator
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import DownloadHTTPError
from tuf.api.metadata import DelegatedRole, Targets


class Bench:
    """A simulator behind a server, and our client."""

    def __init__(self, client, folder):
        self.client, self.folder = client, folder
        self.sim = RepositorySimulator()
        self.asked = []
        bench = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                bench.asked.append(self.path)
                try:
                    data = b"".join(bench.sim._fetch("http://simulator" + self.path))
                except (DownloadHTTPError, ValueError):
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        root = os.path.join(folder, "trusted.json")
        with open(root, "wb") as file:
            file.write(self.sim.signed_roots[0])
        os.makedirs(os.path.join(folder, "metadata"))
        os.makedirs(os.path.join(folder, "targets"))
        self.run("init", root)

    def run(self, *command, refused=None):
        """Runs the client. `refused`: words of the refusal that there must be."""
        base = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.asked.clear()
        done = subprocess.run(
            [self.client, "--metadata-dir", os.path.join(self.folder, "metadata"),
             "--metadata-url", base + "/metadata/", "--target-base-url", base + "/targets/",
             "--target-dir", os.path.join(self.folder, "targets"), *command],
            stderr=subprocess.PIPE, text=True, timeout=60)
        if refused is None:
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode == 1, f"it was taken, but should be refused: {refused}"
            assert refused in done.stderr, f"{done.stderr!r} lacks {refused!r}"

    def refresh(self, refused=None):
        self.run("refresh", refused=refused)

    def download(self, name, refused=None):
        self.run("--target-name", name, "download", refused=refused)

    def held(self, role):
        """The version that the client trusts; 0 for none."""
        path = os.path.join(self.folder, "metadata", role + ".json")
        if not os.path.exists(path):
            return 0
        with open(path, "rb") as file:
            return json.load(file)["signed"]["version"]

    def publish(self):
        self.sim.targets.version += 1
        self.sim.update_snapshot()

    def root(self):
        self.sim.root.version += 1
        self.sim.publish_root()


def refresh(bench):
    for hashes in (False, True):
        bench.sim.compute_metafile_hashes_length = hashes
        bench.sim.add_target("targets", b"content %d" % hashes, "folder/file")
        bench.publish()
        bench.download("folder/file")
        with open(os.path.join(bench.folder, "targets", "folder%2Ffile"), "rb") as file:
            assert file.read() == b"content %d" % hashes
    versions = [bench.held(role) for role in ("root", "timestamp", "snapshot", "targets")]
    assert versions == [1, 3, 3, 3], versions
    # Nothing new: nothing but root and timestamp is asked for, and nothing is downloaded twice.
    bench.download("folder/file")
    assert bench.asked == ["/metadata/2.root.json", "/metadata/timestamp.json"], bench.asked
    bench.download("absent", refused="no role lists")
    # An artifact that is not what was signed for.
    bench.sim.add_target("targets", b"good", "other")
    bench.publish()
    bench.sim.target_files["other"].data = b"evil"
    bench.download("other", refused="not what was signed for")


def rotation(bench):
    bench.publish()
    bench.refresh()
    for role in ("targets", "snapshot", "timestamp"):
        old = dict(bench.sim.signers[role])
        bench.sim.rotate_keys(role)
        new = bench.sim.signers[role]
        bench.root()
        bench.sim.signers[role] = old
        bench.publish()
        bench.refresh(refused="threshold not met")
        bench.sim.signers[role] = new
        bench.refresh()
    # The root's own key, signed for by the old one and the new one; and then without the old one.
    signer = CryptoSigner.generate_ed25519()
    old = next(iter(bench.sim.signers["root"]))
    bench.sim.root.revoke_key(old, "root")
    bench.sim.root.add_key(signer.public_key, "root")
    bench.sim.add_signer("root", signer)
    bench.root()
    bench.refresh()
    assert bench.held("root") == 5, bench.held("root")
    del bench.sim.signers["root"][old]
    bench.sim.rotate_keys("root")
    bench.root()
    bench.refresh(refused="threshold not met")
    assert bench.held("root") == 5


def delegations(bench):
    sim = bench.sim
    expiry = sim.safe_expiry
    sim.add_delegation("targets", DelegatedRole("python", [], 1, False, ["*.py"]), Targets(expires=expiry))
    sim.add_delegation("targets", DelegatedRole("deep", [], 1, True, ["deep/*"]), Targets(expires=expiry))
    sim.add_delegation("deep", DelegatedRole("deeper/role", [], 1, False, ["deep/*.so"]), Targets(expires=expiry))
    sim.add_target("python", b"python", "a.py")
    sim.add_target("deeper/role", b"library", "deep/b.so")
    sim.add_target("python", b"stolen", "deep/c.txt")
    # Bins by the hash of the name, as our own repositories have them.
    bins = {}
    for digit in "0123456789abcdef":
        bins[digit] = "bin-" + digit
        role = DelegatedRole(bins[digit], [], 1, True, None, [digit])
        sim.add_delegation("targets", role, Targets(expires=expiry))
    name = "package-1.0.0.pkg.json"
    wanted = bins[hashlib.sha256(name.encode()).hexdigest()[0]]
    sim.add_target(wanted, b"package", name)
    bench.publish()
    for target in ("a.py", "deep/b.so", name):
        bench.download(target)
    roles = [path for path in bench.asked if "bin-" in path]
    assert roles == [f"/metadata/1.{wanted}.json"], roles
    bench.download("deep/c.txt", refused="no role lists")
    # Every delegating key counts: a bin that a stranger signs is refused.
    sim.md_delegates[wanted].signed.version += 1
    stranger = CryptoSigner.generate_ed25519()
    sim.signers[wanted] = {stranger.public_key.keyid: stranger}
    bench.publish()
    bench.download(name, refused="threshold not met")
    bench.download("a.py")


def rollback(bench):
    sim = bench.sim
    for _ in range(3):
        bench.publish()
    bench.refresh()
    before = [bench.held(role) for role in ("timestamp", "snapshot", "targets")]

    sim.timestamp.version -= 1
    bench.refresh(refused="would go back from version 4 to 3")
    sim.timestamp.version += 1

    sim.snapshot.version -= 1
    sim.update_timestamp()
    bench.refresh(refused="would go back")
    sim.snapshot.version += 1

    sim.targets.version -= 1
    sim.update_snapshot()
    bench.refresh(refused="targets.json (via snapshot) would go back from version 4 to 3")
    assert bench.held("targets") == before[2]

    del sim.snapshot.meta["targets.json"]
    sim.snapshot.version += 1
    sim.update_timestamp()
    bench.refresh(refused="targets.json")
    assert bench.held("targets") == before[2]


def expiry(bench):
    sim = bench.sim
    past = datetime.datetime(2021, 1, 1, tzinfo=datetime.timezone.utc)
    for role, publish in (("targets", bench.publish), ("snapshot", sim.update_snapshot), ("timestamp", sim.update_timestamp)):
        signed = getattr(sim, role)
        good, signed.expires = signed.expires, past
        publish()
        bench.refresh(refused=f"{role} expired at 2021")
        signed.expires = good
        publish()
        bench.refresh()
    sim.root.expires = past
    bench.root()
    bench.refresh(refused="root expired at 2021")
    # An expired root is a link of the chain all the same.
    sim.root.expires = sim.safe_expiry
    bench.root()
    bench.refresh()
    assert bench.held("root") == 3


def threshold(bench):
    sim = bench.sim
    for role in ("timestamp", "snapshot", "targets"):
        sim.root.roles[role].threshold = 2
        second, third = CryptoSigner.generate_ed25519(), CryptoSigner.generate_ed25519()
        sim.root.add_key(second.public_key, role)
        sim.root.add_key(third.public_key, role)
        bench.root()
        bench.publish()
        bench.refresh(refused="1/2 valid signatures")
        stranger = CryptoSigner.generate_ed25519()
        sim.add_signer(role, stranger)
        bench.refresh(refused="1/2 valid signatures")
        sim.add_signer(role, third)
        bench.refresh()
    sim.root.roles["root"].threshold = 2
    sim.root.add_key(CryptoSigner.generate_ed25519().public_key, "root")
    bench.root()
    bench.refresh(refused="1/2 valid signatures")


if __name__ == "__main__":
    client, folder, scenario = sys.argv[1:]
    globals()[scenario](Bench(client, folder))
