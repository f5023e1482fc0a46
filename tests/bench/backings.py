"""What a target gives of a disk: by io_uring, by threads, and tgt's asynchronous I/O."""

import json
import os
import subprocess

from lab import Unavailable, call, median, need, ratios, spread, table, tgt

SIZE = 256 << 20
IQN = "iqn.2026-01.netraid.test:disk"


def row(bench):
    """A loop device over a file in memory, without caches between; each target has one of its own."""
    subjects = {f"netraid, {way}": own(bench, way) for way in ("uring", "threads")}
    try:
        subjects["tgt, aio"] = tgt(bench, IQN, ["--bstype", "aio", "-b", disk(bench, "tgt")], {})
    except Unavailable as why:
        print(f"without tgt: {why}")
    for workload, depth in (("read-small", 1), ("read-small", 32), ("write-small", 32), ("read-large", 8), ("write-large", 8)):
        figures = bench.compare(f"backings {workload} {depth}", {
            name: (lambda server=server, uri=uri: member(bench, server, uri, workload, depth))
            for name, (server, uri) in subjects.items()})
        ours = figures["netraid, uring"]
        print(f"A disk (loop device over memory), {workload}, depth {depth}, our initiator\n")
        table(["target", "IOPS", "MB/s", "p99 us", "server CPU us", "its CPU over io_uring's", "rate, io_uring's over its"],
              [[name, f"{median([f['iops'] for f in fs]):.0f}", f"{median([f['mb_per_s'] for f in fs]):.0f}",
                f"{median([f['p99_us'] for f in fs]):.0f}", f"{median([f['server_us'] for f in fs]):.2f}",
                spread(ratios(ours, fs, "server_us")), spread(ratios(fs, ours, "iops"))]
               for name, fs in figures.items()])
    bench.stop([server for server, _ in subjects.values()])


def disk(bench, name):
    """A loop device of its own over bytes in memory."""
    image = bench.path(f"{name}.img")
    with open(image, "wb") as file:
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
    device = call([need("losetup"), "--find", "--show", "--direct-io=on", image]).strip()
    bench.at_end.append(lambda: subprocess.run(["losetup", "--detach", device], check=False))
    return device


def own(bench, way):
    process, ready = bench.start_netraid(
        "target", "--listen", "127.0.0.1:0", "--iqn", f"{IQN}-{way}", "--lun", f"block:{disk(bench, way)},io={way}")
    return process, ready["luns"][0]["uri"]


def member(bench, server, uri, workload, depth):
    done = bench.run([bench.netraid, "bench", "member", uri, "--only", workload, "--depth", str(depth), "--overwrite",
                      "--seconds", str(bench.seconds), "--rounds", "1", "--json", "--server-pid", str(server.pid)], [server])
    result = json.loads(done.pop("outputs")[0])["subjects"][0]["results"][0]
    gb = result["mb_per_s"] / 1e3 / result["iops"]
    return {**done, "iops": result["iops"], "mb_per_s": result["mb_per_s"], "p99_us": result["latency_us_p99"],
            "server_us": result["server_cpu_s_per_gb"] * gb * 1e6}
