"""Hosts behind shaped links, as network namespaces on a bridge. Used in a network namespace of its own."""

import os
import subprocess
import sys

OWN = "NETRAID_OWN_NET"
# Of the first links, and of the second ones.
NETS = ["10.213.79", "10.213.80"]
MBIT = 200


def enter():
    """Goes on in a network namespace of its own; does not return unless it is there already."""
    if OWN in os.environ:
        ip("link", "set", "lo", "up")
        return
    if os.geteuid() != 0:
        sys.exit("compare: rows with links need root, for network namespaces")
    os.environ[OWN] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])


def ip(*args):
    subprocess.run(["ip", *args], check=True)


class Links:
    """Hosts 1 to `count`, each behind `links` links of MBIT in both directions."""

    def __init__(self, count, links=1):
        self.names = []
        self.bridges = []
        for link, net in enumerate(NETS[:links]):
            bridge = f"br{link}"
            ip("link", "add", bridge, "type", "bridge", "stp_state", "0", "forward_delay", "0")
            self.bridges.append(bridge)
            ip("address", "add", f"{net}.100/24", "dev", bridge)
            ip("link", "set", bridge, "up")
        for at in range(1, count + 1):
            name = f"nrb{os.getpid()}-{at}"
            ip("netns", "add", name)
            self.names.append(name)
            ip("-n", name, "link", "set", "lo", "up")
            for link in range(links):
                self.connect(at, link)

    def connect(self, at, link):
        name, outside, inside = self.names[at - 1], f"v{at}-{link}", f"eth{link}"
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
        ip("-n", name, "address", "add", f"{self.address(at, link)}/24", "dev", inside)
        ip("-n", name, "link", "set", inside, "up")
        ip("link", "set", outside, "master", self.bridges[link], "up")
        # The burst has to hold a whole segment of 64 KiB.
        shape = ["root", "tbf", "rate", f"{MBIT}mbit", "burst", "256kb", "latency", "50ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", outside, *shape], check=True)
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", inside, *shape], check=True)

    def host(self, at):
        """What a command begins with that runs on a host."""
        return ["ip", "netns", "exec", self.names[at - 1]]

    def address(self, at, link=0):
        return f"{NETS[link]}.{at}"

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        for bridge in self.bridges:
            subprocess.run(["ip", "link", "delete", bridge], check=False)
