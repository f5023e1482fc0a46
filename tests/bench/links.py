"""Hosts behind shaped links, as network namespaces on a bridge. Used in a network namespace of its own."""

import os
import subprocess
import sys

OWN = "NETRAID_OWN_NET"
NET = "10.213.79"
MBIT = 200


def enter():
    """Goes on in a network namespace of its own; does not return unless it is there already."""
    if OWN in os.environ:
        return
    if os.geteuid() != 0:
        sys.exit("compare: rows with links need root, for network namespaces")
    os.environ[OWN] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])


def ip(*args):
    subprocess.run(["ip", *args], check=True)


class Links:
    """Hosts 1 to `count`, each behind a link of MBIT in both directions."""

    def __init__(self, count):
        self.names = []
        ip("link", "set", "lo", "up")
        ip("link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        ip("address", "add", f"{NET}.100/24", "dev", "br0")
        ip("link", "set", "br0", "up")
        for at in range(1, count + 1):
            name = f"nrb{os.getpid()}-{at}"
            ip("netns", "add", name)
            self.names.append(name)
            ip("link", "add", f"v{at}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", name, "address", "add", f"{NET}.{at}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("link", "set", f"v{at}", "master", "br0", "up")
            # The burst has to hold a whole segment of 64 KiB.
            shape = ["root", "tbf", "rate", f"{MBIT}mbit", "burst", "256kb", "latency", "50ms"]
            subprocess.run(["tc", "qdisc", "add", "dev", f"v{at}", *shape], check=True)
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *shape], check=True)

    def host(self, at):
        """What a command begins with that runs on a host."""
        return ["ip", "netns", "exec", self.names[at - 1]]

    def address(self, at):
        return f"{NET}.{at}"

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        subprocess.run(["ip", "link", "delete", "br0"], check=False)
