"""Stands in for the worker: says what a training on two GPUs would, and computes nothing.

Arguments: what else to do, then those of a worker. The scripted NVML library shows its cards as busy while
this process lives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

SECONDS = 0.8
"""Long enough for several looks."""


def say(**message: object) -> None:
    os.write(1, f"{json.dumps(message)}\n".encode())


def result(addresses: list[str]) -> dict[str, object]:
    names = [f"GPU:{index}" for index in range(len(addresses))]
    return {
        "devices": [
            {
                "device": name,
                "description": f"device: {index}, name: Tesla P40, pci bus id: {addresses[index]}, compute ...",
                "alone_difference": 0.0,
                "alone_per_second": 1000.0,
                "peak_bytes": 1 << 20,
            }
            for index, name in enumerate(names)
        ],
        "replicas": [
            {"device": name, "steps": 2, "samples": 32, "computed_on": {name: 6}, "difference": 0.0} for name in names
        ],
        "max_param_difference": 0.0,
        "max_param_change": 1.0,
        "start_difference": 0.0,
        "replica_spread": 0.0,
        "together_per_second": 1900.0,
        "global_batch": 32,
    }


def main(behaviour: str, *_: str) -> None:
    addresses = os.environ["SCRIPTED_ADDRESSES"].split(",")
    say(phase="import")
    say(build={"version": "2.21.0", "cuda": True, "rocm": False})
    say(phase="devices")
    say(phase="train", step=1)
    time.sleep(SECONDS)
    match behaviour.partition(" "):
        case ("count", _, file):  # the link of a card makes errors meanwhile
            with open(file, "w") as counter:
                counter.write("BadTLP 512\nTOTAL_ERR_COR 512\n")
        case ("dies", _, _):
            os._exit(9)
        case ("leaves", _, file):  # a process of a group of its own, which no kill of ours reaches
            left = subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(60)"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            with open(file, "w") as number:
                number.write(f"{left.pid}\n")
    say(result=result(addresses))


main(*sys.argv[1:])
