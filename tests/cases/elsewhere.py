"""Cases that a probe cannot see: what answers them instead, or why nothing does."""

from __future__ import annotations

from cases import ELSEWHERE, THREADS

ELSEWHERE.update(
    {
        # number: (title, thread, what answers it, how or why not)
        "C003": (
            "A P40 stops an X99 board from starting: its firmware has no Above 4G switch",
            THREADS + "JingShing/How-to-use-tesla-p40/issues/2",
            "advise",
            "Nothing boots, so nothing can be probed. Advise asks whether the firmware has the switch, and says that "
            "cards with a large BAR get no address without it; GeForce cards with 256 MiB pass.",
        ),
        "C010": (
            "R210 II halts with any card that carries UEFI firmware",
            "https://winraid.level1techs.com/t/dell-server-unable-to-post-with-uefi-gpus/34323",
            "nothing",
            "It halts before any system starts, and the catalog has no PowerEdge older than the R720 and the T620.",
        ),
        "C011": (
            "X10DRi-LN4+ waits for a monitor at code A9",
            "https://www.schakko.de/2019/08/21/super-micro-x10-hangs-with-pei-intel-reference-code-execution-a9/",
            "nothing",
            "It hangs before any system starts. The catalog names the primary display setting of the 4028GR family; "
            "this board is not in it.",
        ),
        "C014": (
            "X9DRH-iTF offers no bifurcation",
            "https://winraid.level1techs.com/t/problem-bifurcation-choices-on-supermicro-x9drh-itf/99959/9",
            "nothing",
            "The second card of a passive riser leaves no trace, and the catalog does not hold which slots can be "
            "split. Probe counts one card too few, and link-width-reduced names bifurcation for a split slot.",
        ),
        "C051": (
            "A tool stumbles over str after an upgrade of pynvml, which used to give bytes",
            THREADS + "rossumai/nvgpu/issues/29",
            "test",
            "Text from NVML is taken as bytes and as str: tests/readers/test_nvml_sweep.py gives both through the real "
            "pynvml.",
        ),
        "C053": (
            "A process ends between two looks, and the tool trips over it",
            THREADS + "wookayin/gpustat/issues/16",
            "test",
            "Processes are shown by the number that NVML gives and never looked up, so that none can vanish: "
            "tests/readers/test_nvml.py.",
        ),
        "C058": (
            "GB10: the total of the card's memory is wrong, for it has none of its own",
            THREADS + "Syllo/nvtop/issues/449",
            "nothing",
            "A probe adds nothing up: where NVML does not know a card's memory it is left open with the reason, and "
            "the machine's memory is told apart from it. What is free just now is a monitor's matter.",
        ),
        "C067": (
            "Memory errors that rise only under load, and a health check that hangs then",
            THREADS + "NVIDIA/NVSentinel/issues/1748",
            "smoke",
            "NVML's counters of the card's memory are read all through the training, so that errors which come only "
            "under load are told by card (memory-errors-in-training); the watch runs in a process of its own, and one "
            "that hangs is told, ended, and keeps nobody waiting.",
        ),
        "C075": (
            "What Dell's fans do with a card of another maker differs by generation",
            THREADS + "tigerblue77/Dell_iDRAC_fan_controller_Docker/issues/52",
            "test",
            "Probe only reads: test_nothing_but_reading_is_asked holds the list of what ipmitool is asked, and a BMC "
            "gets nothing but GET. Whether a chassis cools a card is advise's question.",
        ),
        "C089": (
            "R740: double-width cards only with riser configuration 4",
            "https://www.easymanua.ls/dell/emc-poweredge-r740/manual?p=106",
            "advise",
            "The catalog has the R740's riser configurations: number 4 takes three double-wide cards, two beside the "
            "battery of an NVDIMM, and the others none. Stated with --riser it is judged, else it is asked for.",
        ),
        "C108": (
            "NVML's first card is TensorFlow's second",
            THREADS + "tensorflow/tensorflow/issues/32881",
            "smoke",
            "The child runs with CUDA_DEVICE_ORDER=PCI_BUS_ID, and every card is named by its PCI address, never by "
            "an index.",
        ),
        "C110": (
            "A diagnosis skips consumer cards, and passes after an allocation has failed",
            THREADS + "NVIDIA/DCGM/issues/55",
            "smoke",
            "No list of allowed cards: a card that took no part fails, a training that did not run is not-run with "
            "its reason, and a hang ends at a deadline.",
        ),
        "C117": (
            "Dual X99 board starts with three cards and not with four",
            THREADS + "jwagnervaz/DUAL-CPU-ZX-DU99D4-V1.31-BIOSMOD/issues/20",
            "nothing",
            "With four cards it does not start, and the thread is open. With three, probe --expect-gpus 4 after a "
            "legacy boot names the missing window above 4 GiB as possible.",
        ),
        "C119": (
            "Three Tesla T10 stop a Z170 board although Above 4G is on",
            THREADS + "xCuri0/ReBarUEFI/issues/398",
            "advise",
            "Nothing boots. Advise adds up the BARs and asks how large the board's window is, not only whether the "
            "switch is on.",
        ),
        "C120": (
            "Eight Vega 56 hang the boot, each of them starts alone",
            THREADS + "ROCm/amdgpu/issues/62",
            "nothing",
            "It hangs before a probe can run, and the thread is open. Saved probes with fewer cards can be compared.",
        ),
        "C121": (
            "More than about 13 VGA-class cards do not start, compute-class cards do",
            THREADS + "ROCm/legacy-rocm-build/issues/295",
            "nothing",
            "It does not start. Where it starts with cards missing, bus-resources-exhausted names the class as "
            "possible from ten cards on.",
        ),
        "C122": (
            "X79 board: black screen or d4 with Above 4G on",
            THREADS + "xCuri0/ReBarUEFI/issues/48",
            "nothing",
            "It does not start, and this board is not in the catalog: its one X79 board is of another maker.",
        ),
        "C027": (
            "Some pairs of four mixed cards train, the others freeze",
            THREADS + "tensorflow/tensorflow/issues/22463",
            "smoke",
            "A freeze shows only in training: each card runs by itself first, then all together, and a hang there "
            "names NCCL_P2P_DISABLE=1 as the test. Pairs are not tried one by one yet. What a probe can see of it, "
            "the IOMMU and redirects of switches, is peer-access-blocked.",
        ),
        "C097": (
            "MirroredStrategy on Windows: no kernel for NcclAllReduce",
            THREADS + "tensorflow/tensorflow/issues/33656",
            "nothing",
            "There is no NCCL on Windows, and neither probe nor smoke runs there; another cross-device operation does.",
        ),
        "C099": (
            "Four GPUs of one card: NCCL starts and no epoch ends",
            THREADS + "tensorflow/tensorflow/issues/94650",
            "smoke",
            "The child gives a sign of life with every step, so that a first step that never ends is smoke-timeout; "
            "the settings that may block peer access are peer-access-blocked.",
        ),
        "C111": (
            "V100 fails a bus test of DCGM under driver 580",
            THREADS + "NVIDIA/DCGM/issues/254",
            "advise",
            "The thread is open. Advise names 580 as the last branch for Volta and the newest TensorFlow wheel with "
            "machine code for it; a driver beyond 580 is driver-dropped-gpu.",
        ),
        "C112": (
            "Ada and Blackwell together: CUDA does not start under a patched driver",
            THREADS + "aikitoria/open-gpu-kernel-modules/issues/26",
            "nothing",
            "The thread is open. NVML lists all four cards, so a probe finds nothing. Only trying the cards in groups "
            "tells which go together, by hand with CUDA_VISIBLE_DEVICES.",
        ),
        "C114": (
            "Windows: one of two mixed cards until the driver is installed anew",
            THREADS + "lmstudio-ai/lmstudio-bug-tracker/issues/2176",
            "nothing",
            "On Windows a probe says that it cannot look, and ends with code 3. The codes of the device manager (10, "
            "12, 43) are not read.",
        ),
        "C136": (
            "JSON made by hand lacks commas",
            THREADS + "Syllo/nvtop/issues/438",
            "test",
            "Every document comes from a model with a schema and is parsed again in tests/cli/test_cli.py; nothing "
            "else stands on stdout.",
        ),
        "C137": (
            "The tool that looks for what is wrong with torch needs torch",
            THREADS + "pytorch/pytorch/issues/47397",
            "test",
            "Neither probe nor advise imports tensorflow; only the child of the training does, and its failure is a "
            "finding: tests/test_invariants.py.",
        ),
        "C029": (
            "MirroredStrategy hangs in the optimizer of Keras 3",
            THREADS + "tensorflow/tensorflow/issues/72686",
            "smoke",
            "The training uses no Keras: plain variables, a step per replica and a sum, so that a fault of an "
            "optimizer is not taken for one of a card. tests/smoke/test_smoke_training.py.",
        ),
        "C033": (
            "A library that is called missing is there and lacks another one",
            THREADS + "NVIDIA/tensorflow/issues/110",
            "test",
            "Only TensorFlow's log tells it. From the log, tensorflow-cuda-libraries-missing names the library behind "
            "dlerror: tests/rules/test_tensorflow_cuda_libraries_missing.py.",
        ),
        "C035": (
            "A GTX 1050 beside an RTX 2070 never becomes a device",
            THREADS + "tensorflow/tensorflow/issues/32489",
            "test",
            "Only TensorFlow's log tells it. From the log, tensorflow-ignores-gpu names the card, the variable and "
            "what an unequal pair costs: tests/rules/test_tensorflow_ignores_gpu.py.",
        ),
        "C040": (
            "TensorFlow from conda does not find libdevice",
            THREADS + "conda-forge/tensorflow-feedstock/issues/420",
            "test",
            "Only the log tells it. From the log, tensorflow-cuda-libraries-missing names XLA_FLAGS and conda's "
            "folder: tests/rules/test_tensorflow_cuda_libraries_missing.py.",
        ),
        "C041": (
            "MNIST takes longer on two cards than on one",
            THREADS + "tensorflow/tensorflow/issues/35095",
            "smoke",
            "Efficiency is reported and never fails a training: the model of the smoke training proves that cards "
            "work, not how well a program scales.",
        ),
        "C042": (
            "Two RTX 3090 are no faster than two RTX 2060",
            THREADS + "tensorflow/tensorflow/issues/46831",
            "smoke",
            "The thread is open. The training makes its data in memory, so that no input holds the cards back, and "
            "gives each card's speed alone and together.",
        ),
        "C044": (
            "A program for one card takes the memory of both",
            THREADS + "tensorflow/tensorflow/issues/35298",
            "smoke",
            "That is how TensorFlow begins. The training lets memory grow, so that what NVML shows on a card is what "
            "was used there; used memory alone never proves a card.",
        ),
        "C045": (
            "Training on two hosts runs out of memory with 2 KiB wanted",
            THREADS + "tensorflow/tensorflow/issues/39110",
            "nothing",
            "The training stays on one host. There it lets memory grow, which leaves room for the exchange.",
        ),
        "C047": (
            "Two hosts wait for each other behind a firewall",
            THREADS + "tensorflow/tensorflow/issues/46931",
            "nothing",
            "The training stays on one host; nothing is sent to another.",
        ),
        "C048": (
            "The resolver for Slurm counts the cards of the job, not of the task",
            THREADS + "tensorflow/tensorflow/issues/36094",
            "smoke",
            "With --cluster slurm it derives TF_CONFIG itself, from the variables of the step and not of the job, and "
            "shows both; two tasks that would share a card do not train: tests/smoke/test_smoke_cluster.py.",
        ),
        "C095": (
            "With more than ten GPUs some get no device: CUDA_ERROR_TOO_MANY_PEERS",
            THREADS + "tensorflow/tensorflow/issues/42039",
            "test",
            "Only TensorFlow's log tells it. From the log, peer-limit-exceeded names the limit, not the hardware: "
            "tests/rules/test_peer_limit_exceeded.py.",
        ),
        "C096": (
            "Ten RTX A5000 are listed, the training uses one",
            THREADS + "tensorflow/tensorflow/issues/58935",
            "smoke",
            "The thread is open. The training has every card take part and proves it; if it passes, the program of "
            "the owner placed its work on one.",
        ),
        "C104": (
            "Cards vanish from cloud runners now and then",
            THREADS + "pytorch/pytorch/issues/87890",
            "smoke",
            "Exit codes tell a fault (1) from what could not be looked at (3): a runner with code 3 is worth another "
            "try, one with code 1 is not.",
        ),
        "C115": (
            "The first exchange fails inside Slurm with a container",
            THREADS + "NVIDIA/pyxis/issues/60",
            "nothing",
            "The thread is open, and shared memory and locked memory are not read. The training takes no cluster from "
            "the environment: TF_CONFIG is not handed on.",
        ),
    }
)
