"""What the comparisons share: servers that are started and ended by their ids, processor time, rounds.

A round runs all contestants of a row one after the other; the next one begins with another of them. A
figure is compared within its round, and the median of these ratios counts.

A run is disturbed where processes that have no part in it took more than DISTURBED of the machine's
processors (what the hypervisor took away counts). It is repeated at most REPEATS times; all runs are kept
in the record, and the last one counts, disturbed or not.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

DISTURBED = 0.05
REPEATS = 2
READY_S = 20
TICK = os.sysconf("SC_CLK_TCK")
CPUS = os.cpu_count()


class Unavailable(Exception):
    """A contestant cannot run here."""


def cpu_s(pid):
    """Processor seconds, user and system, of a process with all its threads."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def user_s(pid):
    """The part of these in which it was not in the kernel."""
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[11]) / TICK


def busy_s():
    """Processor seconds of the whole machine, and what its host took away."""
    with open("/proc/stat") as stat:
        fields = [int(field) for field in stat.readline().split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / TICK


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def need(tool):
    found = shutil.which(tool)
    if not found:
        raise Unavailable(f"{tool} is not installed")
    return found


class Bench:
    """The directory, the servers and the record of one call."""

    def __init__(self, netraid, rounds, seconds):
        self.netraid, self.rounds, self.seconds = netraid, rounds, seconds
        self.directory = tempfile.mkdtemp(prefix="netraid-compare.", dir="/dev/shm")
        self.servers, self.at_end, self.record = [], [], []
        # Whoever ends a benchmark has its servers and its network ended, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def path(self, name):
        return os.path.join(self.directory, name)

    def start(self, command, env=None):
        """Starts a server: its process, with its standard output."""
        log = open(self.path(f"{len(self.servers)}.log"), "w")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, **(env or {})})
        self.servers.append(process)
        return process

    def start_netraid(self, *command, tool=()):
        """Starts one of ours, under a tool: its process, and the document that says it is ready."""
        process = self.start([*tool, self.netraid, *command, "--json"])
        line = process.stdout.readline()
        if not line:
            with open(self.path(f"{len(self.servers) - 1}.log")) as log:
                raise Unavailable(f"netraid {command[0]}: {log.read().strip()}")
        return process, json.loads(line)

    def await_port(self, port, process):
        until = time.monotonic() + READY_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise Unavailable(f"{process.args[0]} does not listen on port {port}")
                time.sleep(0.02)

    def await_path(self, path, process):
        until = time.monotonic() + READY_S
        while not os.path.exists(path):
            if process.poll() is not None or time.monotonic() > until:
                raise Unavailable(f"{process.args[0]} does not make {path}")
            time.sleep(0.02)

    def stop(self, processes):
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.servers = [server for server in self.servers if server not in processes]

    def end_row(self):
        """Ends what a row started: the next one finds nothing of it."""
        for undo in reversed(self.at_end):
            undo()
        self.at_end = []
        self.stop(list(self.servers))

    def close(self):
        self.end_row()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, command, servers=(), count=1, env=None):
        """Runs so many clients at a time until all have ended: their outputs, the processor seconds of
        them and of the servers, the seconds that it took, and the part of the machine that others used."""
        for repeat in range(REPEATS + 1):
            result = self.run_once(command, servers, count, env)
            if result["others"] <= DISTURBED or repeat == REPEATS:
                return result
            self.keep(command[0], {**result, "outputs": None, "repeated": True})

    def run_once(self, command, servers=(), count=1, env=None):
        """The same, never repeated."""
        before = [(cpu_s(server.pid), user_s(server.pid)) for server in servers]
        own, busy, began = client_s(), busy_s(), time.monotonic()
        clients = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, **(env or {})})
            for _ in range(count)
        ]
        ends = [client.communicate() for client in clients]
        took = time.monotonic() - began
        for client, (out, err) in zip(clients, ends):
            if client.returncode:
                raise RuntimeError(f"{' '.join(command)}: {err.strip() or out.strip()}")
        servers_s = [cpu_s(server.pid) - was for server, (was, _) in zip(servers, before)]
        users_s = [user_s(server.pid) - was for server, (_, was) in zip(servers, before)]
        clients_s = client_s() - own
        others = max(0.0, busy_s() - busy - clients_s - sum(servers_s)) / (took * CPUS)
        return {
            "outputs": [out for out, _ in ends], "client_s": clients_s,
            "server_s": sum(servers_s), "server_user_s": sum(users_s), "seconds": took, "others": others,
        }

    def keep(self, what, figures):
        self.record.append({"what": what, **figures})

    def compare(self, row, contestants, may_fail=()):
        """Runs contestants in turns: the figures of each round by contestant. Of those that may fail, one that does is
        left out, and named."""
        figures = {name: [] for name in contestants}
        names = list(contestants)
        for at in range(self.rounds):
            turn = at % len(names)
            for name in [name for name in names[turn:] + names[:turn] if name in figures]:
                say(f"{row}: round {at + 1} of {self.rounds}, {name}")
                try:
                    figure = contestants[name]()
                except RuntimeError as why:
                    if name not in may_fail:
                        raise
                    print(f"{name} is left out of '{row}': {why}")
                    del figures[name]
                    continue
                self.keep(f"{row}: {name}", {"round": at + 1, **figure})
                figures[name].append(figure)
        return figures


def call(command):
    """What a command prints."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def client_s():
    """Processor seconds of children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def say(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def clear():
    say("")


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def ratios(ours, theirs, key):
    """Theirs over ours, by round."""
    return [their[key] / our[key] for our, their in zip(ours, theirs)]


def spread(values, digits=2):
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(head, lines):
    clear()
    widths = [max(len(str(line[at])) for line in [head, *lines]) for at in range(len(head))]
    def show(line):
        return "| " + " | ".join(str(cell).ljust(width) for cell, width in zip(line, widths)) + " |"
    print(show(head))
    print("| " + " | ".join("-" * width for width in widths) + " |")
    for line in lines:
        print(show(line))
    print(flush=True)


def passes(bench, *options):
    """GB a second of one processor by kind of work and number of sources, at the size that is best: no array could know which is."""
    done = bench.run([bench.netraid, "bench", "parity", *options, "--json"])
    series = json.loads(done["outputs"][0])["series"]
    return {(one["work"], one["sources"]): max(point["gb_per_s"] for point in one["points"])
            for one in series if one["processors"] == 1}


def tgt(bench, iqn, unit, parameters):
    """tgt with one logical unit, made by these options: its process, and the unit's address."""
    port, socket = free_port(), bench.path(f"tgt-{len(bench.servers)}")
    env = {"TGT_IPC_SOCKET": socket}
    process = bench.start([need("tgtd"), "-f", "-C", "0", "--iscsi", f"portal=127.0.0.1:{port}"], env)
    bench.await_port(port, process)

    def admin(*args):
        done = subprocess.run([need("tgtadm"), "-C", "0", "--lld", "iscsi", *args],
                              env={**os.environ, **env}, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"tgtadm {' '.join(args)}: {done.stderr.strip()}")

    admin("--op", "new", "--mode", "target", "--tid", "1", "-T", iqn)
    admin("--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", *unit)
    admin("--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL")
    for name, value in parameters.items():
        admin("--op", "update", "--mode", "target", "--tid", "1", "--name", name, "--value", str(value))
    return process, f"iscsi://127.0.0.1:{port}/{iqn}/1"
