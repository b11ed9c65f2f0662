"""nvidia-smi's output in its many forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.dumps import nvidia_smi
from gpucheck.facts import Nvml, NvmlGpu, Parts

TABLE = """\
Tue Jul 22 20:50:11 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 575.51.03              Driver Version: 575.51.03      CUDA Version: 12.9     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  Tesla P40                      On  |   00000000:04:00.0 Off |                    0 |
| N/A   31C    P8              9W /  250W |    1024MiB /  23040MiB |      7%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-PCIE-40GB-L...     Off |   00000000:82:00.0 Off |                    0 |
|ERR!  ERR!  ERR!             N/A /  N/A  |       2MiB /  40960MiB |     ERR!     Default |
|                                         |                        |             Enabled* |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A            1234      C   python                                1000MiB |
|    0   N/A  N/A             999      G   /usr/lib/xorg/Xorg                      24MiB |
+-----------------------------------------------------------------------------------------+
"""

OLD_TABLE = """\
+------------------------------------------------------+
| NVIDIA-SMI 352.39     Driver Version: 352.39         |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla K80           Off  | 0000:05:00.0     Off |                    0 |
| N/A   33C    P8    26W / 149W |     55MiB / 11519MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""

LOG = """\

==============NVSMI LOG==============

Timestamp                                 : Fri Nov 11 12:24:02 2022
Driver Version                            : 550.54.14
CUDA Version                              : 12.4

Attached GPUs                             : 2
GPU 00000000:04:00.0
    Product Name                          : Tesla P40
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : N/A
        Pending                           : N/A
    GPU UUID                              : GPU-00000000-1b38-4000-8000-000000000001
    Minor Number                          : 3
    VBIOS Version                         : 86.02.23.00.01
    PCI
        Bus                               : 0x04
        Device Id                         : 0x1B3810DE
        Bus Id                            : 00000000:04:00.0
        Sub System Id                     : 0x11D910DE
        GPU Link Info
            PCIe Generation
                Max                       : 3
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 5
    Performance State                     : P8
    FB Memory Usage
        Total                             : 23040 MiB
        Reserved                          : 300 MiB
        Used                              : 10 MiB
    BAR1 Memory Usage
        Total                             : 32768 MiB
    Utilization
        Gpu                               : 0 %
        Memory                            : 4 %
    ECC Mode
        Current                           : Enabled
        Pending                           : Disabled
    Temperature
        GPU Current Temp                  : 31 C
    GPU Power Readings
        Average Power Draw                : 9.90 W
        Instantaneous Power Draw          : 9.70 W
        Current Power Limit               : 200.00 W
        Default Power Limit               : 250.00 W
        Max Power Limit                   : 251.00 W
    Module Power Readings
        Power Draw                        : 77.00 W
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 5578
            Type                          : C
            Name                          : python
        Process ID                        : 999
            Type                          : G

GPU 00000000:82:00.0
    Product Name                          : GPU is lost
    GPU UUID                              : Unknown Error
    FB Memory Usage
        Total                             : GPU is lost
    Processes                             : None

"""

XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">
<nvidia_smi_log>
    <driver_version>515.105.01</driver_version>
    <cuda_version>11.7</cuda_version>
    <attached_gpus>1</attached_gpus>
    <gpu id="00000000:04:00.0">
        <product_name>Tesla T4</product_name>
        <mig_devices><mig_device><fb_memory_usage><total>1 MiB</total></fb_memory_usage></mig_device></mig_devices>
        <pci>
            <pci_device_id>1EB810DE</pci_device_id>
            <pci_gpu_link_info>
                <pcie_gen><max_link_gen>3</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
                <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
            </pci_gpu_link_info>
        </pci>
        <fb_memory_usage><total>15360 MiB</total><used>1032 MiB</used></fb_memory_usage>
        <power_readings><power_draw>26.78 W</power_draw><enforced_power_limit>60.00 W</enforced_power_limit>
            <power_limit>70.00 W</power_limit></power_readings>
        <processes>
            <process_info><pid>999</pid><type>G</type></process_info>
            <process_info><pid>5762</pid><type>C</type></process_info>
        </processes>
    </gpu>
</nvidia_smi_log>
"""

CSV = """\
index, name, pci.bus_id, pcie.link.width.current, memory.total [MiB], power.draw [W], ecc.mode.current, compute_cap
0, Tesla P40, 00000000:04:00.0, 16, 23040 MiB, 9.70 W, Enabled, 6.1
1, [GPU is lost], 00000000:82:00.0, [GPU is lost], [Unknown Error], [N/A], [Not Supported], [N/A]
"""

MATRIX = """\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\t0-15\t0
GPU1\tNV4\t X \tSOC\t0-15\t0
mlx5_0\tSYS\tSYS\t X \t
"""


def nvml(text: str) -> Nvml:
    found = nvidia_smi.parse(text).nvml
    assert found is not None
    return found


def cards(text: str) -> tuple[NvmlGpu, ...]:
    found = nvml(text).gpus
    assert found is not None
    return found


def gaps(parts: Parts) -> dict[str, str]:
    return {gap.fact: gap.reason for gap in parts.gaps}


def test_table() -> None:
    found = nvml(TABLE)
    assert (found.status, found.driver_version, found.cuda_version, found.complete) == (
        "ok",
        "575.51.03",
        "12.9",
        True,
    )
    first, second = cards(TABLE)
    assert (first.index, first.address, first.name) == (0, "0000:04:00.0", "Tesla P40")
    assert (first.memory_used_bytes, first.memory_total_bytes) == (1024 << 20, 23040 << 20)
    assert (first.temperature_c, first.performance_state, first.utilization_percent) == (31, 8, 7)
    assert (first.power_watts, first.power_limit_watts, first.persistence) == (9.0, 250.0, True)
    assert (first.processes, second.processes) == ((1234,), ())
    assert (second.address, second.persistence, second.mig_enabled) == ("0000:82:00.0", False, True)
    # The name is cut to its column, and ERR! is no number.
    assert (second.name, second.temperature_c, second.power_watts, second.performance_state) == (None, None, None, None)
    assert first.link.width is None
    assert "link.width" in next(gap.how for gap in nvidia_smi.parse(TABLE).gaps if gap.fact == "nvml.gpus")


def test_old_table() -> None:
    (card,) = cards(OLD_TABLE)
    assert (card.address, card.name, card.memory_total_bytes) == ("0000:05:00.0", "Tesla K80", 11519 << 20)
    assert (card.temperature_c, card.power_limit_watts, card.processes) == (33, 149.0, None)
    assert nvml(OLD_TABLE).driver_version == "352.39"


@pytest.mark.parametrize(
    "cut",
    [
        TABLE[: TABLE.index("|ERR!")],  # within the second card
        "\n".join(line for line in TABLE.splitlines() if "P40" not in line),  # the first is gone
    ],
)
def test_a_table_that_may_lack_cards_is_not_complete(cut: str) -> None:
    assert not nvml(cut).complete
    assert gaps(nvidia_smi.parse(cut))["nvml.complete"] == "not-in-input"


def test_a_row_with_an_empty_cell_is_read_as_far_as_it_goes() -> None:
    row = "| N/A   31C    P8              9W /  250W |    1024MiB /  23040MiB |      7%      Default |"
    for odd in ("|| 1024MiB /  23040MiB | 7% |", "| 31C || 7% |", "||||", "x | 1024MiB / 2MiB | y | z |"):
        found = nvidia_smi.parse(TABLE.replace(row, odd)).nvml
        assert found is not None
        assert [gpu.address for gpu in found.gpus or ()] == ["0000:04:00.0", "0000:82:00.0"]


def test_the_head_of_a_table_alone_counts_nothing() -> None:
    parts = nvidia_smi.parse("\n".join(TABLE.splitlines()[:8]))
    assert parts.nvml is None
    assert gaps(parts) == {"nvml": "not-in-input"}


def test_log() -> None:
    first, second = cards(LOG)
    assert (first.address, first.name, first.minor, first.vbios) == ("0000:04:00.0", "Tesla P40", 3, "86.02.23.00.01")
    assert (first.pci_id, first.subsystem_id) == ("10de:1b38", "10de:11d9")
    link = first.link
    assert (link.width, link.max_width, link.speed_gts, link.max_speed_gts) == (8, 16, 2.5, 8.0)
    assert (first.memory_total_bytes, first.bar1_bytes) == (23040 << 20, 32768 << 20)
    assert (first.power_watts, first.power_limit_watts) == (9.7, 200.0)
    assert (first.power_default_limit_watts, first.power_max_limit_watts) == (250.0, 251.0)
    assert (first.ecc_enabled, first.mig_enabled, first.persistence, first.pcie_replays) == (True, None, True, 5)
    assert (first.temperature_c, first.utilization_percent, first.performance_state) == (31, 0, 8)
    assert first.processes == (5578,)
    assert first.errors == {}
    assert second.errors["nvmlDeviceGetMemoryInfo"] == 15
    assert second.errors["nvmlDeviceGetUUID"] == 999
    assert (second.name, second.uuid, second.memory_total_bytes) == (None, None, None)
    told = {gap.how for gap in nvidia_smi.parse(LOG).gaps if gap.fact == "gpus.0000:04:00.0.nvml"}
    assert told == {"nvidia-smi says N/A for mig_enabled."}
    told = {gap.how for gap in nvidia_smi.parse(LOG).gaps if gap.fact == "gpus.0000:82:00.0.nvml"}
    assert any(how.startswith("Not read: name, memory_total_bytes") and "returned 15" in how for how in told)


def test_old_names_in_a_log() -> None:
    text = (
        "==============NVSMI LOG==============\n\nAttached GPUs : 1\nGPU 0000:02:00.0\n"
        "    Persistence Mode : Disabled\n"
        "    Memory Usage\n        Total : 767 MB\n    Temperature\n        Gpu : 45 C\n"
        "    Power Readings\n        Power Draw : 30.1 W\n        Power Limit : 200 W\n"
        "        Enforced Power Limit : 190 W\n"
    )
    (card,) = cards(text)
    assert (card.memory_total_bytes, card.temperature_c, card.power_watts) == (767 << 20, 45, 30.1)
    assert (card.power_limit_watts, card.persistence) == (190.0, False)


def test_what_is_attached_and_not_shown_keeps_its_place() -> None:
    cut = LOG[: LOG.index("GPU 00000000:82")]
    assert [card.address for card in cards(cut)] == ["0000:04:00.0", None]
    assert nvml(cut).complete


def test_a_card_without_the_head_does_not_say_how_many_there_are() -> None:
    text = LOG[LOG.index("GPU 00000000:82") :]
    assert [card.address for card in cards(text)] == ["0000:82:00.0"]
    assert not nvml(text).complete


def test_units_and_versions_are_no_cards() -> None:
    unit = "==============NVSMI LOG==============\n\nDriver Version : 515.65.01\n\nHIC Info : N/A\nAttached Units : 0\n"
    assert nvidia_smi.parse(unit).nvml is None
    assert nvidia_smi.parse("NVIDIA-SMI version : 575.64\nDRIVER version : 575.64\nCUDA Version : 12.9\n").nvml is None
    assert len(cards(LOG + unit)) == 2


def test_xml() -> None:
    (card,) = cards(XML)
    assert (card.address, card.name, card.pci_id) == ("0000:04:00.0", "Tesla T4", "10de:1eb8")
    assert (card.memory_total_bytes, card.memory_used_bytes) == (15360 << 20, 1032 << 20)
    assert (card.link.width, card.link.max_width, card.link.speed_gts) == (8, 16, 2.5)
    assert (card.power_watts, card.power_limit_watts, card.processes) == (26.78, 60.0, (5762,))
    assert nvml(XML).driver_version == "515.105.01"


def test_a_cut_document_keeps_the_count() -> None:
    text = XML.replace("<attached_gpus>1<", "<attached_gpus>3<")
    assert [card.address for card in cards(text[: text.index("<fb_memory_usage><total>15360")])] == [
        "0000:04:00.0",
        None,
        None,
    ]
    assert nvml(text).complete


def test_xml_entities_are_not_expanded() -> None:
    bomb = (
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a "Tesla"><!ENTITY b "&a;&a;&a;">'
        '<!ENTITY file SYSTEM "file:///etc/passwd">]>\n'
    )
    text = XML[: XML.index("<!DOCTYPE")] + bomb + XML[XML.index("<nvidia_smi_log>") :]
    for entity in ("&b;", "&file;"):
        (card,) = cards(text.replace("Tesla T4", entity))
        assert card.name is None


def test_csv() -> None:
    first, second = cards(CSV)
    assert (first.address, first.link.width, first.memory_total_bytes) == ("0000:04:00.0", 16, 23040 << 20)
    assert (first.power_watts, first.ecc_enabled, first.compute_capability) == (9.7, True, "6.1")
    assert second.errors == {
        "nvmlDeviceGetName": 15,
        "nvmlDeviceGetCurrPcieLinkWidth": 15,
        "nvmlDeviceGetMemoryInfo": 999,
        "nvmlDeviceGetEccMode": 3,
    }
    assert (second.name, second.ecc_enabled, second.compute_capability) == (None, None, None)


def test_csv_without_units() -> None:
    (card,) = cards("pci.bus_id, memory.used [MiB], power.draw [W]\n00000000:04:00.0, 12, 9.7\n")
    assert (card.memory_used_bytes, card.power_watts) == (12 << 20, 9.7)


def test_forms_of_one_machine_are_joined_by_address() -> None:
    first, second = cards(TABLE + LOG + CSV)
    assert (first.processes, first.link.width, first.compute_capability, first.bar1_bytes) == (
        (5578,),
        8,
        "6.1",
        32768 << 20,
    )
    assert second.address == "0000:82:00.0"


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that",
            "failed",
            9,
        ),
        ("NVIDIA-SMI has failed because it couldn't communicate with NVIDIA driver. Make sure", "failed", 9),
        ("Failed to initialize NVML: Driver/library version mismatch", "failed", 18),
        ("Failed to initialize NVML: Unknown Error", "failed", 999),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "failed", 17),
        ("Failed to initialize NVML: Insufficient Permissions", "failed", 4),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "library-absent", 12),
    ],
)
def test_failures(text: str, status: str, code: int) -> None:
    found = nvml(text + "\n")
    assert (found.status, found.code, found.gpus) == (status, code, None)
    assert found.message
    assert found.message.startswith(text[:40])
    assert nvidia_smi.looks_like(text)


def test_the_version_of_the_library_in_a_mismatch() -> None:
    text = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.129\n"
    assert nvml(text).nvml_version == "535.129"


def test_no_devices_is_a_count_of_none() -> None:
    none = nvml("No devices were found\n")
    assert (none.status, none.gpus, none.call, none.message) == ("ok", (), "nvidia-smi", "No devices were found")


@pytest.mark.parametrize(
    "text",
    [
        "bash: nvidia-smi: command not found",
        "-bash: line 1: nvidia-smi: command not found",
        "zsh: command not found: nvidia-smi",
        "sh: 1: nvidia-smi: not found",
        "Command 'nvidia-smi' not found, but can be installed with:",
    ],
)
def test_a_missing_tool_says_nothing_about_nvml(text: str) -> None:
    parts = nvidia_smi.parse(text)
    assert nvidia_smi.looks_like(text)
    assert parts.nvml is None
    assert gaps(parts) == {"nvml": "tool-absent"}


def test_a_lost_card_beside_a_list() -> None:
    text = TABLE + "Unable to determine the device handle for GPU 0000:82:00.0: GPU is lost.\n"
    assert cards(text)[1].errors == {"nvmlDeviceGetHandleByPciBusId": 15}


@pytest.mark.parametrize(
    ("text", "address", "code"),
    [
        ("Unable to determine the device handle for GPU 0000:0A:00.0: GPU is lost.  Reboot", "0000:0a:00.0", 15),
        ("Unable to determine the device handle for GPU0000:68:00.0: Unknown Error", "0000:68:00.0", 999),
        ("Unable to determine the device handle for GPU1: 0000:0A:00.0: Not Found", "0000:0a:00.0", 6),
    ],
)
def test_a_lost_card_alone_hides_the_others(text: str, address: str, code: int) -> None:
    found = nvml(text + "\n")
    assert (found.status, found.complete) == ("ok", False)
    assert [(card.address, card.errors) for card in found.gpus or ()] == [
        (address, {"nvmlDeviceGetHandleByPciBusId": code})
    ]
    assert nvidia_smi.looks_like(text)


def test_matrix_with_addresses() -> None:
    topology = nvidia_smi.parse(TABLE + "\x1b[4m" + MATRIX).topology
    assert topology is not None
    assert topology.addresses == ("0000:04:00.0", "0000:82:00.0")
    assert topology.matrix == (("X", "NV4"), ("NV4", "X"))


def test_matrix_without_addresses_waits_for_a_list_of_them() -> None:
    parts = nvidia_smi.parse(MATRIX)
    assert parts.nvml is None
    assert parts.topology is not None
    assert parts.topology.addresses == ("0", "1")
    assert gaps(parts) == {"topology": "not-in-input"}


UUIDS = tuple(f"GPU-00000000-1b38-4000-8000-00000000000{number}" for number in (1, 2))
NAMES = f"GPU 0: Tesla P40 (UUID: {UUIDS[0]})\nGPU 1: Tesla P40 (UUID: {UUIDS[1]})\n"


def listed(text: str) -> list[tuple[int, str | None, str | None]]:
    nvml = nvidia_smi.parse(text).nvml
    assert nvml is not None
    return [(gpu.index, gpu.address, gpu.uuid) for gpu in nvml.gpus or ()]


def test_names() -> None:
    nvml = nvidia_smi.parse(NAMES + "  MIG 1g.5gb Device 0: (UUID: MIG-00000000-0000-4000-8000-000000000003)\n").nvml
    assert nvml is not None
    assert nvml.complete
    assert [(gpu.index, gpu.name, gpu.uuid) for gpu in nvml.gpus or ()] == [
        (0, "Tesla P40", UUIDS[0]),
        (1, "Tesla P40", UUIDS[1]),
    ]


@pytest.mark.parametrize("cut", [NAMES[:-20], NAMES.partition("\n")[2]])
def test_names_that_may_lack_a_card_are_no_count(cut: str) -> None:
    nvml = nvidia_smi.parse(cut).nvml
    assert nvml is not None
    assert not nvml.complete


def test_names_are_joined_to_the_table_by_index_and_to_a_log_by_uuid() -> None:
    assert listed(TABLE + NAMES) == [(0, "0000:04:00.0", UUIDS[0]), (1, "0000:82:00.0", UUIDS[1])]
    assert (0, "0000:04:00.0", UUIDS[0]) in listed(LOG + NAMES)
    csv = "index, uuid, memory.total [MiB]\n" + "".join(f"{n}, {uuid}, 23040 MiB\n" for n, uuid in enumerate(UUIDS))
    assert listed(csv + NAMES) == [(0, None, UUIDS[0]), (1, None, UUIDS[1])]


def test_masked_uuids_join_nothing() -> None:
    masked = NAMES.replace("00000000000", "xxxxxxxxxxx")
    assert listed(masked) == [(0, None, None), (1, None, None)]


@pytest.mark.parametrize("text", ["", "my nvidia-smi says nothing", "a, b, c\n1, 2, 3", "| 0 | 1 |", "GPU0"])
def test_other_text_is_not_taken(text: str) -> None:
    assert not nvidia_smi.looks_like(text)
    assert nvidia_smi.parse(text).nvml is None


@pytest.mark.parametrize("text", [TABLE, LOG, XML, CSV, MATRIX])
def test_any_cut_is_survived(text: str) -> None:
    for end in range(0, len(text), 3):
        nvidia_smi.parse(text[:end])


@pytest.mark.parametrize(
    ("file", "count", "bar1"),
    [
        ("gls_A40x10_nvidia-smi-q.txt", 10, 64 << 30),
        ("gls_RTX_A6000_x9_nvidia-smi-q.txt", 9, 64 << 30),
        ("gls_H100SXMx8_nvidia-smi-q.txt", 8, 128 << 30),
        ("gls_RTX4090_nvidia-smi.txt", 8, None),
        ("telegraf_rtx-4000-sff-ada-v13.xml", 1, 32 << 30),
        ("telegraf_quadro-p400.xml", 1, 256 << 20),
    ],
)
def test_real_output(shared_machines: Path, file: str, count: int, bar1: int | None) -> None:
    text = (shared_machines / "nvidia-smi" / file).read_text()
    found = cards(text)
    assert nvidia_smi.looks_like(text)
    assert len(found) == count
    assert {card.bar1_bytes for card in found} == {bar1}
    assert all(card.address and card.name and card.processes is not None for card in found)


HEALTH = """\
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU 00000000:68:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    MIG Mode
        Current                           : Enabled
        Pending                           : Enabled
    MIG Device
        Index                             : 0
        ECC Errors
            Volatile
                SRAM Uncorrectable        : 9
    MIG Device
        Index                             : 1
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Active
        Sync Boost                        : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                  : 12 us
    ECC Mode
        Current                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 1
            SRAM Uncorrectable Parity     : 2
            SRAM Uncorrectable SEC-DED    : 4
            DRAM Correctable              : 8
            DRAM Uncorrectable            : N/A
        Aggregate
            SRAM Correctable              : 0
            DRAM Correctable              : 3
            DRAM Uncorrectable            : 5
            SRAM Threshold Exceeded       : No
        Aggregate Uncorrectable SRAM Sources
            SRAM L2                       : 70
    Retired Pages
        Single Bit ECC                    : 2
        Double Bit ECC                    : 1
        Pending Page Blacklist            : Yes
    Remapped Rows
        Correctable Error                 : 6
        Uncorrectable Error               : 7
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Clocks
        Graphics                          : 300 MHz
        SM                                : 382 MHz
    Max Clocks
        SM                                : 1410 MHz
    Fabric
        State                             : In Progress
"""


def test_health_in_a_log() -> None:
    (card,) = cards(HEALTH)
    assert card.clock_reasons == ("sw-power-cap", "hw-slowdown", "hw-power-brake")
    assert (card.sm_clock_mhz, card.sm_max_clock_mhz) == (382, 1410)
    assert (card.ecc_volatile_corrected, card.ecc_volatile_uncorrected) == (9, 6)
    assert (card.ecc_aggregate_corrected, card.ecc_aggregate_uncorrected) == (3, 5)
    assert (card.retired_pages_single_bit, card.retired_pages_double_bit, card.retired_pages_pending) == (2, 1, True)
    assert (card.remapped_rows_corrected, card.remapped_rows_uncorrected) == (6, 7)
    assert (card.remapped_rows_pending, card.remapped_rows_failed) == (True, False)
    assert (card.mig_enabled, card.mig_devices, card.fabric_state) == (True, 2, "in-progress")


def test_health_in_an_old_log() -> None:
    text = HEALTH[: HEALTH.index("    MIG Device")] + (
        "    MIG Device                            : None\n"
        "    Clocks Throttle Reasons\n        Idle : Active\n        Unknown : Active\n"
        "    ECC Errors\n        Volatile\n            Single Bit\n                Device Memory : 4\n"
        "                Total : 5\n            Double Bit\n                Total : 1\n        Aggregate\n"
        "            Single Bit\n                Total : N/A\n            Double Bit\n                Total : 2\n"
        "    Retired Pages\n        Single Bit ECC : N/A\n        Pending : No\n    Remapped Rows : N/A\n"
    )
    (card,) = cards(text)
    assert (card.clock_reasons, card.mig_devices) == (("idle",), 0)
    assert (card.ecc_volatile_corrected, card.ecc_volatile_uncorrected) == (5, 1)
    assert (card.ecc_aggregate_corrected, card.ecc_aggregate_uncorrected) == (None, 2)
    assert (card.retired_pages_single_bit, card.retired_pages_pending) == (None, False)
    assert card.remapped_rows_pending is None
    told = [gap.how for gap in nvidia_smi.parse(text).gaps if "says N/A" in gap.how]
    assert len(told) == 1
    assert "ecc_aggregate_corrected, retired_pages_single_bit, remapped_rows_corrected" in told[0]


def test_health_in_xml() -> None:
    inside = (
        "<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
        "<clocks_event_reasons><clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>"
        "<clocks_event_reason_sw_thermal_slowdown>Active</clocks_event_reason_sw_thermal_slowdown>"
        "<clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons>"
        "<ecc_errors><volatile><sram_correctable>1</sram_correctable><dram_correctable>2</dram_correctable>"
        "<sram_uncorrectable>3</sram_uncorrectable><dram_uncorrectable>4</dram_uncorrectable></volatile>"
        "<aggregate><single_bit><total>5</total></single_bit><double_bit><total>6</total></double_bit></aggregate>"
        "</ecc_errors><retired_pages><multiple_single_bit_retirement><retired_count>7</retired_count>"
        "</multiple_single_bit_retirement><double_bit_retirement><retired_count>8</retired_count>"
        "</double_bit_retirement><pending_retirement>No</pending_retirement></retired_pages>"
        "<remapped_rows><remapped_row_corr>9</remapped_row_corr><remapped_row_unc>10</remapped_row_unc>"
        "<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>Yes</remapped_row_failure>"
        "</remapped_rows><clocks><sm_clock>585 MHz</sm_clock></clocks><fabric><state>Completed</state></fabric>"
    )
    (card,) = cards(XML.replace("<pci>", f"{inside}<pci>"))
    assert (card.clock_reasons, card.sm_clock_mhz) == (("sw-thermal", "hw-thermal"), 585)
    assert (card.ecc_volatile_corrected, card.ecc_volatile_uncorrected) == (3, 7)
    assert (card.ecc_aggregate_corrected, card.ecc_aggregate_uncorrected) == (5, 6)
    assert (card.retired_pages_single_bit, card.retired_pages_double_bit, card.retired_pages_pending) == (7, 8, False)
    assert (card.remapped_rows_corrected, card.remapped_rows_uncorrected) == (9, 10)
    assert (card.remapped_rows_pending, card.remapped_rows_failed) == (True, True)
    assert (card.mig_devices, card.fabric_state) == (1, "completed")
    none = "<mig_devices>None</mig_devices>"
    (card,) = cards(XML.replace("<pci>", f"{inside}<pci>").replace(XML[XML.index("<mig_d") : XML.index("<pci>")], none))
    assert (card.mig_enabled, card.mig_devices) == (True, 0)


@pytest.mark.parametrize(("status", "state"), [("Success", "completed"), ("Timeout", None)])
def test_a_fabric_that_ended_with_an_error_is_not_completed(status: str, state: str | None) -> None:
    text = LOG + f"GPU 00000000:04:00.0\n    Fabric\n        State : Completed\n        Status : {status}\n"
    found = nvidia_smi.parse(text).nvml
    assert found is not None
    assert [gpu.fabric_state for gpu in found.gpus or () if gpu.address == "0000:04:00.0"] == [state]


def test_health_in_csv_and_in_the_table() -> None:
    (card,) = cards(
        "pci.bus_id, clocks_throttle_reasons.active, ecc.errors.uncorrected.volatile.total, retired_pages.pending, "
        "remapped_rows.failure, clocks.sm [MHz]\n"
        "00000000:04:00.0, 0x0000000000000048, 2, Yes, No, 1189 MHz\n"
    )
    assert card.clock_reasons == ("hw-slowdown", "hw-thermal")
    assert (card.ecc_volatile_uncorrected, card.retired_pages_pending, card.remapped_rows_failed) == (2, True, False)
    assert card.sm_clock_mhz == 1189
    first, second = cards(TABLE.replace("|                    0 |", "|                    3 |", 1))
    assert (first.ecc_volatile_uncorrected, second.ecc_volatile_uncorrected) == (3, 0)
    (bare,) = cards(OLD_TABLE.replace("                   0 |", "                 N/A |"))
    assert bare.ecc_volatile_uncorrected is None
