"""GlusterFS disperse 4+1 against level 5 of five, both mounted through FUSE, one fio job."""

import json
import os
import subprocess
import time
from types import SimpleNamespace

from lab import CPUS, READY_S, Unavailable, call, median, need, passes, ratios, spread, table

# GlusterFS takes no bricks on 127.0.0.1.
ADDRESS = "10.213.81.1"
NAME = "compare"
SIZE = 256 << 20
VOLFILE = """volume management
    type mgmt/glusterd
    option working-directory {directory}/glusterd
    option transport-type socket
    option transport.socket.listen-port 24007
    option glusterd-sockfile {directory}/glusterd.socket
    option run-directory {directory}
end-volume
"""


def row(bench):
    """All bricks and targets are in memory, and reached over loopback."""
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
    own, theirs, alone = netraid(bench), glusterfs(bench), memory(bench)
    for mounted in (own, theirs, alone):
        fio(bench, mounted, "write", "1M", 1)
    lines, bounds = [], []
    cases = [(depth, *case) for depth in (1, 16)
             for case in (("write", "1M"), ("read", "1M"), ("randwrite", "4k"), ("randread", "4k"))]
    for depth, workload, block in cases:
        figures = bench.compare(f"gluster {workload} {block} {depth}", {
            "netraid": lambda: fio(bench, own, workload, block, depth),
            "GlusterFS": lambda: fio(bench, theirs, workload, block, depth),
            "memory": lambda: fio(bench, alone, workload, block, depth),
            "on the wire": lambda: on_the_wire(bench, workload, block, depth),
        })
        bounds.append(bound(f"{workload} {block}, {depth} at a time", depth, figures["netraid"], figures.pop("memory"),
                            figures.pop("on the wire"), figures["GlusterFS"]))
        ours = figures["netraid"]
        for name, fs in figures.items():
            lines.append([f"{workload} {block}, {depth} at a time", name, f"{median([f['mb_per_s'] for f in fs]):.1f}",
                          f"{median([f['iops'] for f in fs]):.0f}", f"{median([f['cpu_s_per_gb'] for f in fs]):.2f}",
                          spread(ratios(fs, ours, "iops"), 1), spread(ratios(ours, fs, "cpu_s_per_gb"), 1)])
    print("4+1 over loopback through FUSE, one fio job around the page cache\n")
    table(["workload", "what", "MB/s", "IOPS", "CPU s/GB", "rate, ours over its", "its CPU over ours"], lines)
    print("The bound: memory of one process through FUSE, and what 4+1 sends and computes: bare requests over TCP with the same bytes "
          "and, of writes of whole stripes, with their check data (1.25) and a record of 4 KiB after them, one pass for checksums and "
          "one for parity. One at a time it is all of that one after the other; many at a time what it costs two processors\n")
    table(["workload", "memory through FUSE, us", "bare TCP, us", "passes, us", "bound, MB/s", "bound over GlusterFS",
           "ours over the bound"], bounds)


def bound(name, depth, own, memory, wire, theirs):
    """A line: what a request takes in each part, and the rate that all allow beside GlusterFS's and ours."""
    by, at_once = ("us", 1) if depth == 1 else ("cpu_us", CPUS)
    parts = [(one[by], other[by], other["passes_us"]) for one, other in zip(memory, wire)]
    rates = [at_once * one["bytes"] / sum(part) for one, part in zip(memory, parts)]
    return [name, *(f"{median(column):.0f}" for column in zip(*parts)), f"{median(rates):.0f}",
            spread([rate / fs["mb_per_s"] for rate, fs in zip(rates, theirs)], 1),
            spread([fs["mb_per_s"] / rate for rate, fs in zip(rates, own)])]


def on_the_wire(bench, workload, block, depth):
    """Microseconds and processor microseconds of what a request sends between hosts, and of passes over its bytes."""
    size, writes = {"1M": 1 << 20, "4k": 4096}[block], "write" in workload
    is_whole = writes and block == "1M"
    sizes = [size, 4096] if is_whole else [size]
    done = bench.run([bench.netraid, "bench", "transport", *(f"--requests={one}" for one in sizes), "--depth", str(depth),
                      "--rounds", "1", "--seconds", str(min(bench.seconds, 2)), "--json"])
    raw = {point["request_bytes"]: point["raw"][0] for point in json.loads(done.pop("outputs")[0])["points"]
           if point["write"] == writes}
    took = {one: {"us": one / raw[one]["mb_per_s"], "cpu_us": raw[one]["client_us"] + raw[one]["server_us"]} for one in sizes}
    rate = passes(bench, "--milliseconds", "1")
    if not is_whole:
        return {**done, **took[size], "passes_us": size / 1e3 / rate["checksum", 1]}
    sent = {by: 1.25 * took[size][by] + took[4096][by] for by in ("us", "cpu_us")}
    return {**done, **sent, "passes_us": size / 1e3 * (1 / rate["checksum", 1] + 1 / rate["xor", 4])}


def fio(bench, mounted, workload, block, depth):
    """Rate, and processor seconds a GB of all processes, of one fio job."""
    file, servers = mounted
    done = bench.run([need("fio"), "--name=x", "--ioengine=libaio", f"--iodepth={depth}",
                      f"--filename={file}", f"--rw={workload}",
                      f"--bs={block}", "--direct=1", f"--size={SIZE}", "--time_based", "--end_fsync=1",
                      f"--runtime={bench.seconds}", "--output-format=json", "--norandommap", "--randrepeat=0"],
                     servers())
    out = done.pop("outputs")[0]
    job = json.loads(out[out.index("{"):])["jobs"][0]
    side = job["read" if "read" in workload else "write"]
    cpu_s = done["server_s"] + done["client_s"]
    size = side["io_bytes"] / side["total_ios"]
    return {**done, "iops": side["iops"], "mb_per_s": side["bw_bytes"] / 1e6, "bytes": size,
            "us": 1e6 / side["iops"], "cpu_us": cpu_s / side["total_ios"] * 1e6,
            "cpu_s_per_gb": cpu_s / (side["io_bytes"] / 1e9)}


def memory(bench):
    """A file that is memory of one process, and that process: FUSE and nothing else."""
    place = bench.path("memory.mount")
    os.mkdir(place)
    server, ready = bench.start_netraid("bench", "export", "--fuse", place, "--size", str(SIZE))
    return ready["path"], lambda: [server]


def netraid(bench):
    """A file of the size of an array, and who serves it."""
    servers, uris = [], []
    for at in range(5):
        process, ready = bench.start_netraid(
            "target", "--listen", "127.0.0.1:0", "--iqn", f"iqn.2026-01.netraid.test:g{at}", "--lun", "ram:128MiB")
        servers.append(process)
        uris.append(ready["luns"][0]["uri"])
    call([bench.netraid, "create", NAME, "--level", "5", *uris])
    place = bench.path("netraid.mount")
    os.mkdir(place)
    engine, ready = bench.start_netraid("attach", "--fuse", place, *uris)
    servers.append(engine)
    return ready["exports"][0]["path"], lambda: servers


def glusterfs(bench):
    """A file on a dispersed volume of five bricks, and who serves it."""
    need("glusterd")
    directory = bench.path("gluster")
    for part in ("", "glusterd", "log", "mount", *(f"brick{at}" for at in range(5))):
        os.makedirs(os.path.join(directory, part), exist_ok=True)
    volfile = os.path.join(directory, "glusterd.vol")
    with open(volfile, "w") as file:
        file.write(VOLFILE.format(directory=directory))
    pid_file = os.path.join(directory, "glusterd.pid")
    daemon = bench.start(["glusterd", "--no-daemon", f"--volfile={volfile}", f"--pid-file={pid_file}",
                          f"--log-file={directory}/log/glusterd.log"])
    socket = os.path.join(directory, "glusterd.socket")
    bench.await_path(socket, daemon)

    def admin(*args):
        until = time.monotonic() + READY_S
        command = ["gluster", "--mode=script", f"--glusterd-sock={socket}", f"--log-file={directory}/log/cli.log", *args]
        while True:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                return
            if time.monotonic() > until:
                raise Unavailable(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
            time.sleep(0.2)

    bricks = [f"{ADDRESS}:{directory}/brick{at}" for at in range(5)]
    admin("volume", "create", NAME, "disperse", "5", "redundancy", "1", *bricks, "force")
    admin("volume", "start", NAME)
    bench.at_end.append(lambda: admin("volume", "stop", NAME, "force"))
    place = os.path.join(directory, "mount")
    client = bench.start([need("glusterfs"), "--no-daemon", f"--volfile-server={ADDRESS}", f"--volfile-id={NAME}",
                          f"--log-file={directory}/log/client.log", place])
    until = time.monotonic() + READY_S
    while not os.path.ismount(place):
        if client.poll() is not None or time.monotonic() > until:
            raise Unavailable("glusterfs does not mount its volume")
        time.sleep(0.05)
    bench.at_end.append(lambda: subprocess.run(["umount", place], check=False))
    return os.path.join(place, "file"), lambda: processes_of(directory)


def processes_of(directory):
    """Processes that were started for this directory, bricks and helpers with them."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as line:
                words = line.read().split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]).startswith("gluster") and any(directory in word for word in words):
            found.append(SimpleNamespace(pid=int(pid)))
    return found
