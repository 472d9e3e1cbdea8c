"""A slow, long and lossy link between two network namespaces, in user space.

`link.py PID RATE DELAY LOSS QUEUE SEED` makes a TUN device here (10.77.0.1) and one in the network
namespace of process PID (10.77.0.2) and carries packets between them: RATE bytes a second each way,
DELAY seconds each way, one packet of every 1/LOSS lost each way, QUEUE bytes waiting at most (what
comes on top is dropped, as a router does). It says `ready`, and then obeys its standard input, a word
a line: `cut` (nothing passes), `mend`, `count` (answers with packets and bytes that passed, each way),
`seed NUMBER` (from now on what gets lost is what that seed says). It ends with its standard input.

The kernel's netem would do the same and is not in every kernel; TUN is. Losses are spread: of each
row of 1/LOSS packets one is lost, and chance says which, so that two runs of a minute lose as much.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
HERE, THERE = "10.77.0.1", "10.77.0.2"


class Way:
    """One direction."""

    def __init__(self, out, rate, delay, loss, queue, seed):
        self.out, self.rate, self.delay, self.queue = out, rate, delay, queue
        self.row = round(1 / loss) if loss > 0 else 0
        self.free_at = 0.0
        self.packets = self.bytes = 0
        self.lose_anew(seed)

    def lose_anew(self, seed):
        self.random = random.Random(seed)
        self.position = self.victim = 0

    def is_lost(self):
        if not self.row:
            return False
        if self.position == 0:
            self.victim = self.random.randrange(self.row)
        lost = self.position == self.victim
        self.position = (self.position + 1) % self.row
        return lost

    def take(self, now, size):
        """When a packet of `size` bytes comes out at the other end; None if it never does."""
        waiting = max(0.0, self.free_at - now) * self.rate
        if waiting + size > self.queue:
            return None
        self.free_at = max(self.free_at, now) + size / self.rate
        self.packets += 1
        self.bytes += size
        return None if self.is_lost() else self.free_at + self.delay


def tun(name):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def set_up(name, own, other, inside):
    """Addresses and the route; the route says cubic, whatever the machine's default is."""
    for words in (
        f"link set {name} up mtu 1500 txqueuelen 500",
        f"address add {own}/32 dev {name}",
        f"route add {other}/32 dev {name} src {own} congctl cubic",
    ):
        subprocess.run([*inside, "ip", *words.split()], check=True)


def main():
    pid = sys.argv[1]
    rate, delay, loss, queue, seed = (float(word) for word in sys.argv[2:7])
    here, there = tun("sv-here"), tun("sv-there")
    subprocess.run(["ip", "link", "set", "sv-there", "netns", pid], check=True)
    set_up("sv-here", HERE, THERE, [])
    set_up("sv-there", THERE, HERE, ["nsenter", "-t", pid, "-n"])
    ways = {
        here: Way(there, rate, delay, loss, queue, int(seed)),
        there: Way(here, rate, delay, loss, queue, int(seed) + 1),
    }
    print("ready", flush=True)
    run(ways, ways[here], ways[there])


def run(ways, down, up):
    under_way, order, cut = [], 0, False
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, out, packet = heapq.heappop(under_way)
            if not cut:
                try:
                    os.write(out, packet)
                except OSError:
                    pass  # a device that is down takes nothing
        patience = under_way[0][0] - now if under_way else None
        ready, _, _ = select.select([*ways, 0], [], [], patience)
        for source in ready:
            if source == 0:
                said = os.read(0, 4096).decode()
                if not said:
                    return
                for words in map(str.split, said.splitlines()):
                    if words[0] == "count":
                        print(down.packets, down.bytes, up.packets, up.bytes, flush=True)
                    elif words[0] == "seed":
                        down.lose_anew(int(words[1]))
                        up.lose_anew(int(words[1]) + 1)
                    cut = {"cut": True, "mend": False}.get(words[0], cut)
                continue
            try:
                packet = os.read(source, 65536)
            except BlockingIOError:
                continue
            if cut or packet[0] >> 4 != 4:
                continue
            at = ways[source].take(time.monotonic(), len(packet))
            if at is not None:
                order += 1
                heapq.heappush(under_way, (at, order, ways[source].out, packet))


if __name__ == "__main__":
    main()
