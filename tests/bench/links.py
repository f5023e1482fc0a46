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
    run("ip", *args)


def run(*command):
    subprocess.run(command, check=True)


class Links:
    """Hosts 1 to `count`, each behind `links` links of `mbit` in both directions (None: not shaped). With
    `client`, host `count` + 1 is a client, whose link can be shaped, too; otherwise clients run beside the
    bridge, and only the others' links limit them."""

    def __init__(self, count, links=1, mbit=MBIT, client=False):
        self.count, self.links = count, links
        self.names = []
        self.bridges = []
        for link, net in enumerate(NETS[:links]):
            bridge = f"br{link}"
            ip("link", "add", bridge, "type", "bridge", "stp_state", "0", "forward_delay", "0")
            self.bridges.append(bridge)
            ip("address", "add", f"{net}.100/24", "dev", bridge)
            ip("link", "set", bridge, "up")
        for at in range(1, count + 1 + client):
            name = f"nrb{os.getpid()}-{at}"
            ip("netns", "add", name)
            self.names.append(name)
            ip("-n", name, "link", "set", "lo", "up")
            for link in range(links):
                self.connect(at, link)
        if mbit:
            self.shape(mbit)

    def connect(self, at, link):
        name, outside, inside = self.names[at - 1], f"v{at}-{link}", f"eth{link}"
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
        ip("-n", name, "address", "add", f"{self.address(at, link)}/24", "dev", inside)
        ip("-n", name, "link", "set", inside, "up")
        ip("link", "set", outside, "master", self.bridges[link], "up")

    def shape(self, mbit, clients_too=False):
        """Gives all links of servers, and the client's if it has one, another rate."""
        # 10 ms, but not more than one segment of 64 KiB with its headers: a link that was idle is hardly faster afterwards.
        burst = min(mbit * 1250, 72 << 10)
        # 50 ms, but not less than eight such segments: a shorter queue drops whole ones, and TCP waits for its timer.
        queue = max(mbit * 6250, 512 << 10) + burst
        rate = ["root", "tbf", "rate", f"{mbit}mbit", "burst", str(burst), "limit", str(queue)]
        for at in range(1, (len(self.names) if clients_too else self.count) + 1):
            for link in range(self.links):
                run("tc", "qdisc", "replace", "dev", f"v{at}-{link}", *rate)
                run("ip", "netns", "exec", self.names[at - 1], "tc", "qdisc", "replace", "dev", f"eth{link}", *rate)

    def unshape(self):
        """Takes the limits away."""
        for at, name in enumerate(self.names, 1):
            for link in range(self.links):
                for tool, device in (([], f"v{at}-{link}"), (["ip", "netns", "exec", name], f"eth{link}")):
                    subprocess.run([*tool, "tc", "qdisc", "delete", "dev", device, "root"],
                                   stderr=subprocess.DEVNULL, check=False)

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
